// The scales of blocks of K: a warp loads them into the pipeline's stages, consumers multiply by
// them.
#pragma once

#include "cutlass/arch/barrier.h"
#include "scaled/sm90/config.h"
#include "scaled/sm90/scales.h"
#include "sm90/arrive.h"

namespace bwgemm::scaled::sm90 {

// Called by a warp. A stage's scales have barriers of their own: they do not wait for its operands,
// and only this CTA's consumers read them.
struct BlockScalesLoader {
  using Barrier = cutlass::arch::ClusterBarrier;
  static constexpr int kWarp = 32;

  template <class C>
  __device__ __forceinline__ static void InitBarriers(typename C::Shared& shared) {
    for (int i = 0; i < C::kStages; ++i) {
      Barrier::init(&shared.scales_full[i], kWarp);
      Barrier::init(&shared.scales_empty[i], 4 * C::kTileConsumers * bwgemm::sm90::kWarpArrivals);
    }
  }

  template <class C, class LaunchParams>
  __device__ __forceinline__ static void Load(const LaunchParams& params,
                                              typename C::Shared& shared, uint32_t rank) {
    LaunchRing state(params.stages);
    for (dense::sm90::Tiles<C> tiles(params, rank); tiles.Valid(); tiles.Advance()) {
      LoadTile<C>(DenseTile<C>(params, tiles.Current()), shared, state);
    }
    AwaitCopies();
  }

  template <class C, class Ring>
  __device__ __forceinline__ static void LoadTile(const ScaledTile& tile,
                                                  typename C::Shared& shared, Ring& state) {
    constexpr int kP = C::kTileM / kWarp, kQ = C::kOfRows ? (C::kTileN + kWarp - 1) / kWarp : 1;
    const int lane = threadIdx.x % kWarp;
    const Scales &p_scales = tile.p.scales, &q_scales = tile.q.scales;
    const uint32_t first = tile.first_block;
    uint32_t p[kP], q[kQ];
    CUTE_UNROLL
    for (int i = 0; i < kP; ++i) {
      p[i] = tile.p.At(i * kWarp + lane) + first * static_cast<uint32_t>(p_scales.k_pitch);
    }
    CUTE_UNROLL
    for (int i = 0; i < kQ; ++i) {
      q[i] = tile.q.At(C::kOfRows ? i * kWarp + lane : lane * kScaleBlock) +
             first * static_cast<uint32_t>(q_scales.k_pitch);
    }
    for (int left = tile.k_blocks; left > 0; --left) {
      Barrier::wait(&shared.scales_empty[state.index], state.phase ^ 1);
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
      cutlass::arch::cpasync_barrier_arrive_noinc(&shared.scales_full[state.index]);
      state.Advance();
    }
  }
};

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

  // border: rows of the tile in its first square. kPart: columns of `sums`.
  template <int kPart, class Accumulator, class Sums>
  __device__ __forceinline__ void Promote(Accumulator& accumulator, const Sums& sums, int part,
                                          int border) const {
    if constexpr (C::kOfRows) {
      CUTE_UNROLL
      for (int j = 0; j < kPart / 8; ++j) {
        const float2 both = *reinterpret_cast<const float2*>(q_rows + part * kPart + j * 8);
        CUTE_UNROLL
        for (int i = 0; i < 4; ++i) {
          accumulator(part * kPart / 2 + j * 4 + i) +=
              sums(j * 4 + i) * ((i < 2 ? upper : lower) * (i % 2 == 0 ? both.x : both.y));
        }
      }
    } else {
      CUTE_UNROLL
      for (int chunk = 0; chunk < kPart / C::kChunk; ++chunk) {
        const int column = part * kPart + chunk * C::kChunk;
        const float scale = C::kTileN > kScaleBlock && column >= border ? q[1] : q[0];
        const float upper_both = upper * scale, lower_both = lower * scale;
        CUTE_UNROLL
        for (int i = 0; i < C::kChunk / 2; ++i) {
          const int at = chunk * C::kChunk / 2 + i;
          accumulator(part * kPart / 2 + at) += sums(at) * (i % 4 < 2 ? upper_both : lower_both);
        }
      }
    }
  }
};

}  // namespace bwgemm::scaled::sm90
