// The barrier of all threads of a cluster.
#pragma once

#include "cute/arch/cluster_sm90.hpp"

namespace bwgemm {

// Writes before it are visible after it, in all CTAs of the cluster. Its instructions are of the
// aligned kind, which all lanes of a warp must execute together; warps may come here from a branch
// of a single thread, so their lanes converge first.
__device__ __forceinline__ void SyncCluster() {
  __syncwarp();
  cute::cluster_arrive();
  cute::cluster_wait();
}

// The same where the compiler knows that the cluster may be one CTA.
template <int kCtas>
__device__ __forceinline__ void SyncCluster() {
  if constexpr (kCtas > 1) {
    SyncCluster();
  } else {
    __syncwarp();
    __syncthreads();
  }
}

// The first barrier of a kernel: between one thread's initialisation of mbarriers, which
// fence_barrier_init has released, and their use. It orders nothing else.
template <int kCtas>
__device__ __forceinline__ void AwaitBarriers() {
  __syncwarp();
  if constexpr (kCtas > 1) {
    cute::cluster_arrive_relaxed();
    cute::cluster_wait();
  } else {
    __syncthreads();
  }
}

}  // namespace bwgemm
