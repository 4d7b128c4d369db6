// How the warps of a CTA read the tiles that its scheduler hands out.
#pragma once

#include "core/ring.h"
#include "cutlass/arch/barrier.h"
#include "grouped/sm90/config.h"
#include "sm90/arrive.h"

namespace bwgemm::grouped::sm90 {

// A place in the ring, for those who read it.
template <class C>
struct RingReader {
  typename C::Shared& shared;
  // Number of tiles read. Where registers are short, all phases are computed from it; elsewhere,
  // that spills more registers than keeping the phases.
  uint32_t count = 0;
  RingState<kRing> state{};

  // Waits for the next tile. It stays in the ring until Release.
  __device__ __forceinline__ const grouped::Tile& Await() {
    const uint32_t phase = C::kFewRegisters ? count / kRing & 1 : state.phase;
    cutlass::arch::ClusterBarrier::wait(&shared.tiles.ring_full[Place()], phase);
    return shared.tiles.ring[Place()];
  }

  // kWholeWarp: all lanes of a warp call it. A wait may have let them diverge, so they converge
  // first; then one of them arrives for all. Otherwise a single thread calls it.
  template <bool kWholeWarp>
  __device__ __forceinline__ void Release() {
    if constexpr (kWholeWarp) __syncwarp();
    if constexpr (kWholeWarp) {
      bwgemm::sm90::ArriveForWarp(&shared.tiles.ring_empty[Place()], threadIdx.x % 32);
    } else {
      cutlass::arch::ClusterBarrier::arrive(&shared.tiles.ring_empty[Place()]);
    }
    if constexpr (C::kFewRegisters) {
      ++count;
    } else {
      state.Advance();
    }
  }

  template <bool kWholeWarp>
  __device__ __forceinline__ grouped::Tile Next() {
    const grouped::Tile tile = Await();
    Release<kWholeWarp>();
    return tile;
  }

 private:
  __device__ __forceinline__ uint32_t Place() const {
    return C::kFewRegisters ? count % kRing : state.index;
  }
};

}  // namespace bwgemm::grouped::sm90
