// cp.async.bulk and cp.reduce.async.bulk without tensor maps, bulk groups: PTX ISA 9.7.9.25.4 and
// 9.7.9.27.
#include <cstring>

#include "emulator/machine/mbarrier.h"
#include "emulator/tensor/bulk_group.h"
#include "emulator/tensor/bulk_reduce.h"
#include "emulator/tensor/register.h"
#include "emulator/tensor/tma_common.h"

namespace bwgemm::emulator {
namespace {

struct CopyArgs {
  bool from_global = false;
  bool to_global = false;
  bool reduces = false;
  ReduceOp operation = ReduceOp::kAdd;
  ReduceType type = ReduceType::kNone;
  Address to;
  Address from;
  Row bytes = kNoRow;
  Address barrier;
  Row cta_mask = kNoRow;
};

void combine(bool reduces, ReduceOp operation, ReduceType type, uint8_t* to, const uint8_t* from,
             uint32_t bytes) {
  if (reduces) {
    reduce_bytes(operation, type, to, from, bytes);
  } else {
    std::memcpy(to, from, bytes);
  }
}

// Into shared memory; the barrier counts the bytes.
struct IntoShared : AsyncOp {
  const CopyArgs* args;
  Delivery to;
  uint32_t bytes;
  uint64_t global = 0;    // source, if there
  Cta* source = nullptr;  // else shared memory of this CTA
  uint32_t source_offset = 0;
  Stamp record;

  bool step(Launch& launch) override {
    const uint8_t* from = source != nullptr ? source->shared().data(source_offset)
                                            : global_bytes(launch, origin, global, bytes, false);
    combine(args->reduces, args->operation, args->type, to.cta->shared().data(to.offset), from,
            bytes);
    to.cta->shared().end_async_write(to.offset, bytes, origin.line);
    if (source != nullptr) source->shared().end_async_read(source_offset, bytes, origin.line);
    launch.races().close(record, *to.cta, *to.barrier_cta, to.barrier);
    mbarrier_complete_tx(launch, *to.barrier_cta, to.barrier, bytes, origin);
    return true;
  }
};

// Into global memory; a member of a bulk group.
struct IntoGlobal : AsyncOp {
  const CopyArgs* args;
  Cta* cta;
  uint32_t offset;
  uint64_t global;
  uint32_t bytes;
  BulkMember group;
  std::vector<uint8_t> data;

