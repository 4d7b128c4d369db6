// tcgen05.cp (shared memory to tensor memory) and tcgen05.shift: PTX ISA 9.7.16.9.
#include <cstring>

#include "emulator/tensor/register.h"
#include "emulator/tensor/smem_descriptor.h"
#include "emulator/tensor/tensor_state.h"
#include "emulator/tensor/tmem_shapes.h"

namespace bwgemm::emulator {
namespace {

struct CopyArgs {
  CpShape shape;
  NumberFormat packed = NumberFormat::kU8;  // of the source's elements: kU8, kE2M3 or kE2M1
};

// Gives each of the sixteen elements at the low end of a 16-byte chunk a byte, as MMAs find it in
// tensor memory (PTX ISA 9.7.16.9.1).
void unpack_chunk(NumberFormat format, const uint8_t* from, uint8_t* to) {
  const int bits = format_bits(format);
  for (int i = 0; i < 16; ++i) {
    const int bit = i * bits;
    const uint32_t two = from[bit / 8] | static_cast<uint32_t>(from[bit / 8 + 1]) << 8;
    to[i] = static_cast<uint8_t>((two >> (bit % 8) & ((1u << bits) - 1)) << tmem_shift(format));
  }
}

// Rows of 16-byte chunks go to lanes, the chunks of a row side by side.
struct CopyOp : AsyncOp {
  const CpShape* shape;
  NumberFormat packed;
  CtaSet ctas;
  TmemAddress to{0};
  TileChunks source;

  bool step(Launch&) override {
    for (int c = 0; c < ctas.count; ++c) {
      TensorMemory& memory = tmem_of(*ctas.ctas[c]);
      for (int row = 0; row < shape->rows; ++row) {
        for (int chunk = 0; chunk < shape->chunks; ++chunk) {
          const uint8_t* from =
              ctas.ctas[c]->shared().data(source.addresses[row * shape->chunks + chunk]);
          uint8_t unpacked[16];
          if (packed != NumberFormat::kU8) {
            unpack_chunk(packed, from, unpacked);
            from = unpacked;
          }
          for (int copy = 0; copy < static_cast<int>(shape->copies.size()); ++copy) {
            const int lane = to.lane + cp_lane(*shape, row, copy);
            std::memcpy(memory.cell(lane, to.column + 4 * chunk), from, 16);
            memory.mark_written(lane, to.column + 4 * chunk, 4);
          }
        }
      }
    }
    return true;
  }
};

Step exec_cp(Warp& warp, const Instr& in, uint32_t mask) {
  const CopyArgs& args = *static_cast<const CopyArgs*>(in.aux);
  const CpShape& shape = args.shape;
  const CtaSet ctas = cta_set(warp, in.sub);
  for_lanes(mask, [&](int lane) {
    auto op = std::make_unique<CopyOp>();
    op->shape = &shape;
    op->packed = args.packed;
    op->ctas = ctas;
    op->to = TmemAddress(static_cast<uint32_t>(warp.address(in.addr, lane)));
    SmemDescriptor descriptor;
    std::string error;
    if (!decode_tcgen05_descriptor(warp.r64(in.op[0])[lane], &descriptor, &error)) {
      warp.fault("%s", error.c_str());
    }
    // The source is K-major: rows of one or two chunks.
    op->source =
        tile_chunks(descriptor, Major::kK, NumberFormat::kU8, shape.rows, shape.chunks * 16);
    Holds& holds = tensor_of(warp).uncommitted[lane];
    const std::vector<ByteRange> ranges = merge_chunks(op->source);
    int last_lane = 0;
    for (int copy = 0; copy < static_cast<int>(shape.copies.size()); ++copy) {
      last_lane = std::max(last_lane, cp_lane(shape, shape.rows - 1, copy));
    }
    for (int c = 0; c < ctas.count; ++c) {
      holds.read_shared(warp.launch(), *ctas.ctas[c], ranges, warp.origin(),
                        tensor_reads(warp, lane));
      holds.access_tmem(warp.launch(), *ctas.ctas[c],
                        {op->to.lane, last_lane + 1, op->to.column, shape.chunks * 4}, true, true,
                        warp.origin(), tensor_reads(warp, lane));
    }
    const uint64_t pipe = tensor_pipe(ctas);
    warp.launch().submit(warp, std::move(op), pipe);
  });
  return Step::kNext;
}

void decode_cp(Decoder& d) {
  auto* args = d.make_aux<CopyArgs>();
  d.out().sub = decode_cta_group(d);
  const std::string shape(d.mod_one_of({"128x256b", "4x256b", "128x128b", "64x128b", "32x128b"}));
  const std::string multicast(d.mod_one_of({"warpx2::02_13", "warpx2::01_23", "warpx4"}));
  const std::string_view packed = d.mod_one_of({"b6x16_p32", "b4x16_p64"});
  if (d.mod("b8x16") == packed.empty()) {
    d.error(".b8x16 and a packed format, .b6x16_p32 or .b4x16_p64, go together");
  }
  if (!packed.empty()) {
    args->packed = packed == "b6x16_p32" ? NumberFormat::kE2M3 : NumberFormat::kE2M1;
  }
  if (!parse_cp_shape(shape, multicast, &args->shape)) {
    d.error("\"" + shape + "\" with \"" + multicast + "\" is not a shape of tcgen05.cp");
  }
  d.expect_operands(2, 2);
  d.out().addr = d.address(d.operand(0));
  d.out().op[0] = d.src(1, 64);
  d.out().exec = exec_cp;
}

// Rows move down by one lane number in each group of 32, 32 bytes (8 columns) wide; the last row of
// a group stays, for a 4x256b copy to refresh.
struct ShiftOp : AsyncOp {
  CtaSet ctas;
  TmemAddress at{0};

  bool step(Launch&) override {
    for (int c = 0; c < ctas.count; ++c) {
      TensorMemory& memory = tmem_of(*ctas.ctas[c]);
      for (int lane = at.lane; lane < at.lane + 31; ++lane) {
        std::memcpy(memory.cell(lane, at.column), memory.cell(lane + 1, at.column), 32);
      }
    }
    return true;
  }
};

Step exec_shift(Warp& warp, const Instr& in, uint32_t mask) {
  const CtaSet ctas = cta_set(warp, in.sub);
  for_lanes(mask, [&](int lane) {
    auto op = std::make_unique<ShiftOp>();
    op->ctas = ctas;
    op->at = TmemAddress(static_cast<uint32_t>(warp.address(in.addr, lane)));
    if (op->at.lane % 32 != 0) warp.fault("tcgen05.shift needs a lane that is a multiple of 32");
    for (int c = 0; c < ctas.count; ++c) {
      tensor_of(warp).uncommitted[lane].access_tmem(warp.launch(), *ctas.ctas[c],
                                                    {op->at.lane, 32, op->at.column, 8}, true, true,
                                                    warp.origin(), tensor_reads(warp, lane));
    }
    const uint64_t pipe = tensor_pipe(ctas);
    warp.launch().submit(warp, std::move(op), pipe);
  });
  return Step::kNext;
}

void decode_shift(Decoder& d) {
  d.out().sub = decode_cta_group(d);
  if (!d.mod("down")) d.error("needs .down");
  d.expect_operands(1, 1);
  d.out().addr = d.address(d.operand(0));
  d.out().exec = exec_shift;
}

}  // namespace

void register_tcgen05_copy(IsaTable& table) {
  table.add({"tcgen05.cp", decode_cp, "9.7.16.9.2"});
  table.add({"tcgen05.shift", decode_shift, "9.7.16.9.3"});
}

}  // namespace bwgemm::emulator
