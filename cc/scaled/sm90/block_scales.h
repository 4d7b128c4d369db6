// The scales of blocks of K: a warp loads them into the pipeline's stages, consumers multiply by
// them.
#pragma once

#include "cutlass/arch/barrier.h"
#include "scaled/sm90/config.h"
#include "scaled/sm90/scales.h"

namespace bwgemm::scaled::sm90 {

// Called by a warp.
struct BlockScalesLoader {
  static constexpr int kWarp = 32;

  template <class C>
  __device__ __forceinline__ static void InitBarriers(typename C::Shared&) {}  // stages have theirs

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
    if constexpr (C::kOfRows) {
      LoadRows<C>(tile, shared, state);
    } else {
      CopySquares<C>(tile, shared, state);
    }
  }

 private:
  using Empty = cutlass::arch::ClusterBarrier;

  template <class C, class Ring>
  __device__ __forceinline__ static void CopySquares(const ScaledTile& tile,
                                                     typename C::Shared& shared, Ring& state) {
    constexpr int kP = C::kTileM / kWarp;
    const int lane = threadIdx.x % kWarp;
    const Scales &p_scales = tile.p.scales, &q_scales = tile.q.scales;
    const uint32_t first = tile.first_block;
    uint32_t p[kP];
    CUTE_UNROLL
    for (int i = 0; i < kP; ++i) {
      p[i] = tile.p.At(i * kWarp + lane) + first * static_cast<uint32_t>(p_scales.k_pitch);
    }
    uint32_t q = tile.q.At(lane * kScaleBlock) + first * static_cast<uint32_t>(q_scales.k_pitch);
    for (int left = tile.k_blocks; left > 0; --left) {
      Empty::wait(&shared.empty[state.index], state.phase ^ 1);
      float* scales = shared.scales[state.index];
      CUTE_UNROLL
      for (int i = 0; i < kP; ++i) {
        CopyScale(scales + i * kWarp + lane, p_scales.data + p[i]);
        p[i] += static_cast<uint32_t>(p_scales.k_pitch);
      }
      if (lane < 2) CopyScale(scales + C::kTileM + lane, q_scales.data + q);
      q += static_cast<uint32_t>(q_scales.k_pitch);
      cutlass::arch::cpasync_barrier_arrive_noinc(&shared.full[state.index]);
      state.Advance();
    }
  }

  // Scales of Q through registers, into which the next block's are loaded while the stage is waited
  // for. Two neighbours become a word of two bf16 where that loses nothing: each is read by 32
  // threads of every warp, and what shared memory returns bounds the main loop.
  template <class C, class Ring>
  __device__ __forceinline__ static void LoadRows(const ScaledTile& tile,
                                                  typename C::Shared& shared, Ring& state) {
    constexpr int kP = C::kTileM / kWarp, kPairs = C::kTileN / 2;
    constexpr int kQ = (kPairs + kWarp - 1) / kWarp;
    const int lane = threadIdx.x % kWarp;
    const Scales &p_scales = tile.p.scales, &q_scales = tile.q.scales;
    const float* p_data = p_scales.data + tile.first_block * p_scales.k_pitch;
    const float* q_data = q_scales.data + tile.first_block * q_scales.k_pitch;
    float q[2 * kQ];
    auto load = [&] {
      CUTE_UNROLL
      for (int i = 0; i < 2 * kQ; ++i) {
        q[i] = __ldg(q_data + tile.q.At((i / 2 * kWarp + lane) * 2 + i % 2));
      }
      q_data += q_scales.k_pitch;
    };
    if (tile.k_blocks > 0) load();
    for (int left = tile.k_blocks; left > 0; --left) {
      uint32_t lost = 0;
      CUTE_UNROLL
      for (int i = 0; i < 2 * kQ; ++i) lost |= __float_as_uint(q[i]);
      const bool exact = __all_sync(0xFFFFFFFFu, (lost & 0xFFFFu) == 0);
      Empty::wait(&shared.empty[state.index], state.phase ^ 1);
      float* to = shared.scales[state.index];
      CUTE_UNROLL
      for (int i = 0; i < kP; ++i) {
        CopyScale(to + i * kWarp + lane, p_data + tile.p.At(i * kWarp + lane));
      }
      p_data += p_scales.k_pitch;
      cutlass::arch::cpasync_barrier_arrive_noinc(&shared.full[state.index]);
      CUTE_UNROLL
      for (int i = 0; i < kQ; ++i) {
        const int pair = i * kWarp + lane;
        if (kPairs % kWarp != 0 && pair >= kPairs) continue;
        if (exact) {
          reinterpret_cast<uint32_t*>(to + C::kTileM)[pair] =
              __byte_perm(__float_as_uint(q[2 * i]), __float_as_uint(q[2 * i + 1]), 0x7632);
        } else {
          reinterpret_cast<float2*>(to + C::kTileM)[pair] = make_float2(q[2 * i], q[2 * i + 1]);
        }
      }
      if (lane == 0) to[C::kTileM + C::kTileN] = exact ? 1.0f : 0.0f;
      Empty::arrive(&shared.full[state.index]);
      state.Advance();
      if (left > 1) load();
    }
  }
};

// What a consumer's thread needs of a stage's scales.
template <class C>
struct BlockScales {
  float upper, lower;   // of P's row and of the one 8 below it
  float q[2];           // of Q's squares
  const float* q_rows;  // or where those of its rows are
  bool pairs;           // two of them in a word

  __device__ __forceinline__ BlockScales()
      : upper(0), lower(0), q{0, 0}, q_rows(nullptr), pairs(false) {}

  __device__ __forceinline__ BlockScales(const typename C::Shared& shared, uint32_t stage,
                                         int consumer, int thread) {
    const float* scales = shared.scales[stage];
    const int row =
        C::FirstBlock(consumer) * dense::sm90::kBlock + thread / 32 * 16 + thread % 32 / 4;
    upper = scales[row];
    lower = scales[row + 8];
    if constexpr (C::kOfRows) {
      pairs = scales[C::kTileM + C::kTileN] != 0.0f;
      q_rows = scales + C::kTileM + thread % 4 * (pairs ? 1 : 2);
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
      if (pairs) {
        const auto* words = reinterpret_cast<const uint32_t*>(q_rows) + part * kPart / 2;
        PromoteRows<kPart, true>(accumulator, sums, part, [&](int j) {
          const uint32_t both = words[j * 4];
          return make_float2(__uint_as_float(both << 16), __uint_as_float(both & 0xFFFF0000u));
        });
      } else {
        PromoteRows<kPart, false>(accumulator, sums, part, [&](int j) {
          return *reinterpret_cast<const float2*>(q_rows + part * kPart + j * 8);
        });
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

 private:
  // both(j): the scales of this thread's two columns of the part's j-th eight. kOwn: see below.
  template <int kPart, bool kOwn, class Accumulator, class Sums, class Both>
  __device__ __forceinline__ void PromoteRows(Accumulator& accumulator, const Sums& sums, int part,
                                              const Both& both) const {
    CUTE_UNROLL
    for (int j = 0; j < kPart / 8; ++j) {
      const float2 scales = both(j);
      CUTE_UNROLL
      for (int i = 0; i < 4; ++i) {
        float& sum = accumulator(part * kPart / 2 + j * 4 + i);
        sum += sums(j * 4 + i) * ((i < 2 ? upper : lower) * (i % 2 == 0 ? scales.x : scales.y));
        // Else the additions of two branches become one, of products that wait in registers.
        if constexpr (kOwn) asm volatile("" : "+f"(sum));
      }
    }
  }
};

}  // namespace bwgemm::scaled::sm90