  bool step(Launch& launch) override {
    if (data.empty()) {
      const uint8_t* from = cta->shared().data(offset);
      data.assign(from, from + bytes);
      group.read_done(launch);
      return false;
    }
    const auto lock = launch.lock_memory();
    combine(args->reduces, args->operation, args->type,
            global_bytes(launch, origin, global, bytes, true), data.data(), bytes);
    group.done(launch);
    return true;
  }
};

void copy(Warp& warp, const CopyArgs& args, int lane) {
  Launch& launch = warp.launch();
  const uint32_t bytes = warp.r32(args.bytes)[lane];
  if (bytes % 16 != 0) warp.fault("size %u is not a multiple of 16", bytes);
  if (bytes == 0) return;
  ++launch.warp_stats(warp.origin()).tma;
  if (args.to_global) {
    const Warp::SharedRef from = warp.shared(warp.address(args.from, lane), bytes, 16, false);
    auto op = std::make_unique<IntoGlobal>();
    op->args = &args;
    op->cta = from.cta;
    op->offset = from.offset;
    op->bytes = bytes;
    op->global = warp.address(args.to, lane);
    warp.global(op->global, bytes, 16, true);
    tensor_of(warp).bulk[lane].open().read_shared(launch, *from.cta, {{from.offset, bytes}},
                                                  warp.origin(), bulk_reads(warp, lane));
    note_global(warp, op->global, bytes, bulk_writes(warp, lane, args.reduces), true);
    op->group = BulkMember::join(warp, lane);
    op->trace_arg = bytes;
    launch.stats().tma_store_bytes += bytes;
    launch.submit(warp, std::move(op));
    return;
  }
  const Warp::SharedRef to = warp.shared(warp.address(args.to, lane), bytes, 16, true);
  const Warp::SharedRef barrier = warp.shared(warp.address(args.barrier, lane), 8, 8, true);
  const uint32_t cta_mask = args.cta_mask == kNoRow ? 0 : warp.r32(args.cta_mask)[lane];
  for (const Delivery& delivery :
       deliveries(warp, to, barrier, args.cta_mask != kNoRow, cta_mask, 1)) {
    auto op = std::make_unique<IntoShared>();
    op->args = &args;
    op->to = delivery;
    op->bytes = bytes;
    op->trace_arg = bytes;
    Races& races = launch.races();
    if (races.on())
      op->record = races.open(warp, *delivery.cta, *delivery.barrier_cta, delivery.barrier);
    if (args.from_global) {
      op->global = warp.address(args.from, lane);
      warp.global(op->global, bytes, 16, false);
      note_global(warp, op->global, bytes, op->record, false);
    } else {
      const Warp::SharedRef from = warp.shared(warp.address(args.from, lane), bytes, 16, false);
      op->source = from.cta;
      op->source_offset = from.offset;
      from.cta->shared().begin_async_read(launch, from.offset, bytes, warp.origin(), op->record);
      if (races.on()) from.cta->history.copied.push_back(op->record);
    }
    // Reductions of several threads may meet in one place: they commute.
    Stamp written = op->record;
    if (args.reduces) written.flags |= kStrong;
    delivery.cta->shared().begin_async_write(launch, delivery.offset, bytes, warp.origin(), written,
                                             args.reduces);
    launch.submit(warp, std::move(op));
  }
  if (args.from_global) {
    ++launch.stats().tma_loads;
    launch.stats().tma_load_bytes += bytes;
  }
}

Step exec_copy(Warp& warp, const Instr& in, uint32_t mask) {
  for_lanes(mask, [&](int lane) { copy(warp, *static_cast<const CopyArgs*>(in.aux), lane); });
  return Step::kNext;
}

ReduceType decode_reduce_type(Decoder& d) {
  static constexpr std::string_view kNames[10] = {"u32",  "s32", "u64", "s64", "f16",
                                                  "bf16", "f32", "f64", "b32", "b64"};
  for (int i = 0; i < 10; ++i) {
    if (d.mod(kNames[i])) return static_cast<ReduceType>(i);
  }
  d.error("needs a type");
}

void decode_copy(Decoder& d, CopyArgs* args) {
  // Destination and source spaces, in the order of the mnemonic.
  const std::string_view first = d.next_mod();
  args->to_global = first == "global";
  if (d.mod("global")) args->from_global = !args->to_global;
  d.ignore_mods({"shared::cluster", "shared::cta"});
  const bool multicast = d.mod("multicast::cluster");
  const bool hint = d.mod("L2::cache_hint");
  if (d.mod("cp_mask")) d.unsupported(".cp_mask is not implemented");
  if (args->to_global ? !d.mod("bulk_group") : !d.mod("mbarrier::complete_tx::bytes")) {
    d.error(args->to_global ? "needs .bulk_group" : "needs .mbarrier::complete_tx::bytes");
  }
  if (args->reduces) {
    args->operation = decode_reduce_op(d);
    d.mod("noftz");
    args->type = decode_reduce_type(d);
    const char* problem = reduce_problem(args->operation, args->type);
    if (problem != nullptr) d.error(problem);
  }
  const size_t count = (args->to_global ? 3 : 4) + (multicast ? 1 : 0) + (hint ? 1 : 0);
  d.expect_operands(count, count);
  args->to = d.address(0, args->to_global ? ptx::Space::kGlobal : ptx::Space::kShared);
  args->from = d.address(1, args->from_global ? ptx::Space::kGlobal : ptx::Space::kShared);
  args->bytes = d.src(2, 32);
  if (!args->to_global) args->barrier = d.address(3, ptx::Space::kShared);
  if (multicast) args->cta_mask = d.src(4, 16);
  if (hint) d.src(count - 1, 64);
  d.out().exec = exec_copy;
}

void decode_bulk(Decoder& d) { decode_copy(d, d.make_aux<CopyArgs>()); }

void decode_bulk_reduce(Decoder& d) {
  auto* args = d.make_aux<CopyArgs>();
  args->reduces = true;
  decode_copy(d, args);
}

Step exec_prefetch(Warp& warp, const Instr& in, uint32_t mask) {
  for_lanes(mask, [&](int lane) {
    const uint32_t bytes = warp.r32(in.op[0])[lane];
    if (bytes % 16 != 0) warp.fault("size %u is not a multiple of 16", bytes);
    if (bytes != 0) warp.global(warp.address(in.addr, lane), bytes, 16, false);
  });
  return Step::kNext;
}

void decode_prefetch(Decoder& d) {
  d.ignore_mods({"L2", "global"});
  const bool hint = d.mod("L2::cache_hint");
  d.expect_operands(hint ? 3 : 2, hint ? 3 : 2);
  d.out().addr = d.address(0, ptx::Space::kGlobal);
  d.out().op[0] = d.src(1, 32);
  if (hint) d.src(2, 64);
  d.out().exec = exec_prefetch;
}

Step exec_commit(Warp& warp, const Instr&, uint32_t mask) {
  for_lanes(mask, [&](int lane) {
    warp.bulk_groups(lane).commit();
    tensor_of(warp).bulk[lane].commit();
    ++tensor_of(warp).bulk_commits[lane];
  });
  return Step::kNext;
}

void decode_commit(Decoder& d) {
  d.expect_operands(0, 0);
  d.out().exec = exec_commit;
}

std::string describe_wait(const Warp&, const WaitInfo& info) {
  return format("cp.async.bulk.wait_group%s %llu: %llu groups pending", info.c ? ".read" : "",
                static_cast<unsigned long long>(info.a), static_cast<unsigned long long>(info.b));
}

Step exec_wait(Warp& warp, const Instr& in, uint32_t mask) {
  const uint32_t allowed = static_cast<uint32_t>(in.imm);
  const bool reads = in.sub != 0;
  uint32_t pending = 0;
  for_lanes(mask,
            [&](int lane) { pending = std::max(pending, warp.bulk_groups(lane).pending(reads)); });
  if (pending > allowed) {
    WaitInfo info;
    info.describe = describe_wait;
    info.name = "cp.async.bulk.wait_group";
    info.cta = &warp.cta();
    info.a = allowed;
    info.b = pending;
    info.c = reads;
    return warp.block(wait_key(&warp, kBulkKey), info);
  }
  for_lanes(mask, [&](int lane) {
    tensor_of(warp).bulk[lane].release_all_but(allowed);
    learn_bulk(warp, lane, allowed, reads);
  });
  return Step::kNext;
}

void decode_wait(Decoder& d) {
  d.expect_operands(1, 1);
  d.out().sub = d.mod("read");
  d.out().imm = d.int_constant(0);
  if (d.out().imm < 0) d.error("the number of groups must not be negative");
  d.out().exec = exec_wait;
}

}  // namespace

void register_bulk_copy(IsaTable& table) {
  table.add({"cp.async.bulk", decode_bulk, "9.7.9.27.4.1"});
  table.add({"cp.reduce.async.bulk", decode_bulk_reduce, "9.7.9.27.4.2"});
  table.add({"cp.async.bulk.prefetch", decode_prefetch, "9.7.9.27.4.3"});
  table.add({"cp.async.bulk.commit_group", decode_commit, "9.7.9.27.2.1"});
  table.add({"cp.async.bulk.wait_group", decode_wait, "9.7.9.27.2.2"});
}

}  // namespace bwgemm::emulator
