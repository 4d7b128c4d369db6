// tcgen05.mma and tcgen05.mma.ws: PTX ISA 9.7.16.10.9. Decoding and issue.
#include "emulator/tensor/tcgen05_mma.h"

#include <cmath>

#include "emulator/tensor/register.h"

namespace bwgemm::emulator {
namespace {

struct MmaArgs {
  MmaKind kind = MmaKind::kF16;
  bool weight_stationary = false;
  Address d;
  bool a_in_tmem = false;
  Address a_tmem;
  Row a_desc = kNoRow;
  Row b_desc = kNoRow;
  Row idesc = kNoRow;
  Row zero_mask = kNoRow;
  std::vector<Row> disable_lanes;
  Pred enable_input = 0;
  int scale = 0;
  int block = 0;  // elements of K that share a scale; 0: no scales
  Address scale_a;
  Address scale_b;
};

// Tensor memory that D or A occupies in each CTA.
std::vector<TmemRegion> regions(const DataPath& path, const TmemAddress& address, int columns) {
  if (!path.spread) {
    return {{address.lane, path.rows + (path.parts - 1) * path.lane_step, address.column, columns}};
  }
  std::vector<TmemRegion> quarters;
  for (int q = 0; q < 4; ++q) {
    quarters.push_back({address.lane + 32 * q, 16, address.column, columns});
  }
  return quarters;
}

void check_lane(Warp& warp, const DataPath& path, const TmemAddress& address, const char* what) {
  const bool good = address.lane == 0 || (path.spread && address.lane == 16);
  if (!good) {
    warp.fault("%s starts in lane %d; it must be %s for this shape", what, address.lane,
               path.spread ? "0 or 16" : "0");
  }
}

// The two upper bits of the address are free: CUTLASS keeps the scale factor id there.
TmemAddress scale_address(Warp& warp, const Address& operand, int lane, const char* what) {
  const TmemAddress address(static_cast<uint32_t>(warp.address(operand, lane)) & 0x3fffffffu);
  if (address.lane != 0) {
    warp.fault("the scales of %s start in lane %d; it must be 0", what, address.lane);
  }
  return address;
}

SmemDescriptor decode_smem(Warp& warp, uint64_t bits, const char* what) {
  SmemDescriptor descriptor;
  std::string error;
  if (!decode_tcgen05_descriptor(bits, &descriptor, &error)) {
    warp.fault("%s: %s", what, error.c_str());
  }
  return descriptor;
}

// PTX ISA 9.7.16.10.6: which swizzles go with which majors.
void check_layout(Warp& warp, const SmemDescriptor& d, Major major, NumberFormat format,
                  const char* what) {
  const bool wide_atom = d.swizzle == Swizzle::k128BAtom32B;
  const bool needs_wide = major == Major::kMN && format_bits(format) == 32;
  if (wide_atom != needs_wide) {
    warp.fault(
        "%s: 128-byte swizzle with 32-byte atoms goes with MN-major 32-bit operands, and only "
        "with them",
        what);
  }
}

std::unique_ptr<MmaOp> prepare(Warp& warp, const Instr& in, const MmaArgs& args, int lane) {
  auto op = std::make_unique<MmaOp>();
  MmaOperands& o = op->operands;
  const int group = in.sub;
  o.ctas = cta_set(warp, group);
  std::string error;
  const uint32_t bits = warp.r32(args.idesc)[lane];
  if (args.block == 0
          ? !decode_instr_descriptor(bits, args.kind, group, args.weight_stationary, &o.descriptor,
                                     &error)
          : !decode_scaled_descriptor(bits, args.kind, group, args.block, &o.descriptor, &error)) {
    warp.fault("%s", error.c_str());
  }
  const InstrDescriptor& d = o.descriptor;
  o.path = data_path(d, group, args.weight_stationary);
  o.d = TmemAddress(static_cast<uint32_t>(warp.address(args.d, lane)));
  check_lane(warp, o.path, o.d, "D");
  o.a_in_tmem = args.a_in_tmem;
  if (args.a_in_tmem) {
    if (d.a_major != Major::kK) warp.fault("A in tensor memory must be K-major (no transpose)");
    o.a = TmemAddress(static_cast<uint32_t>(warp.address(args.a_tmem, lane)));
    check_lane(warp, o.path, o.a, "A");
  } else {
    const SmemDescriptor a = decode_smem(warp, warp.r64(args.a_desc)[lane], "A");
    check_layout(warp, a, d.a_major, d.a, "A");
    o.a_chunks = tile_chunks(a, d.a_major, d.a, o.path.rows, d.k);
  }
  const SmemDescriptor b = decode_smem(warp, warp.r64(args.b_desc)[lane], "B");
  check_layout(warp, b, d.b_major, d.b, "B");
  o.b_chunks = tile_chunks(b, d.b_major, d.b, d.n / group, d.k);
  if (args.zero_mask != kNoRow && warp.r64(args.zero_mask)[lane] != 0) {
    warp.fault("a zero-column mask is not implemented");
  }
  for (size_t i = 0; i < args.disable_lanes.size(); ++i) {
    o.disabled[i] = warp.r32(args.disable_lanes[i])[lane];
  }
  if (args.block != 0) {
    o.scales.block = args.block;
    o.scales.a = scale_address(warp, args.scale_a, lane, "A");
    o.scales.b = scale_address(warp, args.scale_b, lane, "B");
  }
  o.rule.format = d.d;
  o.rule.use_input = (warp.pred(args.enable_input) >> lane) & 1;
  o.rule.input_scale = std::ldexp(1.0f, -args.scale);
  o.rule.saturate = d.saturate;
  return op;
}

// What the instruction reads in the tensor memory of each CTA.
std::vector<TmemRegion> regions_read(const MmaOperands& o) {
  std::vector<TmemRegion> read;
  if (o.a_in_tmem) read = regions(o.path, o.a, o.descriptor.k * tmem_bits(o.descriptor.a) / 32);
  if (o.scales.block != 0) {
    read.push_back(scale_region(o.scales.a, o.path.rows));
    read.push_back(scale_region(o.scales.b, o.descriptor.n));
  }
  return read;
}

// Marks everything the instruction will read and write, in both CTAs of a pair.
void hold_operands(Warp& warp, const MmaOperands& o, int lane, Holds* holds) {
  const Stamp stamp = tensor_reads(warp, lane);
  Launch& launch = warp.launch();
  const Origin origin = warp.origin();
  const std::vector<ByteRange> a = merge_chunks(o.a_chunks);
  const std::vector<ByteRange> b = merge_chunks(o.b_chunks);
  const std::vector<TmemRegion> read = regions_read(o);
  const std::vector<TmemRegion> written = regions(o.path, o.d, o.path.columns());
  for (const TmemRegion& d : written) {
    for (const TmemRegion& other : read) {
      if (!d.overlaps(other)) continue;
      warp.report(Rule::kTensorHazard, "writes tensor memory (" + d.text() + ") that it reads (" +
                                           other.text() + "): no order within it is defined");
    }
  }
  for (int c = 0; c < o.ctas.count; ++c) {
    Cta& cta = *o.ctas.ctas[c];
    holds->read_shared(launch, cta, b, origin, stamp);
    if (!o.a_in_tmem) holds->read_shared(launch, cta, a, origin, stamp);
    for (const TmemRegion& region : read)
      holds->access_tmem(launch, cta, region, false, true, origin, stamp);
    for (const TmemRegion& region : written)
      holds->access_tmem(launch, cta, region, true, true, origin, stamp, true);
  }
}

Step exec_mma(Warp& warp, const Instr& in, uint32_t mask) {
  const MmaArgs& args = *static_cast<const MmaArgs*>(in.aux);
  for_lanes(mask, [&](int lane) {
    std::unique_ptr<MmaOp> op = prepare(warp, in, args, lane);
    const InstrDescriptor& d = op->operands.descriptor;
    hold_operands(warp, op->operands, lane, &tensor_of(warp).uncommitted[lane]);
    const uint64_t flops = uint64_t{2} * d.m * d.n * d.k;
    Launch& launch = warp.launch();
    ++launch.stats().mma_instructions;
    launch.stats().mma_flops += flops;
    ++launch.warp_stats(warp.origin()).mma;
    op->trace_arg = flops;
    const uint64_t pipe = tensor_pipe(op->operands.ctas);
    launch.submit(warp, std::move(op), pipe);
  });
  return Step::kNext;
}

MmaKind decode_kind(Decoder& d) {
  static constexpr struct {
    std::string_view name;
    MmaKind kind;
  } kKinds[] = {{"kind::f16", MmaKind::kF16},           {"kind::tf32", MmaKind::kTF32},
                {"kind::f8f6f4", MmaKind::kF8F6F4},     {"kind::i8", MmaKind::kI8},
                {"kind::mxf8f6f4", MmaKind::kMXF8F6F4}, {"kind::mxf4", MmaKind::kMXF4},
                {"kind::mxf4nvf4", MmaKind::kMXF4NVF4}};
  for (const auto& known : kKinds) {
    if (d.mod(known.name)) return known.kind;
  }
  d.error("needs a .kind");
}

// .block_scale and the size of its blocks.
void decode_blocks(Decoder& d, MmaArgs* args) {
  const std::string kind = std::string("kind::") + kind_name(args->kind);
  if (!d.mod("block_scale")) d.error(kind + " needs .block_scale");
  if (args->weight_stationary) d.error(kind + " has no .ws");
  const std::string_view size =
      d.mod_one_of({"scale_vec::1X", "scale_vec::2X", "scale_vec::4X", "block16", "block32"});
  int stated = 0;
  if (size == "block16") stated = 16;
  if (size == "block32") stated = 32;
  if (size.substr(0, 9) == "scale_vec") stated = instruction_k(args->kind) / (size[11] - '0');
  if (!resolve_block(args->kind, stated, &args->block)) {
    d.error(size.empty() ? kind + " needs .block16, .block32 or .scale_vec"
                         : "." + std::string(size) + " is not defined for " + kind);
  }
}

void decode_mma(Decoder& d) {
  auto* args = d.make_aux<MmaArgs>();
  if (d.mod("sp")) d.unsupported("sparse tcgen05.mma is not implemented");
  args->weight_stationary = d.mod("ws");
  d.out().sub = decode_cta_group(d);
  if (args->weight_stationary && d.out().sub != 1) d.error(".ws needs .cta_group::1");
  args->kind = decode_kind(d);
  const bool scaled = is_block_scaled(args->kind);
  if (scaled) decode_blocks(d, args);
  if (d.mod("ashift")) d.unsupported(".ashift is not implemented");
  d.mod_prefix("collector::");  // reuse of operand buffers has no effect on values
  d.expect_operands(scaled ? 7 : 5, 7);
  args->d = d.address(d.operand(0));
  const ptx::Operand& a = d.operand(1);
  args->a_in_tmem = a.kind == ptx::Operand::Kind::kAddress;
  if (args->a_in_tmem) {
    args->a_tmem = d.address(a);
  } else {
    args->a_desc = d.src(a, 64);
  }
  args->b_desc = d.src(2, 64);
  args->idesc = d.src(3, 32);
  size_t next = 4;
  if (scaled) {
    args->scale_a = d.address(d.operand(next++));
    args->scale_b = d.address(d.operand(next++));
  } else if (d.operand(next).kind == ptx::Operand::Kind::kVector) {
    const std::vector<ptx::Operand>& lanes = *Decoder::vector_items(d.operand(next));
    if (args->weight_stationary || lanes.size() != size_t{4} * d.out().sub) {
      d.error("disable-output-lane needs " + std::to_string(4 * d.out().sub) + " elements");
    }
    for (const ptx::Operand& lane : lanes) args->disable_lanes.push_back(d.src(lane, 32));
    ++next;
  }
  args->enable_input = d.pred_src(next++);
  if (next < d.count()) {
    if (args->weight_stationary) {
      args->zero_mask = d.src(next, 64);
    } else {
      args->scale = static_cast<int>(d.int_constant(next));
      if (args->kind != MmaKind::kF16 && args->kind != MmaKind::kTF32) {
        d.error("scale-input-d needs kind::f16 or kind::tf32");
      }
      if (args->scale < 0 || args->scale > 15) d.error("scale-input-d must be 0 to 15");
    }
    ++next;
  }
  if (next != d.count()) d.error("too many operands");
  d.out().exec = exec_mma;
}

}  // namespace

void register_tcgen05_mma(IsaTable& table) {
  table.add({"tcgen05.mma", decode_mma, "9.7.16.10.9"});
}

}  // namespace bwgemm::emulator
