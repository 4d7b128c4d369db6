// The producer: one thread that keeps the pipeline's stages filled by TMA.
#pragma once

#include "cute/arch/copy_sm90_desc.hpp"
#include "cute/arch/copy_sm90_tma.hpp"
#include "cutlass/arch/barrier.h"
#include "dense/sm90/gated.h"
#include "dense/sm90/tiles.h"

namespace bwgemm::dense::sm90 {

template <class C>
struct Loader {
  using Full = cutlass::arch::ClusterTransactionBarrier;
  using Empty = cutlass::arch::ClusterBarrier;
  const Params& params;
  typename C::Shared& shared;
  uint32_t rank;
  LaunchRing state;

  // AnyTile: a Tile, or a Piece of one (stream_k.h).
  template <class AnyTile>
  __device__ __forceinline__ void LoadTile(const AnyTile& tile) {
    const int p_matrix = params.p_batched ? tile.batch : 0;
    const int q_matrix = params.q_batched ? tile.batch : 0;
    const int first = FirstKBlock(params, tile), end = first + KBlocks(params, tile);
    for (int block = first; block < end; ++block) {
      const int k = block * C::kTileK;
      Empty::wait(&shared.empty[state.index], state.phase ^ 1);
      uint64_t* full = &shared.full[state.index];
      Full::arrive_and_expect_tx(full, params.stage_bytes);
      CUTE_UNROLL
      for (int half = 0; half < C::kPHalves; ++half) {
        constexpr int kBoxes = C::P::kRowBoxes / C::kPHalves;
        Boxes<typename C::P, C::kSharesP, kBoxes>(
            half == 0 ? params.p : OtherP<C>(params), params.p_cache_hint, full,
            shared.p[state.index], k, PRow<C>(tile), params.p_rows, p_matrix, half * kBoxes);
      }
      CUTE_UNROLL
      for (int plane = 0; plane < C::kPlanes; ++plane) {
        Boxes<typename C::Q, C::kSharesQ, C::Q::kRowBoxes>(
            params.q, params.q_cache_hint, full, shared.q[state.index] + plane * C::Q::kBytes, k,
            QRow<C>(tile), params.q_rows, q_matrix + plane * params.q_plane);
      }
      state.Advance();
    }
  }

  // Waits until all CTAs that share the stages have given them back. They arrive at this CTA's
  // barriers, so the CTA must not exit before.
  __device__ __forceinline__ void Finish() {
    for (int i = 0; i < params.stages; ++i) {
      Empty::wait(&shared.empty[state.index], state.phase ^ 1);
      state.Advance();
    }
  }

  // Loads kRowBoxes of the stage's boxes along the rows, from `first` on. The CTAs of a cluster
  // take turns on the boxes that they share: each loads its boxes for all.
  template <class S, bool kShared, int kRowBoxes>
  __device__ __forceinline__ void Boxes(const CUtensorMap& map, uint64_t hint, uint64_t* full,
                                        uint8_t* to, int k, uint32_t row, int rows, int matrix,
                                        int first = 0) {
    CUTE_UNROLL
    for (int j = 0; j < S::kBoxes / S::kRowBoxes * kRowBoxes; ++j) {
      const int i = j / kRowBoxes * S::kRowBoxes + first + j % kRowBoxes;
      const int box_k = k + i / S::kRowBoxes * S::kBoxK;
      const int box_row = S::BoxRow(row, j % kRowBoxes, rows);
      const int inner = S::kKMajor ? box_k : box_row, outer = S::kKMajor ? box_row : box_k;
      if constexpr (!kShared) {
        cute::SM90_TMA_LOAD_3D::copy(&map, full, hint, to + i * S::kBoxBytes, inner, outer, matrix);
      } else if ((S::kBoxes % C::kCluster == 0 ? i : i + state.index) % C::kCluster == rank) {
        constexpr uint16_t kAll = (1 << C::kCluster) - 1;
        cute::SM90_TMA_LOAD_MULTICAST_3D::copy(&map, full, kAll, hint, to + i * S::kBoxBytes, inner,
                                               outer, matrix);
      }
    }
  }
};

}  // namespace bwgemm::dense::sm90
