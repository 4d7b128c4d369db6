// The cluster-K kernel: a CTA for each tile and part of K.
//
//   warpgroups 0 (and 1)   consumers: MMA, then their slice of the sum
//   the last warp          producer
#pragma once

#include "cutlass/cutlass.h"
#include "gemm/cluster_k/mainloop.h"
#include "gemm/cluster_k/reduce.h"

namespace bwgemm::cluster_k {

// CTAs of a cluster are neighbours along x and share a tile. The tiles of one block of weights
// follow one another, so that it comes from memory once.
__device__ __forceinline__ Work WorkOf(const Params& params, uint32_t rank, uint32_t parts,
                                       int tile_p, int tile_q) {
  const uint32_t tile = blockIdx.x / parts;
  const uint32_t of_batch = tile / params.q_tiles;
  const int first = params.k_blocks * rank / parts, end = params.k_blocks * (rank + 1) / parts;
  return {static_cast<int>(of_batch / params.p_tiles),
          static_cast<int>(tile % params.q_tiles) * tile_q,
          static_cast<int>(of_batch % params.p_tiles) * tile_p, first, end - first};
}

__device__ __forceinline__ void Meet() {
  cute::cluster_arrive();
  cute::cluster_wait();
}

template <class C>
__global__ void __launch_bounds__(C::kThreads, C::kCtasPerSm)
    ClusterKKernel(const __grid_constant__ Params params) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ uint8_t raw[];
  auto& shared = *reinterpret_cast<typename C::Shared*>(
      (reinterpret_cast<uintptr_t>(raw) + kAlignment - 1) / kAlignment * kAlignment);
  const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);
  const uint32_t rank = cute::block_rank_in_cluster(), parts = cute::cluster_shape().x;
  const Work work = WorkOf(params, rank, parts, C::kTileM, C::kTileN);

  if (threadIdx.x == C::kConsumers * 128) {
    cute::prefetch_tma_descriptor(&params.p);
    cute::prefetch_tma_descriptor(&params.q);
    for (int i = 0; i < params.stages; ++i) {
      Full::init(&shared.full[i], 1);
      Empty::init(&shared.empty[i], 4 * C::kConsumers);
    }
    cutlass::arch::fence_barrier_init();
  }
  __syncthreads();

  if (warp == C::kConsumers * 4) {
    if (threadIdx.x % 32 == 0) Load<C>(params, shared, work);
    __syncwarp();
    Meet();
  } else {
    const int consumer = warp / 4, thread = threadIdx.x % 128;
    typename C::Accumulator accumulator;
    if (work.blocks == 0) {
      cute::clear(accumulator);
    } else {
      Multiply<C>(shared, params.stages, work.blocks, consumer, thread, accumulator);
    }
    // The stages are free once both consumers are through with them.
    cutlass::arch::NamedBarrier::sync(C::kConsumers * 128, 0);
    LayOut<C>(accumulator, shared, consumer, thread);
    Meet();
    AddSlice<C>(params, shared, work, rank, parts, threadIdx.x);
  }
  Meet();  // a CTA's shared memory is read until all are done
#else
  CUTE_INVALID_CONTROL_PATH("compiled for another architecture");
#endif
}

}  // namespace bwgemm::cluster_k
