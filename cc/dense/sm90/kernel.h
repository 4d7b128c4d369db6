// The SM90 kernel: persistent, warp-specialised, one CTA a multiprocessor.
//
//   warpgroup 0      producer: one thread loads
//   warpgroups 1, 2  consumers: MMA, then epilogue. Ping-pong: each owns every second tile, and
//                    issues its MMAs after all of the other's
//
// CUTLASS's kernels have the same structure. This one does less before its first load.
#pragma once

#include "core/cluster.h"
#include "core/shared_memory.h"
#include "cutlass/arch/reg_reconfig.h"
#include "cutlass/cutlass.h"
#include "dense/sm90/epilogue.h"
#include "dense/sm90/gated_epilogue.h"
#include "dense/sm90/linked_epilogue.h"
#include "dense/sm90/load.h"
#include "dense/sm90/row_scales.h"
#include "sm90/split_mma.h"

namespace bwgemm::dense::sm90 {

template <class C>
using EpilogueOf =
    std::conditional_t<C::kGated, GatedEpilogue<C>,
                       std::conditional_t<C::kStaged, LinkedEpilogue<C>, Epilogue<C>>>;

template <class C>
__device__ __forceinline__ void Consume(const Params& params, typename C::Shared& shared,
                                        uint32_t rank) {
  // Through shuffles, which tell the compiler that the value is uniform in a warp: wgmma must not
  // be in a divergent branch.
  const int consumer = cutlass::canonical_warp_group_idx() - 1, thread = threadIdx.x % 128;
  bwgemm::sm90::MainLoop<C> mma{shared, consumer, thread};
  EpilogueOf<C> epilogue{params, {shared, consumer, thread}};
  LaunchRing state(params.stages);
  bwgemm::sm90::Turn<C> turn{shared, consumer};
  int next = 0;
  for (Tiles<C> tiles(params, rank); tiles.Valid(); tiles.Advance(), next ^= 1) {
    const int k_blocks = __shfl_sync(0xffffffff, KBlocks(params, tiles.Current()), 0);
    if (C::kPingpong && next != consumer) {
      state.Skip(k_blocks);
      continue;
    }
    epilogue.Begin(tiles.Current());
    if constexpr (C::kScalesRows) LoadRowScales<C>(params, tiles.Current(), consumer, mma.p_scales);
    typename C::template Accumulator<C::kTileN> accumulator;
    mma.template Tile<C::kTileN>(accumulator, k_blocks, state, turn);
    if constexpr (C::kScalesRows) UnscaleTile<C>(params, tiles.Current(), consumer, accumulator);
    epilogue.StoreTile(tiles.Current(), accumulator);
  }
  epilogue.Finish();
}

// A kernel whose producer has no second warp at work.
struct NoAssistant {
  template <class C>
  __device__ __forceinline__ static void InitBarriers(typename C::Shared&) {}
  template <class C, class LaunchParams>
  __device__ __forceinline__ static void Load(const LaunchParams&, typename C::Shared&, uint32_t) {}
};

// The body of a kernel. TileSource: the tiles of a CTA; consume(params, shared, rank): the work of
// both consumers.
template <class C, class Assistant = NoAssistant, class TileSource = Tiles<C>, class LaunchParams,
          class Consumer>
__device__ __forceinline__ void RunCta(const LaunchParams& params, Consumer&& consume) {
  extern __shared__ uint8_t raw[];
  auto& shared = AlignedShared<typename C::Shared>(raw);
  const int warp = cutlass::canonical_warp_idx_sync();
  const uint32_t rank = C::kCluster == 1 ? 0 : cute::block_rank_in_cluster();

  if (threadIdx.x == 0) {
    bwgemm::sm90::InitPipeline<C>(shared);
    if constexpr (C::kStaged) LinkedEpilogue<C>::InitBarriers(shared);
    Assistant::template InitBarriers<C>(shared);
    cutlass::arch::fence_barrier_init();
  } else if (threadIdx.x == 32) {
    cute::prefetch_tma_descriptor(&params.p);
    cute::prefetch_tma_descriptor(&params.q);
    cute::prefetch_tma_descriptor(&params.d);
  }
  AwaitBarriers<C::kCluster>();

  if (warp < 4) {
    if constexpr (C::kMovesRegisters) {
      cutlass::arch::warpgroup_reg_dealloc<C::kProducerRegisters>();
    }
    // Elected, so that the compiler knows that it is one thread. Otherwise it puts a loop around
    // every TMA instruction, for threads whose coordinates may differ.
    if (warp == 0 && cute::elect_one_sync()) {
      Loader<C> loader{params, shared, rank, LaunchRing(params.stages)};
      for (TileSource tiles(params, rank); tiles.Valid(); tiles.Advance()) {
        loader.LoadTile(tiles.Current());
      }
      if constexpr (C::kCluster > 1) loader.Finish();
    }
    if (warp == 1) Assistant::template Load<C>(params, shared, rank);
  } else {
    if constexpr (C::kMovesRegisters) {
      cutlass::arch::warpgroup_reg_alloc<C::kConsumerRegisters>();
    }
    consume(params, shared, rank);
  }
}

// A dense kernel. `params` lies in the constant memory of the kernel's parameters.
template <class C>
__device__ __forceinline__ void RunGemm(const Params& params) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  if constexpr (C::kConditional) {
    if (static_cast<const ConditionalParams&>(params).condition.Unmet()) return;
  }
  RunCta<C>(params, [](const Params& own, typename C::Shared& shared, uint32_t rank) {
    Consume<C>(own, shared, rank);
  });
#else
  CUTE_INVALID_CONTROL_PATH("compiled for another architecture");
#endif
}

template <class C>
__global__ void __launch_bounds__(kThreads, 1)
    GemmKernelSm90(const __grid_constant__ ParamsOf<C> params) {
  RunGemm<C>(params);
}

}  // namespace bwgemm::dense::sm90
