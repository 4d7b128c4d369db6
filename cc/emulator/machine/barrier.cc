#include "emulator/machine/barrier.h"

#include <algorithm>

#include "emulator/machine/launch.h"

namespace bwgemm::emulator {
namespace {

uint32_t count_of(uint32_t lanes) { return static_cast<uint32_t>(__builtin_popcount(lanes)); }

}  // namespace

uint32_t NamedBarrier::threads_expected(const Cta& cta) const {
  return expected == kAllThreads ? cta.live_warps() * kWarpSize : expected;
}

void NamedBarrier::count(Warp& warp, uint32_t lanes) {
  uint32_t all = lanes;
  for (size_t i = 0; i < parts_.size(); ++i) {
    if (parts_[i].warp != warp.index()) continue;
    all |= parts_[i].lanes;
    parts_[i] = parts_.back();
    parts_.pop_back();
    break;
  }
  arrived += count_of(lanes);
  if ((warp.live() & ~all) == 0) {
    arrived += kWarpSize - count_of(all);
  } else {
    parts_.push_back({warp.index(), all});
  }
  const Cta& cta = warp.cta();
  if (const uint32_t target = threads_expected(cta); arrived > target) {
    warp.fault("barrier %u: %u threads have arrived, %u were expected", cta.barrier_id(*this),
               arrived, target);
  }
}

void NamedBarrier::count_exited(Warp& warp) {
  const auto is_its = [&](const Part& part) { return part.warp == warp.index(); };
  if (std::none_of(parts_.begin(), parts_.end(), is_its)) return;
  count(warp, 0);
  complete_if_all_arrived(warp.cta());
}

void NamedBarrier::complete_if_all_arrived(Cta& cta) {
  if (arrived == threads_expected(cta)) complete(cta);
}

void NamedBarrier::complete(Cta& cta) {
  arrived = 0;
  expected = 0;
  parts_.clear();
  ++generation;
  last_and = red_and;
  last_or = red_or;
  last_popc = red_popc;
  red_and = kFullMask;
  red_or = red_popc = 0;
  cta.launch().races().complete(history);
  cta.launch().wake(wait_key(this), cta);
}

uint32_t ClusterBarrier::threads_expected(Cluster& cluster) {
  uint32_t threads = 0;
  for (uint32_t rank = 0; rank < cluster.size(); ++rank)
    threads += cluster.cta(rank).live_warps() * kWarpSize;
  return threads;
}

void ClusterBarrier::complete_if_all_arrived(Cluster& cluster) {
  if (arrived < threads_expected(cluster)) return;
  arrived = 0;
  ++generation;
  Launch& launch = cluster.cta(0).launch();
  launch.races().complete(history);
  launch.wake(wait_key(&cluster), cluster);
}

void ClusterArrivals::follow(uint64_t current) {
  if (current == generation) return;
  generation = current;
  complete |= lanes;
  lanes = 0;
}

uint32_t ClusterArrivals::threads(uint32_t live) const {
  return lanes != 0 && (live & ~lanes) == 0 ? kWarpSize : count_of(lanes);
}

void ClusterArrivals::count_exit(Warp& warp, uint32_t live_after) {
  Cluster& cluster = warp.cta().cluster();
  ClusterBarrier& barrier = cluster.barrier;
  follow(barrier.generation);
  const uint32_t before = threads(warp.live());
  const uint32_t after = live_after == 0 ? 0 : threads(live_after);
  barrier.arrived += after - before;
  if (after > before) barrier.complete_if_all_arrived(cluster);
}

}  // namespace bwgemm::emulator
