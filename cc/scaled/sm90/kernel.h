// The scaled SM90 kernel: the dense one with another main loop, or with scales after it.
#pragma once

#include "dense/sm90/kernel.h"
#include "scaled/sm90/promote.h"

namespace bwgemm::scaled::sm90 {

// Multiplies a warpgroup's sums by the scales of their rows and columns.
template <class C, class Accumulator>
__device__ __forceinline__ void ScaleSums(const Params& params, const dense::sm90::Tile& tile,
                                          int consumer, Accumulator& accumulator) {
  const int thread = RereadThread();
  const Scales &p_scales = params.p_scales, &q_scales = params.q_scales;
  const uint32_t row = dense::sm90::PRow<C>(tile) + C::FirstBlock(consumer) * dense::sm90::kBlock +
                       thread / 32 * 16 + thread % 32 / 4;
  float p[C::kOwnBlocks][2];
  CUTE_UNROLL
  for (int i = 0; i < 2 * C::kOwnBlocks; ++i) {
    const uint32_t at = row + i / 2 * dense::sm90::kBlock + i % 2 * 8;
    p[i / 2][i % 2] =
        LoadScale(p_scales.data + FirstScale(p_scales, params.p_rows, at, tile.batch));
  }
  const uint32_t column = dense::sm90::QRow<C>(tile) + thread % 4 * 2;
  CUTE_UNROLL
  for (int j = 0; j < C::kTileN / 8; ++j) {
    float q[2];
    CUTE_UNROLL
    for (int i = 0; i < 2; ++i) {
      const uint32_t at = column + j * 8 + i;
      q[i] = LoadScale(q_scales.data + FirstScale(q_scales, params.q_rows, at, tile.batch));
    }
    CUTE_UNROLL
    for (int i = 0; i < 4 * C::kOwnBlocks; ++i) {
      float& sum = accumulator(j * 4 + i % 4, i / 4);
      sum *= p[i / 4][i % 4 / 2] * q[i % 2];
      // Now: the loads of all columns together take more registers than there are.
      if (j % 4 == 3) asm volatile("" : "+f"(sum));
    }
  }
}

template <class C>
__device__ __forceinline__ void Consume(const Params& params, typename C::Shared& shared,
                                        uint32_t rank) {
  const int consumer = cutlass::canonical_warp_group_idx() - 1, thread = threadIdx.x % 128;
  bwgemm::sm90::Mma<C> mma{shared, consumer, thread};
  dense::sm90::Epilogue<C> epilogue{params, {shared, consumer, thread}};
  LaunchRing state(params.stages);
  bwgemm::sm90::Turn<C> turn{shared, consumer};
  int next = 0;
  for (dense::sm90::Tiles<C> tiles(params.order, rank); tiles.Valid(); tiles.Advance(), next ^= 1) {
    const dense::sm90::Tile& tile = tiles.Current();
    const int k_blocks = __shfl_sync(0xffffffff, dense::sm90::KBlocks(params, tile), 0);
    if (C::kPingpong && next != consumer) {
      state.Skip(k_blocks);
      continue;
    }
    typename C::template Accumulator<C::kTileN> accumulator;
    if constexpr (C::kPromotes) {
      PromotingMma<C>{params, mma, turn}.Tile(accumulator, tile, k_blocks, state);
    } else {
      mma.template Tile<C::kTileN>(accumulator, k_blocks, state, turn, [](uint32_t, int) {});
      ScaleSums<C>(params, tile, consumer, accumulator);
    }
    epilogue.StoreTile(tile, accumulator);
  }
  epilogue.Finish();
}

template <class C>
__global__ void __launch_bounds__(dense::sm90::kThreads, 1)
    ScaledGemmKernelSm90(const __grid_constant__ Params params) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  dense::sm90::RunCta<C>(params, [](const Params& own, typename C::Shared& shared, uint32_t rank) {
    Consume<C>(own, shared, rank);
  });
#else
  CUTE_INVALID_CONTROL_PATH("compiled for another architecture");
#endif
}

}  // namespace bwgemm::scaled::sm90
