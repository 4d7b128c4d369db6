// The scales of one block of K for a thread's results, and where they are in memory.
#pragma once

#include "dense/sm90/tiles.h"
#include "scaled/sm90/config.h"
#include "scaled/sm90/scales.h"

namespace bwgemm::scaled::sm90 {

// One scale for 128 rows of Q: a tile has rows of two such blocks at most, and the border between
// them is a multiple of kChunk rows.
template <class C>
struct SquareScales {
  float upper, lower;  // of P's row and of the one 8 below it
  float q[2];

  template <class Accumulator, class Sums, class Reader>
  __device__ __forceinline__ void Promote(Accumulator& accumulator, const Sums& sums, int part,
                                          const Reader& reader) const {
    constexpr int kChunks = C::kPart / C::kChunk;
    CUTE_UNROLL
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      const int column = part * C::kPart + chunk * C::kChunk;
      const float scale = q[reader.IsSecond(column)];
      const float upper_both = upper * scale, lower_both = lower * scale;
      CUTE_UNROLL
      for (int i = 0; i < C::kChunk / 2; ++i) {
        const int at = chunk * C::kChunk / 2 + i;
        accumulator(part * C::kPart / 2 + at) += sums(at) * (i % 4 < 2 ? upper_both : lower_both);
      }
    }
  }
};

// A scale for each row of Q.
template <class C>
struct RowScales {
  float upper, lower;
  float2 q[C::kPart / 8];  // of the two rows that the thread has results of, for every 8 rows

  template <class Accumulator, class Sums, class Reader>
  __device__ __forceinline__ void Promote(Accumulator& accumulator, const Sums& sums, int part,
                                          const Reader&) const {
    CUTE_UNROLL
    for (int i = 0; i < C::kPart / 2; ++i) {
      const float scale = i % 2 == 0 ? q[i / 4].x : q[i / 4].y;
      accumulator(part * C::kPart / 2 + i) += sums(i) * ((i % 4 < 2 ? upper : lower) * scale);
    }
  }
};

template <class C>
using BlockScales =
    std::conditional_t<C::kScaleUse == ScaleUse::kRows, RowScales<C>, SquareScales<C>>;

template <class C>
struct ScaleReader {
  static constexpr bool kOfRows = C::kScaleUse == ScaleUse::kRows;
  const Params& params;
  uint32_t upper, lower;  // this block's, in P's scales
  uint32_t q;             // this block's of the tile's first row, in Q's scales
  uint32_t q_step;        // from there to those of the tile's second square
  uint32_t column;        // of the thread's first result
  int border;             // rows of the tile in its first square

  __device__ __forceinline__ ScaleReader(const Params& params, const dense::sm90::Tile& tile,
                                         int consumer, int thread)
      : params(params) {
    const int lane = thread % 32;
    const uint32_t row = dense::sm90::PRow<C>(tile) +
                         C::FirstBlock(consumer) * dense::sm90::kBlock + thread / 32 * 16 +
                         lane / 4;
    upper = FirstScale(params.p_scales, params.p_rows, row, tile.batch);
    lower = FirstScale(params.p_scales, params.p_rows, row + 8, tile.batch);
    column = dense::sm90::QRow<C>(tile) + (kOfRows ? lane % 4 * 2 : 0);
    if constexpr (kOfRows) {
      q = FirstScale(params.q_scales, params.q_rows, 0, tile.batch);
    } else {
      border = kScaleBlock - static_cast<int>(column % kScaleBlock);
      q = FirstScale(params.q_scales, params.q_rows, column, tile.batch);
      q_step = FirstScale(params.q_scales, params.q_rows, column + border, tile.batch) - q;
    }
    const uint32_t first = dense::sm90::FirstKBlock(params, tile);
    upper += first * static_cast<uint32_t>(params.p_scales.k_pitch);
    lower += first * static_cast<uint32_t>(params.p_scales.k_pitch);
    q += first * static_cast<uint32_t>(params.q_scales.k_pitch);
  }

  // Whether a row of the tile, a multiple of kChunk, is in its second square.
  __device__ __forceinline__ bool IsSecond(int row) const {
    if constexpr (C::kTileN <= kScaleBlock) return false;
    if constexpr (C::kTileN % kScaleBlock == 0) return row >= kScaleBlock;
    return row >= border;
  }

  __device__ __forceinline__ BlockScales<C> Load() const {
    BlockScales<C> scales;
    scales.upper = LoadScale(params.p_scales.data + upper);
    scales.lower = LoadScale(params.p_scales.data + lower);
    const float* data = params.q_scales.data + q;
    if constexpr (kOfRows) {
      CUTE_UNROLL
      for (int j = 0; j < C::kPart / 8; ++j) {
        const uint32_t at = column + j * 8;
        scales.q[j] = LoadRowPair<C>(data, at, params.q_rows);
      }
    } else {
      scales.q[0] = LoadScale(data);
      if constexpr (C::kTileN > kScaleBlock) scales.q[1] = LoadScale(data + q_step);
    }
    return scales;
  }

  // To the next block of K, if there is one.
  __device__ __forceinline__ void Advance(bool more) {
    upper += more ? static_cast<uint32_t>(params.p_scales.k_pitch) : 0;
    lower += more ? static_cast<uint32_t>(params.p_scales.k_pitch) : 0;
    q += more ? static_cast<uint32_t>(params.q_scales.k_pitch) : 0;
  }
};

}  // namespace bwgemm::scaled::sm90
