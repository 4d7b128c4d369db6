// The producer: one thread that keeps the pipeline's stages filled by TMA.
#pragma once

#include "cute/arch/copy_sm90_desc.hpp"
#include "cute/arch/copy_sm90_tma.hpp"
#include "grouped/sm90/config.h"
#include "sm90/arrive.h"

namespace bwgemm::grouped::sm90 {

// Where a CTA's part of a tile begins: along P, Q and K, or along the rows that are contracted.
template <class C>
__device__ __forceinline__ int FirstOfP(const grouped::Tile& tile, uint32_t cta_rank) {
  if (C::kRowsOnP) return tile.row;
  return ((C::kSwapAb ? tile.n_tile : tile.m_tile) * C::kCluster + cta_rank) * C::kPRows;
}
template <class C>
__device__ __forceinline__ int FirstOfQ(const grouped::Tile& tile, uint32_t cta_rank) {
  if (C::kRowsOnQ) return tile.row;
  if (C::kKGrouped) return (C::kSwapAb ? tile.m_tile : tile.n_tile) * C::kTileN;
  return (tile.n_tile * C::kCluster + cta_rank) * C::kTileN;
}
template <class C>
__device__ __forceinline__ int FirstOfK(const grouped::Tile& tile) {
  if (!C::kKGrouped) return 0;
  return tile.row / C::kFirstStep * C::kFirstStep;
}
template <class C>
__device__ __forceinline__ int KBlocks(const grouped::Tile& tile, const Params& params) {
  if (!C::kKGrouped) return tile.expert < 0 ? 0 : params.k_blocks;
  if (tile.rows == 0) return 0;
  return (tile.row - FirstOfK<C>(tile) + tile.rows + C::kTileK - 1) / C::kTileK;
}

// The contracted rows of a tile that belong to its group.
template <class C>
struct GroupEnds {
  int k_blocks;  // of the tile
  int head;      // rows ahead of the group in its first block
  int end;       // where the group ends in its last block

  __device__ __forceinline__ GroupEnds(const grouped::Tile& tile, int k_blocks)
      : k_blocks(k_blocks), head(tile.row - FirstOfK<C>(tile)) {
    end = head + tile.rows - (k_blocks - 1) * C::kTileK;
  }

  // Rows [First, Last) of a block are the group's. left: blocks from this one to the last.
  __device__ __forceinline__ int First(int left) const {
    return C::kFirstStep > 1 && left == k_blocks ? head : 0;
  }
  __device__ __forceinline__ int Last(int left) const { return left == 1 ? end : C::kTileK; }
  __device__ __forceinline__ bool Whole(int left) const {
    return First(left) == 0 && Last(left) == C::kTileK;
  }
};

template <class C>
struct Loader {
  using Full = cutlass::arch::ClusterTransactionBarrier;
  using Empty = cutlass::arch::ClusterBarrier;
  const Params& params;
  typename C::Shared& shared;
  uint32_t cta_rank;

  __device__ __forceinline__ void Tile(const grouped::Tile& tile, int k_blocks,
                                       RingState<C::kStages>& state) {
    // A box that crosses its group's end brings rows of the next group. Kernels of `rows` compute
    // results of them that are not stored; kernels of `contract` zero them (trimmer.h). Boxes
    // without any row of the group are not loaded.
    const int p0 = FirstOfP<C>(tile, cta_rank), q0 = FirstOfQ<C>(tile, cta_rank);
    const int q_boxes = C::kRowsOnQ ? (tile.rows + C::kQBox - 1) / C::kQBox : C::kQBoxes;
    const int p_matrix = tile.batch * params.p_batch + tile.expert * params.p_expert;
    const int q_matrix = tile.batch * params.q_batch + tile.expert * params.q_expert;
    const uint32_t bytes = C::kPBytes + q_boxes * (C::kQBox * kRowBytes);
    const GroupEnds<C> ends(tile, k_blocks);

    for (int block = 0; block < k_blocks; ++block) {
      const int k0 = FirstOfK<C>(tile) + block * C::kTileK;
      Empty::wait(&shared.empty[state.index], state.phase ^ 1);
      uint64_t* full = Expect(ends, k_blocks - block, state.index, bytes);
      using P = typename C::P;
      for (int i = kSharesP ? cta_rank : 0; i < P::kBoxes; i += kSharesP ? C::kCluster : 1) {
        Box<C::kPKMajor, kSharesP>(params.p, kPHint, full, shared.p[state.index] + i * P::kBoxBytes,
                                   k0 + i / P::kRowBoxes * P::kBoxK,
                                   p0 + i % P::kRowBoxes * BetweenBoxes(), p_matrix);
      }
      for (int i = kSharesQ ? cta_rank : 0; i < q_boxes; i += kSharesQ ? C::kCluster : 1) {
        Box<C::kQKMajor, kSharesQ>(params.q, kQHint, full,
                                   shared.q[state.index] + i * C::kQBox * kRowBytes, k0,
                                   q0 + i * C::kQBox, q_matrix);
      }
      state.Advance();
    }
  }

  // The barrier that a block's bytes arrive at. left: as of GroupEnds.
  __device__ __forceinline__ uint64_t* Expect(const GroupEnds<C>& ends, int left, uint32_t stage,
                                              uint32_t bytes) const {
    uint64_t* full = &shared.full[stage];
    if constexpr (C::kKGrouped) {
      if (!ends.Whole(left)) {
        full = &shared.untrimmed[stage];
      } else if constexpr (bwgemm::sm90::kWarpArrivals > 1) {
        bwgemm::sm90::ArriveForOtherLanes(full);
      }
    }
    Full::arrive_and_expect_tx(full, bytes);
    return full;
  }

  // From a box of P to the next: the other matrix is behind the first one's columns.
  __device__ __forceinline__ int BetweenBoxes() const {
    return C::kGated ? params.n : C::P::kBoxRows;
  }

  // Each CTA of a cluster loads half of what they share, into both.
  static constexpr bool kSharesP = C::kCluster == 2 && C::kRowsOnP;
  static constexpr bool kSharesQ = C::kCluster == 2 && !C::kRowsOnP;

  static constexpr uint64_t kEvictNormal =
      static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_NORMAL);
  // L2 keeps the rows of A longest: every tile along N reads a group's rows again, while most
  // weights are read by one tile.
  static constexpr uint64_t kRowsHint = static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_LAST);
  static constexpr uint64_t kPHint = C::kRowsOnP ? kRowsHint : kEvictNormal;
  static constexpr uint64_t kQHint = C::kRowsOnQ ? kRowsHint : kEvictNormal;

  template <bool kKMajor, bool kMulticast>
  __device__ __forceinline__ void Box(const CUtensorMap& map, uint64_t hint, uint64_t* full,
                                      void* to, int k, int mn, int matrix) {
    const int inner = kKMajor ? k : mn, outer = kKMajor ? mn : k;
    if constexpr (kMulticast) {
      cute::SM90_TMA_LOAD_MULTICAST_3D::copy(&map, full, /*multicast_mask=*/0b11, hint, to, inner,
                                             outer, matrix);
    } else {
      cute::SM90_TMA_LOAD_3D::copy(&map, full, hint, to, inner, outer, matrix);
    }
  }
};

}  // namespace bwgemm::grouped::sm90
