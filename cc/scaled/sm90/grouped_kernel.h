// The grouped scaled SM90 kernel: the grouped one with another main loop, or with scales after it,
// and a warp that brings scales.
#pragma once

#include "grouped/sm90/kernel.h"
#include "scaled/sm90/grouped_config.h"
#include "scaled/sm90/promote.h"
#include "scaled/sm90/tile_scales.h"

namespace bwgemm::scaled::sm90 {

template <class C>
struct GroupedMainLoop {
  using Params = GroupedParams;
  const Params& params;
  bwgemm::sm90::Mma<C> mma;
  TileScales<C> scales;
  uint32_t cta_rank;

  __device__ __forceinline__ GroupedMainLoop(const Params& params, typename C::Shared& shared,
                                             uint32_t cta_rank, int consumer, int thread)
      : params(params),
        mma{shared, consumer, thread},
        scales{shared, consumer},
        cta_rank(cta_rank) {}

  template <int kColumns>
  __device__ __forceinline__ void Tile(typename C::template Accumulator<kColumns>& accumulator,
                                       const grouped::Tile& tile, int k_blocks,
                                       RingState<C::kStages>& state, bwgemm::sm90::Turn<C>& turn) {
    if constexpr (C::kPromotes) {
      PromotingMma<C, kColumns>{mma, turn}.Tile(
          accumulator, grouped::sm90::FirstOfQ<C>(tile, cta_rank), k_blocks, state);
    } else {
      mma.template Tile<kColumns>(accumulator, k_blocks, state, turn);
      scales.template Apply<kColumns>(accumulator, OfTensors(params));
      if (k_blocks == 0) cute::clear(accumulator);  // whatever the scales: 0 x inf is NaN
    }
  }
};

// The warp that loads scales: Loader is BlockScalesLoader or TileScalesLoader.
template <class Loader>
struct GroupedScalesLoader {
  template <class C>
  __device__ __forceinline__ static void InitBarriers(typename C::Shared& shared) {
    Loader::template InitBarriers<C>(shared);
  }

  template <class C>
  __device__ __forceinline__ static void Load(const GroupedParams& params,
                                              typename C::Shared& shared, uint32_t cta_rank) {
    grouped::sm90::RingReader<C> ring{shared};
    RingState<C::kPromotes ? C::kStages : Slots<C>()> state;
    for (;;) {
      const grouped::Tile tile = ring.template Next<true>();
      if (tile.batch < 0) break;
      Loader::template LoadTile<C>(Place<C>(params, tile, cta_rank), shared, state);
    }
    AwaitCopies();
  }

 private:
  template <class C>
  static constexpr int Slots() {
    if constexpr (C::kPromotes) {
      return 1;
    } else {
      return C::kScaleSlots;
    }
  }

  template <class C>
  __device__ __forceinline__ static ScaledTile Place(const GroupedParams& params,
                                                     const grouped::Tile& tile, uint32_t cta_rank) {
    namespace grouped90 = grouped::sm90;
    const int expert = max(tile.expert, 0);
    return {{params.p_scales, params.p_rows,
             static_cast<uint32_t>(grouped90::FirstOfP<C>(tile, cta_rank)), tile.batch, expert},
            {params.q_scales, params.q_rows,
             static_cast<uint32_t>(grouped90::FirstOfQ<C>(tile, cta_rank)), tile.batch, expert},
            grouped90::FirstOfK<C>(tile) / kScaleBlock,
            grouped90::KBlocks<C>(tile, params)};
  }
};

// All of a kernel. `params`: in the constant memory of its parameters.
template <class C>
__device__ __forceinline__ void RunGroupedScaled(const GroupedParams& params) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Loader = std::conditional_t<C::kPromotes, BlockScalesLoader, TileScalesLoader>;
  grouped::sm90::RunCta<C, GroupedMainLoop<C>, GroupedScalesLoader<Loader>>(params);
#else
  CUTE_INVALID_CONTROL_PATH("compiled for another architecture");
#endif
}

template <class C>
__global__ void __launch_bounds__(bwgemm::sm90::kThreads, 1)
    GroupedScaledKernelSm90(const __grid_constant__ GroupedParams params) {
  RunGroupedScaled<C>(params);
}

}  // namespace bwgemm::scaled::sm90
