// What all warps use: fences, sizes of a tile.
#pragma once

#include "core/ring.h"
#include "cute/arch/cluster_sm90.hpp"
#include "grouped/sm100/config.h"

namespace bwgemm::grouped::sm100 {

using Barrier = cutlass::arch::ClusterBarrier;
using TransactionBarrier = cutlass::arch::ClusterTransactionBarrier;

// The MMA's order relative to barriers (PTX ISA 9.7.16.11): tensor-memory accesses of other threads
// are complete only between these.
__device__ inline void FenceBeforeArrive() {
  asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
}
__device__ inline void FenceAfterWait() {
  asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
}

// k-grouped: elements of the first stage ahead of the group.
template <class C>
__device__ int Ahead(const Tile& tile, const typename C::Params& params) {
  return C::kTrims ? tile.row % C::StageElements(params) : 0;
}

// Stages to contract; none where the result is zero.
template <class C>
__device__ int KBlocks(const Tile& tile, const typename C::Params& params) {
  if constexpr (C::kKGrouped) {
    if (tile.rows == 0) return 0;
    return (Ahead<C>(tile, params) + tile.rows - 1) / C::StageElements(params) + 1;
  } else {
    return tile.expert < 0 ? 0 : params.k_blocks;
  }
}

// Swapped operands: how wide the tile's MMAs are.
template <class C>
__device__ int Width(const Tile& tile) {
  return (tile.rows + C::kWidthStep - 1) / C::kWidthStep * C::kWidthStep;
}

__device__ inline int Clamp(int value, int limit) { return min(max(value, 0), limit); }

}  // namespace bwgemm::grouped::sm100
