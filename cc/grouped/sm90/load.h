// The producer: one thread that keeps the pipeline's stages filled by TMA.
#pragma once

#include "cute/arch/copy_sm90_desc.hpp"
#include "cute/arch/copy_sm90_tma.hpp"
#include "grouped/sm90/config.h"

namespace bwgemm::grouped::sm90 {

template <class C>
struct Loader {
  using Full = cutlass::arch::ClusterTransactionBarrier;
  using Empty = cutlass::arch::ClusterBarrier;
  const Params& params;
  typename C::Shared& shared;
  uint32_t cta_rank;

  __device__ __forceinline__ void Tile(const grouped::Tile& tile, int k_blocks,
                                       RingState<C::kStages>& state) {
    // A box that runs past its group's end brings rows of the neighbour: `rows` makes results of
    // them that are not stored, `contract` zeroes them (tail.h). Boxes without any row of the group
    // stay out.
    const int column = (tile.n_tile * C::kCluster + cta_rank) * C::kTileM;
    const int p0 = C::kKGrouped ? (tile.m_tile * C::kCluster + cta_rank) * C::kTileM : column;
    const int q0 = C::kKGrouped ? tile.n_tile * C::kTileN : tile.row;
    const int q_boxes = C::kKGrouped ? C::kQBoxes : (tile.rows + C::kQBox - 1) / C::kQBox;
    const int p_matrix = tile.batch * params.p_batch + tile.expert * params.p_expert;
    const int q_matrix = tile.batch * params.q_batch + tile.expert * params.q_expert;
    const uint32_t bytes = C::kPBytes + q_boxes * (C::kQBox * kRowBytes);

    for (int block = 0; block < k_blocks; ++block) {
      const int k0 = (C::kKGrouped ? tile.row : 0) + block * C::kTileK;
      Empty::wait(&shared.empty[state.index], state.phase ^ 1);
      uint64_t* full = &shared.full[state.index];
      Full::arrive_and_expect_tx(full, bytes);
      for (int i = 0; i < C::kPBlocks; ++i) {
        Box<C::kPKMajor, false>(params.p, kEvictNormal, full,
                                shared.p[state.index] + i * kBlockBytes, k0, p0 + i * kBlock,
                                p_matrix);
      }
      for (int i = cta_rank; i < q_boxes; i += C::kCluster) {
        Box<C::kQKMajor, C::kCluster == 2>(params.q, kQHint, full,
                                           shared.q[state.index] + i * C::kQBox * kRowBytes, k0,
                                           q0 + i * C::kQBox, q_matrix);
      }
      state.Advance();
    }
  }

  static constexpr uint64_t kEvictNormal =
      static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_NORMAL);
  // L2 keeps the rows of A longest: every tile along N reads a group's rows again, while most
  // weights are read by one tile.
  static constexpr uint64_t kQHint =
      C::kKGrouped ? kEvictNormal : static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_LAST);

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
