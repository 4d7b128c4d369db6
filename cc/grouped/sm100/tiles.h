// Which tile a cluster computes next, and how its warps learn of it.
//
// Every CTA has a scheduler warp, which puts tiles into a ring in shared memory. Both CTAs of a
// pair find the same tiles, so they exchange none.
#pragma once

#include "grouped/sm100/pipeline.h"

namespace bwgemm::grouped::sm100 {

// The tiles of this cluster, for those who work on them. Whole warps call it.
template <class C>
struct TileReader {
  typename C::Shared& shared;
  RingState<C::kRing> state{};

  __device__ Tile Next() {
    Barrier::wait(&shared.ring_full[state.index], state.phase);
    const Tile tile = shared.ring[state.index];
    __syncwarp();
    if (threadIdx.x % 32 == 0) Barrier::arrive(&shared.ring_empty[state.index]);
    state.Advance();
    return tile;
  }
};

// m-grouped: tiles cost about the same, and only the device knows how many there are. Clusters take
// them in a fixed stride.
template <class C>
struct FixedStride {
  __device__ FixedStride(typename C::Shared&, uint32_t) {}

  __device__ int Next(int index) { return index + static_cast<int>(gridDim.x) / C::kCtas; }
};

// k-grouped: a tile costs as much as its group has rows, and the grid has one cluster for each
// tile. A cluster that is done takes over one that has not started (cluster launch control, PTX ISA
// 9.7.13.17). The leader asks; the answer arrives in both CTAs.
template <class C>
struct LaunchControl {
  typename C::Shared& shared;
  uint32_t cta_rank;
  uint32_t phase = 0;

  __device__ LaunchControl(typename C::Shared& s, uint32_t rank) : shared(s), cta_rank(rank) {}

  // -1: all clusters have started.
  __device__ int Next(int) {
    if (threadIdx.x % 32 == 0) {
      TransactionBarrier::arrive_and_expect_tx(&shared.answered, sizeof(shared.answer));
      if (cta_rank == 0) {
        Barrier::wait(&shared.answer_read, phase ^ 1);
        asm volatile(
            "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes"
            ".multicast::cluster::all.b128 [%0], [%1];" ::"r"(
                cute::cast_smem_ptr_to_uint(&shared.answer)),
            "r"(cute::cast_smem_ptr_to_uint(&shared.answered))
            : "memory");
      }
    }
    __syncwarp();
    Barrier::wait(&shared.answered, phase);
    uint32_t granted, first_cta = 0;
    asm volatile(
        "{\n\t"
        ".reg .b128 answer;\n\t"
        ".reg .pred granted;\n\t"
        "ld.shared.b128 answer, [%2];\n\t"
        "clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 granted, answer;\n\t"
        "selp.u32 %0, 1, 0, granted;\n\t"
        "@granted clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 %1, answer;\n\t"
        "}"
        : "=r"(granted), "+r"(first_cta)
        : "r"(cute::cast_smem_ptr_to_uint(&shared.answer))
        : "memory");
    cute::tma_store_fence();  // the next answer is written by the asynchronous proxy
    __syncwarp();
    if (threadIdx.x % 32 == 0) Barrier::arrive(&shared.answer_read, /*cta_id=*/0u, /*pred=*/1u);
    phase ^= 1;
    return granted ? static_cast<int>(first_cta) / C::kCtas : -1;
  }
};

template <class C>
__device__ void Schedule(const Params& params, typename C::Shared& shared, uint32_t cta_rank) {
  Scheduler<C::kContraction> scheduler(params.schedule);
  std::conditional_t<C::kKGrouped, LaunchControl<C>, FixedStride<C>> order(shared, cta_rank);
  RingState<C::kRing> state;
  int index = static_cast<int>(blockIdx.x) / C::kCtas;
  for (;;) {
    const Tile tile = index < 0 ? Tile{-1, -1, 0, 0, 0, 0} : scheduler.At(index);
    Barrier::wait(&shared.ring_empty[state.index], state.phase ^ 1);
    if (threadIdx.x % 32 == 0) {
      shared.ring[state.index] = tile;
      Barrier::arrive(&shared.ring_full[state.index]);
    }
    state.Advance();
    if (tile.batch < 0) return;
    index = order.Next(index);
  }
}

}  // namespace bwgemm::grouped::sm100
