// The CTA of a persistent SM90 kernel: a producer warpgroup and two that consume what it loads.
#pragma once

#include "cutlass/arch/barrier.h"
#include "sm90/arrive.h"

namespace bwgemm::sm90 {

constexpr int kConsumers = 2;  // warpgroups that issue MMAs
constexpr int kThreads = 128 * (1 + kConsumers);

// One thread's job, ahead of AwaitBarriers. arrivals: that fill a stage, besides the bytes.
template <class C>
__device__ __forceinline__ void InitPipeline(typename C::Shared& shared, uint32_t arrivals = 1) {
  using Barrier = cutlass::arch::ClusterBarrier;
#pragma unroll
  for (int i = 0; i < C::kStages; ++i) {
    Barrier::init(&shared.full[i], arrivals);
    // Every consuming warp.
    Barrier::init(&shared.empty[i], 4 * C::kTileConsumers * C::kCluster * kWarpArrivals);
  }
  for (int i = 0; i < kConsumers; ++i) Barrier::init(&shared.turn[i], 4 * kWarpArrivals);
}

}  // namespace bwgemm::sm90
