// The scales of blocks of K: a warp brings them into the pipeline's stages, consumers multiply with
// them.
#pragma once

#include "cutlass/arch/barrier.h"
#include "dense/sm90/tiles.h"
#include "scaled/sm90/config.h"
#include "scaled/sm90/scales.h"

namespace bwgemm::scaled::sm90 {

// Called by a warp.
struct BlockScalesLoader {
  template <class C>
  __device__ __forceinline__ static void InitBarriers(typename C::Shared&) {}  // stages have theirs

  template <class C>
  __device__ __forceinline__ static void Load(const Params& params, typename C::Shared& shared,
                                              uint32_t rank);
};

template <class C>
__device__ __forceinline__ void BlockScalesLoader::Load(const Params& params,
                                                        typename C::Shared& shared, uint32_t rank) {
  using Empty = cutlass::arch::ClusterBarrier;
  constexpr int kWarp = 32;
  constexpr int kP = C::kTileM / kWarp, kQ = C::kOfRows ? (C::kTileN + kWarp - 1) / kWarp : 1;
  const int lane = threadIdx.x % kWarp;
  const Scales &p_scales = params.p_scales, &q_scales = params.q_scales;
  LaunchRing state(params.stages);
  for (dense::sm90::Tiles<C> tiles(params.order, rank); tiles.Valid(); tiles.Advance()) {
    const dense::sm90::Tile& tile = tiles.Current();
    const int first = dense::sm90::FirstKBlock(params, tile);
    uint32_t p[kP], q[kQ];
    CUTE_UNROLL
    for (int i = 0; i < kP; ++i) {
      const uint32_t row = dense::sm90::PRow<C>(tile) + i * kWarp + lane;
      p[i] = FirstScale(p_scales, params.p_rows, row, tile.batch) +
             first * static_cast<uint32_t>(p_scales.k_pitch);
    }
    CUTE_UNROLL
    for (int i = 0; i < kQ; ++i) {
      const uint32_t row =
          dense::sm90::QRow<C>(tile) + (C::kOfRows ? i * kWarp + lane : lane * kScaleBlock);
      q[i] = FirstScale(q_scales, params.q_rows, row, tile.batch) +
             first * static_cast<uint32_t>(q_scales.k_pitch);
    }
    for (int left = dense::sm90::KBlocks(params, tile); left > 0; --left) {
      Empty::wait(&shared.empty[state.index], state.phase ^ 1);
      float* scales = shared.scales[state.index];
      CUTE_UNROLL
      for (int i = 0; i < kP; ++i) {
        CopyScale(scales + i * kWarp + lane, p_scales.data + p[i]);
        p[i] += static_cast<uint32_t>(p_scales.k_pitch);
      }
      CUTE_UNROLL
      for (int i = 0; i < kQ; ++i) {
        const int at = i * kWarp + lane;
        if (at < (C::kOfRows ? C::kTileN : 2)) {
          CopyScale(scales + C::kTileM + at, q_scales.data + q[i]);
        }
        q[i] += static_cast<uint32_t>(q_scales.k_pitch);
      }
      cutlass::arch::cpasync_barrier_arrive_noinc(&shared.full[state.index]);
      state.Advance();
    }
  }
  AwaitCopies();
}

// What a consumer's thread needs of a stage's scales.
template <class C>
struct BlockScales {
  float upper, lower;   // of P's row and of the one 8 below it
  float q[2];           // of Q's squares
  const float* q_rows;  // or where those of its rows are

  __device__ __forceinline__ BlockScales() : upper(0), lower(0), q{0, 0}, q_rows(nullptr) {}

  __device__ __forceinline__ BlockScales(const typename C::Shared& shared, uint32_t stage,
                                         int consumer, int thread) {
    const float* scales = shared.scales[stage];
    const int row =
        C::FirstBlock(consumer) * dense::sm90::kBlock + thread / 32 * 16 + thread % 32 / 4;
    upper = scales[row];
    lower = scales[row + 8];
    if constexpr (C::kOfRows) {
      q_rows = scales + C::kTileM + thread % 4 * 2;
    } else {
      q[0] = scales[C::kTileM];
      if constexpr (C::kTileN > kScaleBlock) q[1] = scales[C::kTileM + 1];
    }
  }

  // border: rows of the tile in its first square.
  template <class Accumulator, class Sums>
  __device__ __forceinline__ void Promote(Accumulator& accumulator, const Sums& sums, int part,
                                          int border) const {
    if constexpr (C::kOfRows) {
      CUTE_UNROLL
      for (int j = 0; j < C::kPart / 8; ++j) {
        const float2 both = *reinterpret_cast<const float2*>(q_rows + j * 8);
        CUTE_UNROLL
        for (int i = 0; i < 4; ++i) {
          accumulator(j * 4 + i) +=
              sums(j * 4 + i) * ((i < 2 ? upper : lower) * (i % 2 == 0 ? both.x : both.y));
        }
      }
    } else {
      CUTE_UNROLL
      for (int chunk = 0; chunk < C::kPart / C::kChunk; ++chunk) {
        const int column = part * C::kPart + chunk * C::kChunk;
        const float scale = C::kTileN > kScaleBlock && column >= border ? q[1] : q[0];
        const float upper_both = upper * scale, lower_both = lower * scale;
        CUTE_UNROLL
        for (int i = 0; i < C::kChunk / 2; ++i) {
          const int at = chunk * C::kChunk / 2 + i;
          accumulator(part * C::kPart / 2 + at) += sums(at) * (i % 4 < 2 ? upper_both : lower_both);
        }
      }
    }
  }
};

}  // namespace bwgemm::scaled::sm90
