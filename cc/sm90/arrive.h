// How a warp tells barriers that its lanes are done with a place in shared memory.
#pragma once

#include <cstdint>

#include "cute/arch/util.hpp"

namespace bwgemm::sm90 {

// Arrivals of a warp. The caller has converged it, so what other lanes did comes before the one
// lane's arrival. racecheck, of compute-sanitizer, takes an arrival for that of its lane alone:
// builds with BWGEMM_RACECHECK have every lane arrive.
#ifdef BWGEMM_RACECHECK
constexpr uint32_t kWarpArrivals = 32;
#else
constexpr uint32_t kWarpArrivals = 1;
#endif

// Here only the arrival itself is predicated. If its address were, too, the compiler would compute
// it in ordinary registers, and with it the stage's index and the descriptors of all MMAs.
__device__ __forceinline__ void ArriveForWarp(uint64_t* barrier, uint32_t lane) {
  asm volatile(
      "{\n"
      ".reg .pred elected;\n"
      "setp.lt.u32 elected, %1, %2;\n"
      "@elected mbarrier.arrive.shared::cta.b64 _, [%0];\n"
      "}" ::"r"(cute::cast_smem_ptr_to_uint(barrier)),
      "r"(lane), "n"(kWarpArrivals)
      : "memory");
}

// For one thread, at a barrier that waits for a warp's arrivals: its own one is yet to come.
__device__ __forceinline__ void ArriveForOtherLanes(uint64_t* barrier) {
  asm volatile(
      "mbarrier.arrive.shared::cta.b64 _, [%0], %1;" ::"r"(cute::cast_smem_ptr_to_uint(barrier)),
      "n"(kWarpArrivals - 1)
      : "memory");
}

// The same at the barriers of all CTAs of a cluster, at each by another lane of one instruction: a
// CTA that has all its arrivals may go ahead, and must not find that others' are still to come.
template <int kCluster>
__device__ __forceinline__ void ArriveForWarpAtAll(uint64_t* barrier, uint32_t lane) {
  static_assert((kCluster & (kCluster - 1)) == 0);
  if constexpr (kCluster == 1) {
    ArriveForWarp(barrier, lane);
  } else {
    constexpr uint32_t kRounds = kWarpArrivals == 1 ? 1 : kCluster;
#pragma unroll
    for (uint32_t round = 0; round < kRounds; ++round) {  // each lane at each CTA
      asm volatile(
          "{\n"
          ".reg .pred elected;\n"
          ".reg .b32 remote;\n"
          "setp.lt.u32 elected, %2, %3;\n"
          "mapa.shared::cluster.u32 remote, %0, %1;\n"
          "@elected mbarrier.arrive.shared::cluster.b64 _, [remote];\n"
          "}" ::"r"(cute::cast_smem_ptr_to_uint(barrier)),
          "r"((lane + round) % kCluster), "r"(lane), "n"(kWarpArrivals * kCluster / kRounds)
          : "memory");
    }
  }
}

}  // namespace bwgemm::sm90
