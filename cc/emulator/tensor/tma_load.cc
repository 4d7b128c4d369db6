// cp.async.bulk.tensor from global to shared memory: PTX ISA 9.7.9.27.5.2; and its prefetch.
#include <cstring>

#include "emulator/machine/mbarrier.h"
#include "emulator/tensor/register.h"
#include "emulator/tensor/tma_common.h"

namespace bwgemm::emulator {
namespace {

struct LoadArgs {
  TensorOperand source;
  Address to;
  Address barrier;
  Row cta_mask = kNoRow;
  int cta_group = 1;
};

// Marks the shared memory of a box; rows narrower than the swizzle leave gaps that are not touched.
void for_ranges(const Box& box, uint32_t offset,
                const std::function<void(uint32_t, uint32_t)>& visit) {
  if (box.footprint == box.bytes) {
    visit(offset, box.bytes);
  } else {
    for (const BoxSpan& span : box.spans) visit(span.shared, span.bytes);
  }
}

// Data arrives in up to three pieces, each counted by the barrier at once.
struct LoadOp : AsyncOp {
  TensorMap map;
  Box box;
  Delivery to;
  Stamp record;
  size_t next = 0;

  bool step(Launch& launch) override {
    size_t end = next + 1 + launch.random().below(static_cast<uint32_t>(box.spans.size()));
    if (end >= box.spans.size() || end > box.spans.size() * 9 / 10) end = box.spans.size();
    uint32_t bytes = 0;
    const int fill = map.fill == TensorMapFill::kNan ? 0xff : 0;
    for (; next < end; ++next) {
      const BoxSpan& span = box.spans[next];
      uint8_t* data = to.cta->shared().data(span.shared);
      if (span.inside) {
        std::memcpy(data, global_bytes(launch, origin, span.global, span.bytes, false), span.bytes);
      } else {
        std::memset(data, fill, span.bytes);
      }
      bytes += span.bytes;
    }
    const bool finished = next == box.spans.size();
    if (finished) {
      for_ranges(box, to.offset, [&](uint32_t offset, uint32_t count) {
        to.cta->shared().end_async_write(offset, count, origin.line);
      });
      launch.races().close(record, *to.cta, *to.barrier_cta, to.barrier);
    }
    mbarrier_complete_tx(launch, *to.barrier_cta, to.barrier, bytes, origin);
    return finished;
  }
};

// TMA reads at the map's address when it loads a box that lies outside of the tensor as a whole; on
// an H100 and an H200 the load fails if no memory is there. Stores do not.
void check_base(Warp& warp, const TensorMap& map, const Box& box) {
  const GlobalMemory& memory = warp.launch().memory();
  if (box.bytes_inside != 0 || memory.find(map.address, 1, false) != nullptr) return;
  warp.fault(
      "loads a box that lies outside of the tensor as a whole, and TMA then reads at the tensor "
      "map's address 0x%llx: %s",
      static_cast<unsigned long long>(map.address), memory.describe(map.address).c_str());
}

void load(Warp& warp, const LoadArgs& args, int lane) {
  Launch& launch = warp.launch();
  const TensorMap map = read_tensor_map(warp, args.source, lane);
  const Warp::SharedRef to =
      warp.shared(warp.address(args.to, lane), footprint(args.source, map), 128, true);
  const Warp::SharedRef barrier = warp.shared(warp.address(args.barrier, lane), 8, 8, true);
  const uint32_t cta_mask = args.cta_mask == kNoRow ? 0 : warp.r32(args.cta_mask)[lane];
  const Box box = read_box(warp, args.source, map, lane, to.offset);
  check_base(warp, map, box);
  for (const Delivery& delivery :
       deliveries(warp, to, barrier, args.cta_mask != kNoRow, cta_mask, args.cta_group)) {
    auto op = std::make_unique<LoadOp>();
    op->map = map;
    op->box = box;
    op->to = delivery;
    op->trace_arg = box.bytes;
    Races& races = launch.races();
    if (races.on())
      op->record = races.open(warp, *delivery.cta, *delivery.barrier_cta, delivery.barrier);
    for_ranges(box, delivery.offset, [&](uint32_t offset, uint32_t count) {
      delivery.cta->shared().begin_async_write(launch, offset, count, warp.origin(), op->record);
    });
    note_global(warp, box, op->record, false);
    launch.submit(warp, std::move(op));
  }
  ++launch.stats().tma_loads;
  launch.stats().tma_load_bytes += box.bytes_inside;
  ++launch.warp_stats(warp.origin()).tma;
}

Step exec_load(Warp& warp, const Instr& in, uint32_t mask) {
  const auto& args = *static_cast<const LoadArgs*>(in.aux);
  for_lanes(distinct_lanes(warp, args.source, {args.to, args.barrier}, mask),
            [&](int lane) { load(warp, args, lane); });
  return Step::kNext;
}

}  // namespace

// cp.async.bulk.tensor...global.mbarrier::complete_tx::bytes; the other direction is in
// tma_store.cc.
void decode_tensor_load(Decoder& d) {
  auto* args = d.make_aux<LoadArgs>();
  const std::string_view group = d.mod_one_of({"cta_group::1", "cta_group::2"});
  args->cta_group = group == "cta_group::2" ? 2 : 1;
  d.mod_one_of({"shared::cluster", "shared::cta"});
  d.mod("global");
  if (!d.mod("mbarrier::complete_tx::bytes")) d.error("needs .mbarrier::complete_tx::bytes");
  const bool multicast = d.mod("multicast::cluster");
  const bool hint = d.mod("L2::cache_hint");
  refuse_im2col(d);
  const size_t count = 3 + (multicast ? 1 : 0) + (hint ? 1 : 0);
  d.expect_operands(count, count);
  args->to = d.address(0, ptx::Space::kShared);
  args->source = decode_tensor_operand(d, d.operand(1), "tile::gather4");
  args->barrier = d.address(2, ptx::Space::kShared);
  if (multicast) args->cta_mask = d.src(3, 16);
  if (hint) d.src(count - 1, 64);  // no effect on values
  d.out().exec = exec_load;
}

namespace {

struct PrefetchArgs {
  TensorOperand source;
};

// Only checks its operands: there is no cache to warm.
Step exec_prefetch_box(Warp& warp, const Instr& in, uint32_t mask) {
  const auto& args = *static_cast<const PrefetchArgs*>(in.aux);
  for_lanes(mask, [&](int lane) {
    check_coordinate(warp, args.source, read_tensor_map(warp, args.source, lane), lane);
  });
  return Step::kNext;
}

void decode_prefetch_box(Decoder& d) {
  auto* args = d.make_aux<PrefetchArgs>();
  d.ignore_mods({"L2", "global"});
  const bool hint = d.mod("L2::cache_hint");
  refuse_im2col(d);
  d.expect_operands(hint ? 2 : 1, hint ? 2 : 1);
  args->source = decode_tensor_operand(d, d.operand(0), "tile::gather4");
  if (hint) d.src(1, 64);
  d.out().exec = exec_prefetch_box;
}

}  // namespace

void register_tma_load(IsaTable& table) {
  table.add({"cp.async.bulk.prefetch.tensor", decode_prefetch_box, "9.7.9.27.5.5"});
}

}  // namespace bwgemm::emulator
