// Which of two consumer warpgroups issues MMAs.
#pragma once

#include <cstdint>

#include "cutlass/arch/barrier.h"
#include "sm90/arrive.h"

namespace bwgemm::sm90 {

// Ping-pong kernels take a turn for each tile. There the order matters for correctness: the phase
// of a stage's barrier says whether our block has arrived only if the other consumer has seen all
// blocks before ours arrive. Kernels whose consumers share a tile may take a turn for each batch of
// MMAs, by Take() and Give(). C::Shared has a barrier `turn` for each consumer, at which 4 warps
// arrive.
template <class C>
struct Turn {
  using Barrier = cutlass::arch::ClusterBarrier;
  typename C::Shared& shared;
  int consumer;
  uint32_t phase = consumer == 0;  // the first turn is consumer 0's

  // For a tile.
  __device__ __forceinline__ void Wait() {
    if constexpr (C::kPingpong) Take();
  }
  __device__ __forceinline__ void Pass() {
    if constexpr (C::kPingpong) Give();
  }

  __device__ __forceinline__ void Take() {
    Barrier::wait(&shared.turn[consumer], phase);
    phase ^= 1;
  }

  // Each warp does.
  __device__ __forceinline__ void Give() {
    uint64_t* barrier = &shared.turn[consumer ^ 1];
    if constexpr (C::kPingpong) {
      ArriveForWarp(barrier, threadIdx.x % 32);
    } else if (threadIdx.x % 32 < kWarpArrivals) {  // faster where each batch of MMAs has a turn
      Barrier::arrive(barrier);
    }
  }
};

}  // namespace bwgemm::sm90
