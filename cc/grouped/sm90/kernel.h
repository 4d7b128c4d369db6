// The SM90 grouped kernel: persistent, warp-specialised, one CTA a multiprocessor.
//
//   warpgroup 0      producer: warp 0 loads (one thread), warp 1 decides which tile comes next; in
//                    k-grouped kernels warp 3 zeroes the rows of other groups
//   warpgroups 1, 2  consumers: MMA, then epilogue. Ping-pong: each owns every second tile, and
//                    issues its MMAs after all of the other's
//
// Tiles travel from the scheduler to the others through a ring in shared memory.
#pragma once

#include "core/cluster.h"
#include "core/shared_memory.h"
#include "cutlass/arch/reg_reconfig.h"
#include "grouped/sm90/claims.h"
#include "grouped/sm90/epilogue.h"
#include "grouped/sm90/linked_epilogue.h"
#include "grouped/sm90/linked_rows_epilogue.h"
#include "grouped/sm90/load.h"
#include "grouped/sm90/ring_reader.h"
#include "grouped/sm90/trimmer.h"
#include "sm90/split_mma.h"

namespace bwgemm::grouped::sm90 {

__device__ __forceinline__ int Uniform(int value) { return __shfl_sync(0xffffffffu, value, 0); }

template <class C>
__device__ __forceinline__ void Schedule(const Params& params, typename C::Shared& shared,
                                         uint32_t cta_rank) {
  Scheduler<C::kContraction> scheduler(params.schedule);
  TileClaims<C> claims{params, shared, cta_rank};
  RingState<kRing> state;
  for (int index = claims.First();; index = claims.Next(index)) {
    const grouped::Tile tile = scheduler.At(index);
    cutlass::arch::ClusterBarrier::wait(&shared.tiles.ring_empty[state.index], state.phase ^ 1);
    if (threadIdx.x % 32 == 0) {
      shared.tiles.ring[state.index] = tile;
      cutlass::arch::ClusterBarrier::arrive(&shared.tiles.ring_full[state.index]);
    }
    state.Advance();
    if (tile.batch < 0) return;
  }
}

template <class C>
__device__ __forceinline__ void Load(const Params& params, typename C::Shared& shared,
                                     uint32_t cta_rank) {
  Loader<C> loader{params, shared, cta_rank};
  RingReader<C> ring{shared};
  RingState<C::kStages> state;
  for (;;) {
    const grouped::Tile tile = ring.template Next<false>();
    if (tile.batch < 0) return;
    loader.Tile(tile, KBlocks<C>(tile, params), state);
  }
}

// The main loop of 16-bit operands, or of one of them and a split one.
template <class C>
struct PlainMainLoop {
  using Params = sm90::Params;
  bwgemm::sm90::MainLoop<C> mma;

  __device__ __forceinline__ PlainMainLoop(const Params&, typename C::Shared& shared, uint32_t,
                                           int consumer, int thread)
      : mma{shared, consumer, thread} {}

