// The producer warp: keeps the stages of its CTA filled by TMA.
//
// In a pair both producers wait for their own CTA's stage and load their own halves of P and Q, but
// all bytes are counted by the leader's barrier, because the leader alone issues the MMA.
#pragma once

#include "cute/arch/copy_sm100_tma.hpp"
#include "cute/arch/copy_sm90_desc.hpp"
#include "cute/arch/copy_sm90_tma.hpp"
#include "grouped/sm100/pipeline.h"

namespace bwgemm::grouped::sm100 {

template <class C>
struct Loader {
  const typename C::Params& params;
  typename C::Shared& shared;
  uint32_t cta_rank;

  // One thread.
  __device__ void Load(const Tile& tile, int k_blocks, RingState<C::kStages>& state) const {
    const int p_matrix = tile.batch * params.p_batch + tile.expert * params.p_expert;
    const int q_matrix = tile.batch * params.q_batch + tile.expert * params.q_expert;
    CUTE_NO_UNROLL
    for (int block = 0; block < k_blocks; ++block) {
      Barrier::wait(&shared.empty[state.index], state.phase ^ 1);
      uint64_t* full = &shared.full[state.index];
      if (cta_rank == 0) {
        int bytes = C::kStageBytes;
        if constexpr (C::kReadsScales) bytes += C::ScaleBytes(params);
        TransactionBarrier::arrive_and_expect_tx(full, C::kCtas * bytes);
      }
      if constexpr (C::kReadsScales) {
        C::LoadScales(*this, tile, block, shared.scales[state.index], full);
      }
      uint8_t* p = shared.p[state.index];
      uint8_t* q = shared.q[state.index];
      const int k = block * C::kTileK;
      if constexpr (C::kTrims) {
        const int column = FirstLine(tile) + k;
        Copy3(params.p, full, p, column, tile.m_tile * C::kTileM, p_matrix);
        Copy3(params.q, full, q, column, tile.n_tile * C::kTileN, q_matrix);
      } else if constexpr (C::kKGrouped) {
        LoadGroupRows<kLanes>(params.p, full, p, tile.m_tile * C::kTileM, tile, k, p_matrix);
        LoadGroupRows<C::kQRows>(params.q, full, q, tile.n_tile * C::kTileN, tile, k, q_matrix);
      } else if constexpr (C::kSwapAb) {
        LoadRhs<C::kPKMajor, kLanes>(params.p, full, p, tile.n_tile * C::kTileM, k, p_matrix);
        LoadLhs(params.q, full, q, tile, Width<C>(tile) / C::kCtas, k, q_matrix);
      } else {
        LoadLhs(params.p, full, p, tile, kLanes, k, p_matrix);
        LoadRhs<C::kQKMajor, C::kQRows>(params.q, full, q, tile.n_tile * C::kTileN, k, q_matrix);
      }
      state.Advance();
    }
  }

  // The MMAs arrive at this CTA's barriers from the leader: it must not be gone by then.
  __device__ void Finish(RingState<C::kStages>& state) const {
    CUTE_NO_UNROLL
    for (int i = 0; i < C::kStages; ++i) {
      Barrier::wait(&shared.empty[state.index], state.phase ^ 1);
      state.Advance();
    }
  }

  __device__ static void Copy3(const CUtensorMap& map, uint64_t* full, void* to, int x, int y,
                               int z) {
    using Copy =
        std::conditional_t<C::kCtas == 2, cute::SM100_TMA_2SM_LOAD_3D, cute::SM90_TMA_LOAD_3D>;
    Copy::copy(&map, full, kHint, to, x, y, z);
  }

 private:
  static constexpr uint64_t kHint = static_cast<uint64_t>(cute::TMA::CacheHintSm100::EVICT_NORMAL);

  // rows: this CTA's share of the tile's rows, K-major. The rest of the box is zero.
  __device__ void LoadLhs(const CUtensorMap& map, uint64_t* full, uint8_t* to, const Tile& tile,
                          int share, int k, int matrix) const {
    const int first = static_cast<int>(cta_rank) * share;
    const int valid = Clamp(tile.rows - first, share);
    CopyRows(map, full, to, k, tile.row + first, valid, matrix);
  }

  // rows: this CTA's columns of an expert's matrix.
  template <bool kKMajor, int kRows>
  __device__ void LoadRhs(const CUtensorMap& map, uint64_t* full, uint8_t* to, int column, int k,
                          int matrix) const {
    column += static_cast<int>(cta_rank) * kRows;
    if constexpr (kKMajor) {
      Copy3(map, full, to, k, column, matrix);
    } else {
      CUTE_UNROLL
      for (int i = 0; i < kRows / C::kLine; ++i) {
        Copy3(map, full, to + i * C::kLine * kLineBytes, column + i * C::kLine, k, matrix);
      }
    }
  }

  // contract, K-major: where the lines of the group's columns begin, in what the map counts. The
  // first one and the last one have columns of other groups too.
  __device__ int FirstLine(const Tile& tile) const {
    return tile.row / C::StageElements(params) * C::kTileK;
  }

  // contract, MN-major: a stage of the group's rows; past its end they are zero in both operands,
  // so that what lies there in the tensors, a NaN say, does not count.
  template <int kRows>
  __device__ void LoadGroupRows(const CUtensorMap& map, uint64_t* full, uint8_t* to, int column,
                                const Tile& tile, int k, int matrix) const {
    const int valid = min(tile.rows - k, C::kTileK);
    column += static_cast<int>(cta_rank) * kRows;
    CUTE_UNROLL
    for (int i = 0; i < kRows / C::kLine; ++i) {
      CopyRows(map, full, to + i * C::kLine * kLineBytes, column + i * C::kLine, tile.row + k,
               valid, matrix);
    }
  }

  // `valid` rows through a bounded map (tensor_maps.h).
  __device__ static void CopyRows(const CUtensorMap& map, uint64_t* full, void* to, int column,
                                  int row, int valid, int matrix) {
    using Copy =
        std::conditional_t<C::kCtas == 2, cute::SM100_TMA_2SM_LOAD_5D, cute::SM90_TMA_LOAD_5D>;
    Copy::copy(&map, full, kHint, to, column, kBound - valid, row + valid, int{kBound}, matrix);
  }
};

}  // namespace bwgemm::grouped::sm100
