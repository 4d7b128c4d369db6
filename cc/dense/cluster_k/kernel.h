// The cluster-K kernel: a CTA for each tile and part of K.
//
//   warps 0 to 3   consumer: MMA, then the CTA's slice of the sum
//   warp 4         producer
#pragma once

#include "core/cluster.h"
#include "core/shared_memory.h"
#include "cute/algorithm/clear.hpp"
#include "cutlass/cutlass.h"
#include "dense/cluster_k/mainloop.h"
#include "dense/cluster_k/reduce.h"

namespace bwgemm::dense::cluster_k {

// Clamps a tile's start so that the tile stays inside the operand, because TMA takes longer to fill
// in zeros than to load. Some results are then computed twice, with the same bits.
__device__ __forceinline__ int FirstOf(uint32_t tile, int extent) {
  return min(static_cast<int>(tile * kBlock), max(extent - kBlock, 0));
}

// CTAs of a cluster are neighbours along x and share a tile. The tiles of one block of weights
// follow one another, so that it comes from memory once.
__device__ __forceinline__ Work WorkOf(const Params& params, uint32_t rank, uint32_t parts) {
  const uint32_t tile = blockIdx.x / parts;
  const uint32_t of_batch = tile / params.q_tiles;
  const int first = params.k_blocks * rank / parts, end = params.k_blocks * (rank + 1) / parts;
  return {static_cast<int>(of_batch / params.p_tiles), FirstOf(tile % params.q_tiles, params.rows),
          FirstOf(of_batch % params.p_tiles, params.columns), first, end - first};
}

// The body of every entry point. result: see PlainResult.
template <class C, class Result>
__device__ __forceinline__ void RunGemm(const Params& params, const Result& result) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ uint8_t raw[];
  auto& shared = AlignedShared<Shared>(raw);
  const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);
  const uint32_t rank = cute::block_rank_in_cluster(), parts = cute::cluster_shape().x;
  const Work work = WorkOf(params, rank, parts);

  if (threadIdx.x == kConsumerThreads) {
    cute::prefetch_tma_descriptor(&params.p);
    cute::prefetch_tma_descriptor(&params.q);
    for (int i = 0; i < params.stages; ++i) {
      Full::init(&shared.full[i], 1);
      Empty::init(&shared.empty[i], kConsumerThreads / 32);
    }
    cutlass::arch::fence_barrier_init();
  }
  __syncthreads();

  if (warp == kConsumerThreads / 32) {
    if (cute::elect_one_sync()) Load<C>(params, shared, work);
    SyncCluster();
  } else {
    typename C::Accumulator accumulator;
    if (work.blocks == 0) {
      cute::clear(accumulator);
    } else {
      Multiply<C>(shared, params.stages, work.blocks, accumulator);
    }
    // Each warp has waited for its own quarter of the MMAs only, and every quarter reads all of Q.
    cutlass::arch::NamedBarrier::sync(kConsumerThreads, 0);
    LayOut(accumulator, shared);
    SyncCluster();
    AddSlice<typename C::Out>(params, shared, work, rank, parts, result);
  }
  SyncCluster();  // a CTA's shared memory is read until all are done
#else
  CUTE_INVALID_CONTROL_PATH("compiled for another architecture");
#endif
}

template <class C>
__global__ void __launch_bounds__(kThreads, kCtasPerSm)
    ClusterKKernel(const __grid_constant__ Params params) {
  RunGemm<C>(params, PlainResult{});
}

}  // namespace bwgemm::dense::cluster_k
