// The producer: one thread that keeps the pipeline's stages filled by TMA.
#pragma once

#include "cute/arch/copy_sm90_desc.hpp"
#include "cute/arch/copy_sm90_tma.hpp"
#include "grouped/sm90/config.h"
#include "grouped/sm90/pipeline.h"

namespace bwgemm::grouped::sm90 {

constexpr uint64_t kEvictNormal = static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_NORMAL);

template <class C>
struct Loader {
  using Full = cutlass::arch::ClusterTransactionBarrier;
  using Empty = cutlass::arch::ClusterBarrier;
  const Params& params;
  typename C::Shared& shared;
  uint32_t cta_rank;

  __device__ __forceinline__ void Tile(const grouped::Tile& tile, int k_blocks,
                                       PipelineState<C::kStages>& state) {
    // The side of the ragged rows starts at the group's first row. A box that runs past the group's
    // end brings rows of its neighbour: they make results that are not stored. Boxes without any
    // row of the group stay out.
    const int row_blocks = (tile.rows + kBlock - 1) / kBlock;
    const int n0 = (tile.n_tile * C::kCluster + cta_rank) * (C::kSwapAb ? C::kTileM : C::kTileN);
    const int p_matrix = tile.batch * params.p_batch + tile.expert * params.p_expert;
    const int q_matrix = tile.batch * params.q_batch + tile.expert * params.q_expert;
    const int p0 = C::kContract ? tile.m_tile * C::kTileM : C::kSwapAb ? n0 : tile.row;
    const int q0 = !C::kContract && C::kSwapAb ? tile.row : n0;
    const int p_blocks = !C::kContract && !C::kSwapAb ? row_blocks : C::kPBlocks;
    const int q_boxes = !C::kContract && C::kSwapAb && C::kQBoxes > 1 ? row_blocks : C::kQBoxes;
    const uint32_t bytes = p_blocks * kBlockBytes + q_boxes * (C::kQBox * kRowBytes);

    for (int block = 0; block < k_blocks; ++block) {
      const int k0 = (C::kContract ? tile.row : 0) + block * C::kTileK;
      Empty::wait(&shared.empty[state.index], state.phase ^ 1);
      Full::arrive_and_expect_tx(&shared.full[state.index], bytes);
      uint64_t* full = &shared.full[state.index];
      for (int i = C::kCluster == 2 ? cta_rank : 0; i < p_blocks; i += C::kCluster) {
        Box<C::kPKMajor, C::kCluster == 2>(params.p, full, shared.p[state.index] + i * kBlockBytes,
                                           k0, p0 + i * kBlock, p_matrix);
      }
      for (int i = 0; i < q_boxes; ++i) {
        Box<C::kQKMajor, false>(params.q, full, shared.q[state.index] + i * C::kQBox * kRowBytes,
                                k0, q0 + i * C::kQBox, q_matrix);
      }
      state.Advance();
    }
  }

  template <bool kKMajor, bool kMulticast>
  __device__ __forceinline__ void Box(const CUtensorMap& map, uint64_t* full, void* to, int k,
                                      int mn, int matrix) {
    const int inner = kKMajor ? k : mn, outer = kKMajor ? mn : k;
    if constexpr (kMulticast) {
      cute::SM90_TMA_LOAD_MULTICAST_3D::copy(&map, full, /*multicast_mask=*/0b11, kEvictNormal, to,
                                             inner, outer, matrix);
    } else {
      cute::SM90_TMA_LOAD_3D::copy(&map, full, kEvictNormal, to, inner, outer, matrix);
    }
  }
};

}  // namespace bwgemm::grouped::sm90
