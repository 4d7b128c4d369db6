// The main loop of kernels that scale and add sums of 128 products in f32: the accumulators of FP8
// MMAs keep 14 bits, and scales change along K.
#pragma once

#include "cute/algorithm/clear.hpp"
#include "dense/sm90/tiles.h"
#include "scaled/sm90/config.h"
#include "scaled/sm90/scales.h"
#include "sm90/mma.h"

namespace bwgemm::scaled::sm90 {

template <class C>
struct PromotingMma {
  using Base = bwgemm::sm90::Mma<C>;
  using Sums = typename C::template Accumulator<C::kPart>;
  static constexpr bool kOfRows = C::kScaleUse == ScaleUse::kRows;
  const Params& params;
  Base mma;

  // While one consumer promotes, the other's MMAs run.
  template <class Accumulator>
  __device__ __forceinline__ void Tile(Accumulator& accumulator, const dense::sm90::Tile& tile,
                                       int k_blocks, LaunchRing& state) {
    using Multiply = typename C::template Multiply<C::kPart>;
    const typename C::DescriptorP p(mma.shared.p);
    const typename C::DescriptorPart q(mma.shared.q);
    const int lane = mma.thread % 32;
    const uint32_t row = dense::sm90::PRow<C>(tile) +
                         C::FirstBlock(mma.consumer) * dense::sm90::kBlock + mma.thread / 32 * 16 +
                         lane / 4;
    const Scales &p_scales = params.p_scales, &q_scales = params.q_scales;
    uint32_t upper = FirstScale(p_scales, params.p_rows, row, tile.batch);
    uint32_t lower = FirstScale(p_scales, params.p_rows, row + 8, tile.batch);
    const uint32_t column = dense::sm90::QRow<C>(tile) + (kOfRows ? lane % 4 * 2 : 0);
    uint32_t q_first = 0, q_step = 0;  // this block's scale of the first part; to the next part
    if constexpr (kOfRows) {
      q_first = tile.batch * static_cast<uint32_t>(q_scales.batch_pitch);
    } else {
      q_first = FirstScale(q_scales, params.q_rows, column, tile.batch);
      q_step = FirstScale(q_scales, params.q_rows, column + C::kPart, tile.batch) - q_first;
    }

    cute::clear(accumulator);
    Sums sums;  // one for all, so that it stays in the same registers
    float next_upper = LoadScale(p_scales.data + upper),
          next_lower = LoadScale(p_scales.data + lower);
    CUTE_NO_UNROLL
    for (int left = k_blocks; left > 0; --left) {
      const float upper_scale = next_upper, lower_scale = next_lower;
      if (left > 1) {
        upper += static_cast<uint32_t>(p_scales.k_pitch);
        lower += static_cast<uint32_t>(p_scales.k_pitch);
      }
      next_upper = LoadScale(p_scales.data + upper);
      next_lower = LoadScale(p_scales.data + lower);
      Base::Full::wait(&mma.shared.full[state.index], state.phase);
      CUTE_UNROLL
      for (int part = 0; part < C::kParts; ++part) {
        bwgemm::sm90::FenceResults(sums);
        bwgemm::sm90::ArriveWarpgroup();
        CUTE_UNROLL
        for (int k = 0; k < C::kTileK; k += Multiply::kDepth) {
          Multiply::Issue(p.At(state.index * C::kPBlocks + C::FirstBlock(mma.consumer), k),
                          q.At(state.index * C::kParts + part, k), sums(cute::_, 0), k > 0);
        }
        bwgemm::sm90::CommitBatch();
        const int first = part * C::kPart / 2;
        if constexpr (kOfRows) {
          float2 scales[C::kPart / 8];
          LoadRows(scales, column + part * C::kPart, q_first);
          Await(sums, part, state.index);
          CUTE_UNROLL
          for (int i = 0; i < C::kPart / 2; ++i) {
            const float q_scale = i % 2 == 0 ? scales[i / 4].x : scales[i / 4].y;
            accumulator(first + i) += sums(i) * ((i % 4 < 2 ? upper_scale : lower_scale) * q_scale);
          }
        } else {
          const float q_scale = LoadScale(q_scales.data + q_first + part * q_step);
          const float upper_both = upper_scale * q_scale, lower_both = lower_scale * q_scale;
          Await(sums, part, state.index);
          CUTE_UNROLL
          for (int i = 0; i < C::kPart / 2; ++i) {
            accumulator(first + i) += sums(i) * (i % 4 < 2 ? upper_both : lower_both);
          }
        }
      }
      q_first += static_cast<uint32_t>(q_scales.k_pitch);
      state.Advance();
    }
  }

 private:
  __device__ __forceinline__ void Await(Sums& sums, int part, uint32_t stage) {
    bwgemm::sm90::AwaitBatches<0>();
    bwgemm::sm90::FenceResults(sums);
    if (part == C::kParts - 1) mma.Release(stage);
  }

  // Those of the two rows of Q that the thread has results of, for every 8 rows from `column` on.
  template <class RowScales>
  __device__ __forceinline__ void LoadRows(RowScales& scales, uint32_t column, uint32_t first) {
    const float* data = params.q_scales.data + first;
    const uint32_t rows = params.q_rows;
    CUTE_UNROLL
    for (int j = 0; j < C::kPart / 8; ++j) {
      const uint32_t at = column + j * 8;
      if constexpr (C::kSwapAb) {  // rows of A: any number
        scales[j] = {LoadScale(data + min(at, rows - 1)), LoadScale(data + min(at + 1, rows - 1))};
      } else {  // columns of D, whose alignment makes them even
        scales[j] = LoadScalePair(data + min(at, rows - 2));
      }
    }
  }
};

}  // namespace bwgemm::scaled::sm90