  // kColumns of the tile's columns.
  template <int kColumns>
  __device__ __forceinline__ void Tile(typename C::template Accumulator<kColumns>& accumulator,
                                       const grouped::Tile&, int k_blocks,
                                       RingState<C::kStages>& state, bwgemm::sm90::Turn<C>& turn) {
    mma.template Tile<kColumns>(accumulator, k_blocks, state, turn);
  }
};

// A tile's main loop and epilogue, in the smallest multiple of kColumnStep that holds `columns`.
template <class C, int kWidth = C::kTileN, class MainLoop, class Epilogue, class... More>
__device__ __forceinline__ void Compute(int columns, const grouped::Tile& tile, MainLoop& main_loop,
                                        Epilogue& epilogue, More&... more) {
  if constexpr (kWidth > C::kColumnStep) {
    if (columns <= kWidth - C::kColumnStep) {
      return Compute<C, kWidth - C::kColumnStep>(columns, tile, main_loop, epilogue, more...);
    }
  }
  typename C::template Accumulator<kWidth> accumulator;
  main_loop.template Tile<kWidth>(accumulator, tile, more...);
  if constexpr (C::kKeepsTiles) asm volatile("" ::: "memory");  // reads the tile again
  epilogue.template Tile<kWidth>(tile, accumulator);
}

template <class C>
using EpilogueOf =
    std::conditional_t<C::kStaged, LinkedEpilogue<C>,
                       std::conditional_t<C::kLinked, LinkedRowsEpilogue<C>, Epilogue<C>>>;

template <class C, class MainLoop>
__device__ __forceinline__ void Consume(const typename MainLoop::Params& params,
                                        typename C::Shared& shared, uint32_t cta_rank) {
  const int consumer = cutlass::canonical_warp_group_idx() - 1, thread = threadIdx.x % 128;
  MainLoop main_loop(params, shared, cta_rank, consumer, thread);
  EpilogueOf<C> epilogue{params, cta_rank, {shared, consumer, thread}};
  RingReader<C> ring{shared};
  RingState<C::kStages> state;
  bwgemm::sm90::Turn<C> turn{shared, consumer};
  for (int next = 0;; next ^= 1) {
    const uint32_t number = ring.count;
    std::conditional_t<C::kKeepsTiles, const grouped::Tile&, const grouped::Tile> tile =
        ring.Await();
    if constexpr (!C::kKeepsTiles) ring.template Release<true>();
    if (Uniform(tile.batch) < 0) break;
    // Through shuffles, which tell the compiler that the value is uniform in a warp: wgmma must not
    // be in a divergent branch.
    const int k_blocks = Uniform(KBlocks<C>(tile, params));
    if constexpr (C::kPingpong) {
      if ((C::kStaged ? static_cast<int>(number % 2) : next) != consumer) {
        state.Skip(k_blocks);
        continue;
      }
      if constexpr (C::kStaged) turn.phase = (number / 2 & 1) ^ (consumer == 0);
    }
    // A group's last tile is computed no wider than its rows need.
    const int columns = C::kRowsOnQ ? Uniform(tile.rows) : C::kTileN;
    if constexpr (C::kStaged) epilogue.Begin(tile);
    Compute<C>(columns, tile, main_loop, epilogue, k_blocks, state, turn);
    if constexpr (C::kKeepsTiles) ring.template Release<true>();
  }
  epilogue.Finish();
}

// A kernel whose producer has no third warp at work.
struct NoAssistant {
  template <class C>
  __device__ __forceinline__ static void InitBarriers(typename C::Shared&) {}
  template <class C>
  __device__ __forceinline__ static void Load(const Params&, typename C::Shared&, uint32_t) {}
};

// The body of a kernel.
template <class C, class MainLoop, class Assistant = NoAssistant>
__device__ __forceinline__ void RunCta(const typename MainLoop::Params& params) {
  extern __shared__ __align__(1024) uint8_t raw[];
  auto& shared = AlignedShared<typename C::Shared>(raw);
  const int warp = cutlass::canonical_warp_idx_sync();
  const uint32_t cta_rank = C::kCluster == 1 ? 0 : cute::block_rank_in_cluster();

  if (threadIdx.x == 0) {
    cute::prefetch_tma_descriptor(&params.p);
    cute::prefetch_tma_descriptor(&params.q);
    cute::prefetch_tma_descriptor(&params.d);
    bwgemm::sm90::InitPipeline<C>(shared, C::kKGrouped ? bwgemm::sm90::kWarpArrivals : 1);
    if constexpr (C::kKGrouped) Trimmer<C>::InitBarriers(shared);
    for (int i = 0; i < kRing; ++i) {
      cutlass::arch::ClusterBarrier::init(&shared.tiles.ring_full[i], 1);
      const uint32_t warps = C::kAssistants + (C::kKGrouped ? 1 : 0) + 4 * kConsumers;
      cutlass::arch::ClusterBarrier::init(&shared.tiles.ring_empty[i],
                                          1 + warps * bwgemm::sm90::kWarpArrivals);
    }
    for (int i = 0; i < kMail; ++i) {
      cutlass::arch::ClusterBarrier::init(&shared.tiles.mail_full[i], 1);
      cutlass::arch::ClusterBarrier::init(&shared.tiles.mail_empty[i], 1);
    }
    if constexpr (C::kStaged) LinkedEpilogue<C>::InitBarriers(shared);
    Assistant::template InitBarriers<C>(shared);
    cutlass::arch::fence_barrier_init();
  }
  AwaitBarriers<C::kCluster>();

  if (warp < 4) {
    cutlass::arch::warpgroup_reg_dealloc<40>();
    if (warp == 0) {
      if (cute::elect_one_sync()) Load<C>(params, shared, cta_rank);
    } else if (warp == 1) {
      Schedule<C>(params, shared, cta_rank);
    } else if (C::kAssistants != 0 && warp == 2) {
      Assistant::template Load<C>(params, shared, cta_rank);
    } else if (warp == 3) {
      if constexpr (C::kKGrouped) Trimmer<C>{params, shared}.Run();
    }
  } else {
    cutlass::arch::warpgroup_reg_alloc<232>();
    Consume<C, MainLoop>(params, shared, cta_rank);
  }
  // A CTA's shared memory is its neighbour's target until both are done.
  if constexpr (C::kCluster > 1) SyncCluster();
}

// A kernel of 16-bit operands. `params` lies in the constant memory of the kernel's parameters.
template <class C>
__device__ __forceinline__ void RunGrouped(const Params& params) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  RunCta<C, PlainMainLoop<C>>(params);
#else
  CUTE_INVALID_CONTROL_PATH("compiled for another architecture");
#endif
}

template <class C>
__global__ void __launch_bounds__(kThreads, 1)
    GroupedGemmKernel(const __grid_constant__ Params params) {
  RunGrouped<C>(params);
}

}  // namespace bwgemm::grouped::sm90
