// The scales of sums over all of K: a warp loads a tile's scales into shared memory while its
// operands are multiplied; consumers multiply their sums by them.
#pragma once

#include "core/ring.h"
#include "cutlass/arch/barrier.h"
#include "scaled/sm90/config.h"
#include "scaled/sm90/scales.h"
#include "sm90/arrive.h"

namespace bwgemm::scaled::sm90 {

struct TileScalesLoader {
  using Barrier = cutlass::arch::ClusterBarrier;
  static constexpr int kWarp = 32;

  template <class C>
  __device__ __forceinline__ static void InitBarriers(typename C::Shared& shared) {
    for (int i = 0; i < C::kScaleSlots; ++i) {
      Barrier::init(&shared.scales_full[i], kWarp);
      Barrier::init(&shared.scales_empty[i], 4 * C::kTileConsumers * bwgemm::sm90::kWarpArrivals);
    }
  }

  // Called by a warp.
  template <class C, class LaunchParams>
  __device__ __forceinline__ static void Load(const LaunchParams& params,
                                              typename C::Shared& shared, uint32_t rank) {
    RingState<C::kScaleSlots> slot;
    for (dense::sm90::Tiles<C> tiles(params, rank); tiles.Valid(); tiles.Advance()) {
      LoadTile<C>(DenseTile<C>(params, tiles.Current()), shared, slot);
    }
    AwaitCopies();
  }

  template <class C>
  __device__ __forceinline__ static void LoadTile(const ScaledTile& tile,
                                                  typename C::Shared& shared,
                                                  RingState<C::kScaleSlots>& slot) {
    float* to = shared.scales[slot.index];
    Barrier::wait(&shared.scales_empty[slot.index], slot.phase ^ 1);
    Copy<C::kTileM>(to, tile.p);
    Copy<C::kTileN>(to + C::kTileM, tile.q);
    cutlass::arch::cpasync_barrier_arrive_noinc(&shared.scales_full[slot.index]);
    slot.Advance();
  }

 private:
  template <int kRows>
  __device__ __forceinline__ static void Copy(float* to, const ScaledRows& rows) {
    for (int i = threadIdx.x % kWarp; i < kRows; i += kWarp) {
      CopyScale(to + i, rows.scales.data + rows.At(i));
    }
  }
};

// A consumer's side.
template <class C>
struct TileScales {
  using Barrier = cutlass::arch::ClusterBarrier;
  typename C::Shared& shared;
  int consumer;
  uint32_t phase = 0;

  // Multiplies the sums of the consumer's next tile by the scales of their rows and columns.
  // of_tensors: the rows of either operand share a scale.
  template <int kColumns, class Accumulator>
  __device__ __forceinline__ void Apply(Accumulator& accumulator, bool of_tensors) {
    const int slot = C::kPingpong ? consumer : 0, thread = RereadThread();
    Barrier::wait(&shared.scales_full[slot], phase);
    phase ^= 1;
    const float* scales = shared.scales[slot];
    if (of_tensors) {
      const float scale = scales[0] * scales[C::kTileM];
      CUTE_UNROLL
      for (int i = 0; i < C::kOwnBlocks * kColumns / 2; ++i) accumulator(i) *= scale;
    } else {
      ByRows<kColumns>(accumulator, scales, thread);
    }
    __syncwarp();
    bwgemm::sm90::ArriveForWarp(&shared.scales_empty[slot], thread % 32);
  }

 private:
  template <int kColumns, class Accumulator>
  __device__ __forceinline__ void ByRows(Accumulator& accumulator, const float* scales,
                                         int thread) {
    const float* rows =
        scales + C::FirstBlock(consumer) * dense::sm90::kBlock + thread / 32 * 16 + thread % 32 / 4;
    float p[C::kOwnBlocks][2];
    CUTE_UNROLL
    for (int i = 0; i < 2 * C::kOwnBlocks; ++i) {
      p[i / 2][i % 2] = rows[i / 2 * dense::sm90::kBlock + i % 2 * 8];
    }
    CUTE_UNROLL
    for (int j = 0; j < kColumns / 8; ++j) {
      const float2 q =
          *reinterpret_cast<const float2*>(scales + C::kTileM + j * 8 + thread % 4 * 2);
      CUTE_UNROLL
      for (int i = 0; i < 4 * C::kOwnBlocks; ++i) {
        float& sum = accumulator(j * 4 + i % 4, i / 4);
        sum *= p[i / 4][i % 4 / 2] * (i % 2 == 0 ? q.x : q.y);
        // Read here: the scales of all columns together take more registers than there are.
        if (j % 4 == 3) asm volatile("" : "+f"(sum)::"memory");
      }
    }
  }
};

// Whether the rows of each operand share a scale, in a tile.
template <class LaunchParams>
__device__ __forceinline__ bool OfTensors(const LaunchParams& params) {
  return params.p_scales.row_pitch == 0 && params.q_scales.row_pitch == 0;
}

}  // namespace bwgemm::scaled::sm90
