// Which tile number a cluster takes next.
//
// Tiles differ in cost (a group's last tile is narrow, k-grouped groups differ in length), so a
// cluster that is ready takes the next number from a counter in global memory. Rank 0 asks and
// tells its neighbour.
#pragma once

#include "cute/arch/cluster_sm90.hpp"
#include "grouped/sm90/config.h"

namespace bwgemm::grouped::sm90 {

// Called by one whole warp of every CTA.
template <class C>
struct TileClaims {
  using Full = cutlass::arch::ClusterTransactionBarrier;
  using Empty = cutlass::arch::ClusterBarrier;
  const Params& params;
  typename C::Shared& shared;
  uint32_t cta_rank;
  RingState<kMail> state{};

  __device__ __forceinline__ int Clusters() const { return gridDim.x / C::kCluster; }
  __device__ __forceinline__ int First() const { return blockIdx.x / C::kCluster; }

  __device__ __forceinline__ int Next(int previous) {
    if (params.counter == nullptr) return previous + Clusters();
    const bool lane0 = threadIdx.x % 32 == 0;
    int next = 0;
    if (cta_rank == 0) {
      if (lane0) next = Clusters() + atomicAdd(params.counter, 1);
      next = __shfl_sync(0xffffffffu, next, 0);
    }
    if constexpr (C::kCluster == 2) {
      if (cta_rank == 0) {
        Empty::wait(&shared.tiles.mail_empty[state.index], state.phase ^ 1);
        if (lane0) Send(next);
      } else {
        if (lane0)
          Full::arrive_and_expect_tx(&shared.tiles.mail_full[state.index], sizeof(int32_t));
        Full::wait(&shared.tiles.mail_full[state.index], state.phase);
        next = shared.tiles.mail[state.index].value;
        __syncwarp();
        Empty::arrive(&shared.tiles.mail_empty[state.index], /*cta_id=*/0, lane0);
      }
      state.Advance();
    }
    return next;
  }

 private:
  // st.async (PTX ISA): the value and its arrival at the barrier travel together.
  __device__ __forceinline__ void Send(int value) {
    const uint32_t to = Neighbours(&shared.tiles.mail[state.index].value);
    const uint32_t barrier = Neighbours(&shared.tiles.mail_full[state.index]);
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(to),
        "r"(value), "r"(barrier)
        : "memory");
  }

  __device__ __forceinline__ static uint32_t Neighbours(const void* own) {
    return cute::set_block_rank(cute::cast_smem_ptr_to_uint(own), 1);
  }
};

}  // namespace bwgemm::grouped::sm90
