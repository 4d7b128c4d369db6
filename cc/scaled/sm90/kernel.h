// The scaled SM90 kernel: the dense one with another main loop, or with scales after it.
#pragma once

#include "dense/sm90/kernel.h"
#include "scaled/sm90/promote.h"
#include "scaled/sm90/tile_scales.h"

namespace bwgemm::scaled::sm90 {

template <class C, class LaunchParams>
__device__ __forceinline__ void Consume(const LaunchParams& params, typename C::Shared& shared,
                                        uint32_t rank) {
  const int consumer = cutlass::canonical_warp_group_idx() - 1, thread = threadIdx.x % 128;
  bwgemm::sm90::Mma<C> mma{shared, consumer, thread};
  dense::sm90::EpilogueOf<C> epilogue{params, {shared, consumer, thread}};
  LaunchRing state(params.stages);
  bwgemm::sm90::Turn<C> turn{shared, consumer};
  TileScales<C> scales{shared, consumer};
  int next = 0;
  for (dense::sm90::Tiles<C> tiles(params, rank); tiles.Valid(); tiles.Advance(), next ^= 1) {
    const dense::sm90::Tile& tile = tiles.Current();
    const int k_blocks = __shfl_sync(0xffffffff, dense::sm90::KBlocks(params, tile), 0);
    if (C::kPingpong && next != consumer) {
      state.Skip(k_blocks);
      continue;
    }
    epilogue.Begin(tile);
    typename C::template Accumulator<C::kTileN> accumulator;
    if constexpr (C::kPromotes) {
      PromotingMma<C, C::kTileN>{mma, turn}.Tile(accumulator, dense::sm90::QRow<C>(tile), k_blocks,
                                                 state);
    } else {
      mma.template Tile<C::kTileN>(accumulator, k_blocks, state, turn);
      scales.template Apply<C::kTileN>(accumulator, OfTensors(params));
    }
    epilogue.StoreTile(tile, accumulator);
  }
  epilogue.Finish();
}

// All of a kernel. `params`: in the constant memory of its parameters.
template <class C, class LaunchParams>
__device__ __forceinline__ void RunScaledGemm(const LaunchParams& params) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Loader = std::conditional_t<C::kPromotes, BlockScalesLoader, TileScalesLoader>;
  dense::sm90::RunCta<C, Loader>(params, [](const LaunchParams& own, typename C::Shared& shared,
                                            uint32_t rank) { Consume<C>(own, shared, rank); });
#else
  CUTE_INVALID_CONTROL_PATH("compiled for another architecture");
#endif
}

template <class C>
__global__ void __launch_bounds__(dense::sm90::kThreads, 1)
    ScaledGemmKernelSm90(const __grid_constant__ Params params) {
  RunScaledGemm<C>(params);
}

}  // namespace bwgemm::scaled::sm90
