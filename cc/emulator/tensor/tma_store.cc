// cp.async.bulk.tensor and cp.reduce.async.bulk.tensor from shared to global memory: PTX ISA
// 9.7.9.27.5.2 and 9.7.9.27.5.3.
#include <cstring>

#include "emulator/tensor/bulk_group.h"
#include "emulator/tensor/bulk_reduce.h"
#include "emulator/tensor/register.h"
#include "emulator/tensor/tma_common.h"

namespace bwgemm::emulator {

void decode_tensor_load(Decoder& decoder);  // tma_load.cc

namespace {

struct StoreArgs {
  TensorOperand to;
  Address from;
  bool reduces = false;
  ReduceOp operation = ReduceOp::kAdd;
};

// First all of shared memory is read, later global memory is written.
struct StoreOp : AsyncOp {
  TensorMap map;
  Box box;
  Cta* cta;
  bool reduces;
  ReduceOp operation;
  BulkMember group;
  bool read = false;
  std::vector<uint8_t> data;

  bool step(Launch& launch) override {
    if (!read) {
      data.reserve(box.bytes);
      for (const BoxSpan& span : box.spans) {
        const uint8_t* from = cta->shared().data(span.shared);
        data.insert(data.end(), from, from + span.bytes);
      }
      read = true;
      group.read_done(launch);
      return false;
    }
    const auto lock = reduces ? launch.lock_memory() : std::unique_lock<std::mutex>();
    size_t at = 0;
    for (const BoxSpan& span : box.spans) {
      if (span.inside) {
        uint8_t* to = global_bytes(launch, origin, span.global, span.bytes, true);
        if (reduces) {
          reduce_bytes(operation, reduce_type(map.type), to, &data[at], span.bytes);
        } else {
          std::memcpy(to, &data[at], span.bytes);
        }
      }
      at += span.bytes;
    }
    group.done(launch);
    return true;
  }
};

void store(Warp& warp, const StoreArgs& args, int lane) {
  Launch& launch = warp.launch();
  auto op = std::make_unique<StoreOp>();
  op->map = read_tensor_map(warp, args.to, lane);
  if (op->map.type == TensorMapType::k16U4Align16B) {
    warp.fault("tensor map of type %s: it is for loads only", type_name(op->map.type));
  }
  const Warp::SharedRef from =
      warp.shared(warp.address(args.from, lane), footprint(args.to, op->map), 128, false);
  op->box = read_box(warp, args.to, op->map, lane, from.offset);
  op->cta = from.cta;
  op->reduces = args.reduces;
  op->operation = args.operation;
  if (args.reduces) {
    const char* problem = reduce_problem(args.operation, reduce_type(op->map.type));
    if (problem != nullptr)
      warp.fault("tensor map of type %s: %s", type_name(op->map.type), problem);
  }
  std::vector<ByteRange> ranges;
  if (op->box.footprint == op->box.bytes) {
    ranges.push_back({from.offset, op->box.bytes});
  } else {
    for (const BoxSpan& span : op->box.spans) ranges.push_back({span.shared, span.bytes});
  }
  tensor_of(warp).bulk[lane].open().read_shared(launch, *from.cta, ranges, warp.origin(),
                                                bulk_reads(warp, lane));
  note_global(warp, op->box, bulk_writes(warp, lane, args.reduces), true);
  op->group = BulkMember::join(warp, lane);
  op->trace_arg = op->box.bytes_inside;
  launch.stats().tma_store_bytes += op->box.bytes_inside;
  ++launch.warp_stats(warp.origin()).tma;
  launch.submit(warp, std::move(op));
}

Step exec_store(Warp& warp, const Instr& in, uint32_t mask) {
  const auto& args = *static_cast<const StoreArgs*>(in.aux);
  for_lanes(distinct_lanes(warp, args.to, {args.from}, mask),
            [&](int lane) { store(warp, args, lane); });
  return Step::kNext;
}

void decode_store(Decoder& d, StoreArgs* args) {
  d.mod("global");
  d.mod("shared::cta");
  if (!d.mod("bulk_group")) d.error("needs .bulk_group");
  const bool hint = d.mod("L2::cache_hint");
  refuse_im2col(d);
  d.expect_operands(hint ? 3 : 2, hint ? 3 : 2);
  args->to = decode_tensor_operand(d, d.operand(0), args->reduces ? "" : "tile::scatter4");
  args->from = d.address(1, ptx::Space::kShared);
  if (hint) d.src(2, 64);
  d.out().exec = exec_store;
}

// The first operand tells the directions apart: stores name the tensor first.
void decode_tensor_copy(Decoder& d) {
  const ptx::Operand& first = d.operand(0);
  if (first.kind == ptx::Operand::Kind::kAddress && first.items.size() == 2) {
    decode_store(d, d.make_aux<StoreArgs>());
  } else {
    decode_tensor_load(d);
  }
}

void decode_tensor_reduce(Decoder& d) {
  auto* args = d.make_aux<StoreArgs>();
  args->reduces = true;
  args->operation = decode_reduce_op(d);
  decode_store(d, args);
}

}  // namespace

void register_tma_store(IsaTable& table) {
  table.add({"cp.async.bulk.tensor", decode_tensor_copy, "9.7.9.27.5.2"});
  table.add({"cp.reduce.async.bulk.tensor", decode_tensor_reduce, "9.7.9.27.5.3"});
}

}  // namespace bwgemm::emulator
