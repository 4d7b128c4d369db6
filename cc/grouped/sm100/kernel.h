// The SM100 grouped kernel: persistent, warp-specialised, one CTA on a multiprocessor.
//
//   warps 0 to 3   epilogue
//   warp 4         loads
//   warp 5         tensor memory; in the leading CTA, the MMAs
//   warp 6         decides which tile comes next
//
// Tiles travel from the scheduler to the others through a ring in shared memory. The accumulators
// are double: the epilogue of a tile runs under the MMAs of the next.
#pragma once

#include "core/cluster.h"
#include "core/shared_memory.h"
#include "cute/arch/tmem_allocator_sm100.hpp"
#include "grouped/sm100/epilogue.h"
#include "grouped/sm100/load.h"
#include "grouped/sm100/mma.h"
#include "grouped/sm100/tiles.h"

namespace bwgemm::grouped::sm100 {

template <class C>
__device__ void InitBarriers(typename C::Shared& shared, uint32_t cta_rank) {
  for (int i = 0; i < C::kStages; ++i) {
    Barrier::init(&shared.full[i], 1);
    Barrier::init(&shared.empty[i], 1);
  }
  for (int i = 0; i < C::kAccumulators; ++i) Barrier::init(&shared.accumulated[i], 1);
  for (int i = 0; i < C::kDrained; ++i) {
    Barrier::init(&shared.drained[i], kEpilogueWarps * C::kCtas);
  }
  for (int i = 0; i < C::kRing; ++i) {
    Barrier::init(&shared.ring_full[i], 1);
    // Readers: the epilogue, the producer and, in the leader, the MMA warp.
    Barrier::init(&shared.ring_empty[i], kEpilogueWarps + (cta_rank == 0 ? 2 : 1));
  }
  if constexpr (C::kKGrouped) {  // cluster launch control
    Barrier::init(&shared.answered, 1);
    Barrier::init(&shared.answer_read, C::kCtas);
  }
  cutlass::arch::fence_barrier_init();
}

template <class C>
__device__ void RunLoads(const typename C::Params& params, typename C::Shared& shared,
                         uint32_t cta_rank) {
  const Loader<C> loader{params, shared, cta_rank};
  TileReader<C> tiles{shared};
  RingState<C::kStages> state;
  for (;;) {
    const Tile tile = tiles.Next();
    if (tile.batch < 0) break;
    if (cute::elect_one_sync()) loader.Load(tile, KBlocks<C>(tile, params), state);
    __syncwarp();
  }
  if (cute::elect_one_sync()) loader.Finish(state);
}

template <class C>
__device__ void RunMmas(const typename C::Params& params, typename C::Shared& shared,
                        uint32_t tensor_memory) {
  MmaIssuer<C> issuer{params, shared, tensor_memory};
  TileReader<C> tiles{shared};
  for (;;) {
    const Tile tile = tiles.Next();
    if (tile.batch < 0) return;
    const int k_blocks = KBlocks<C>(tile, params);
    if (k_blocks > 0) issuer.Compute(tile, k_blocks);
  }
}

template <class C>
__device__ void RunEpilogue(const typename C::Params& params, typename C::Shared& shared,
                            uint32_t tensor_memory, uint32_t cta_rank) {
  Epilogue<C> epilogue{params,
                       shared,
                       tensor_memory,
                       static_cast<int>(threadIdx.x / 32),
                       static_cast<int>(threadIdx.x % 32),
                       cta_rank};
  TileReader<C> tiles{shared};
  for (;;) {
    const Tile tile = tiles.Next();
    if (tile.batch < 0) break;
    epilogue.Store(tile, KBlocks<C>(tile, params));
  }
  epilogue.Finish();
}

template <class C>
__device__ __forceinline__ void RunCta(const typename C::Params& params) {
#if defined(CUTE_ARCH_TCGEN05_TMEM_ENABLED)
  extern __shared__ uint8_t raw[];
  auto& shared = AlignedShared<typename C::Shared>(raw);
  const int warp = cutlass::canonical_warp_idx_sync();
  const uint32_t cta_rank = C::kCtas == 1 ? 0 : cute::block_rank_in_cluster();
  std::conditional_t<C::kCtas == 2, cute::TMEM::Allocator2Sm, cute::TMEM::Allocator1Sm> allocator;

  if (threadIdx.x == 0) {
    cute::prefetch_tma_descriptor(&params.p);
    cute::prefetch_tma_descriptor(&params.q);
    cute::prefetch_tma_descriptor(&params.d);
    InitBarriers<C>(shared, cta_rank);
  }
  if (warp == kMmaWarp) {
    allocator.allocate(C::kColumns, &shared.tensor_memory);
    allocator.release_allocation_lock();
    FenceBeforeArrive();
  }
  SyncCluster<C::kCtas>();  // barriers and tensor memory are there, in all CTAs
  FenceAfterWait();
  const uint32_t tensor_memory = shared.tensor_memory;

  if (warp < kEpilogueWarps) {
    RunEpilogue<C>(params, shared, tensor_memory, cta_rank);
  } else if (warp == kLoadWarp) {
    RunLoads<C>(params, shared, cta_rank);
  } else if (warp == kMmaWarp) {
    if (cta_rank == 0) RunMmas<C>(params, shared, tensor_memory);
  } else {
    Schedule<C>(params, shared, cta_rank);
  }
  // A CTA's shared and tensor memory are the other's target until both are done.
  SyncCluster<C::kCtas>();
  if (warp == kMmaWarp) allocator.free(tensor_memory, C::kColumns);
#else
  CUTE_INVALID_CONTROL_PATH("compiled for another architecture");
#endif
}

template <class C>
__global__ void __launch_bounds__(kThreads, 1)
    GroupedGemmKernel(const __grid_constant__ Params params) {
  RunCta<C>(params);
}

}  // namespace bwgemm::grouped::sm100
