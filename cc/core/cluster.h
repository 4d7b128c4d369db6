// The barrier of all threads of a cluster.
#pragma once

#include "cute/arch/cluster_sm90.hpp"

namespace bwgemm {

// What is written before it is seen after it, in all CTAs. Its instructions are of the aligned
// kind, which a warp must execute as one, but warps come here from branches of single threads.
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

// The first barrier of a kernel, between one thread's barrier inits, which fence_barrier_init has
// released, and their use: orders nothing else. The compiler knows that the cluster may be one CTA.
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
