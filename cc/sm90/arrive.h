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

// The same at the barriers of all CTAs of a cluster, each by another lane.
template <int kCluster>
__device__ __forceinline__ void ArriveForWarpAtAll(uint64_t* barrier, uint32_t lane) {
  if constexpr (kCluster == 1) {
    ArriveForWarp(barrier, lane);
  } else {
#pragma unroll
    for (uint32_t cta = 0; cta < kCluster; ++cta) {
      asm volatile(
          "{\n"
          ".reg .pred elected;\n"
          ".reg .b32 remote;\n"
          "setp.lt.u32 elected, %2, %3;\n"
          "mapa.shared::cluster.u32 remote, %0, %1;\n"
          "@elected mbarrier.arrive.shared::cluster.b64 _, [remote];\n"
          "}" ::"r"(cute::cast_smem_ptr_to_uint(barrier)),
          "r"(cta), "r"(lane ^ cta), "n"(kWarpArrivals)
          : "memory");
    }
  }
}

}  // namespace bwgemm::sm90
