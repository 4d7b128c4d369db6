// CUTLASS's stream-K tile scheduler for SM100, with the waits that its use of tensor memory needs.
//
// A CTA with a part of a tile loads its accumulator from tensor memory to registers, exchanges it
// with the CTAs of the other parts and, if its part is the last, stores the sum back for the
// epilogue. tcgen05.ld and tcgen05.st are asynchronous. Before tcgen05.wait::ld the registers may
// not be used, nor the source be overwritten; a load sees a store only after tcgen05.wait::st (PTX
// ISA 9.7.16.8). CUTLASS 4.2 leaves out both waits for the last part; the emulator reports it.
#pragma once

#include "cutlass/arch/barrier.h"
#include "cutlass/gemm/kernel/tile_scheduler.hpp"
#include "dense/tensor_fences_sm100.h"

namespace bwgemm::dense {

// The tag that stands for this scheduler, as cutlass::gemm::StreamKScheduler for CUTLASS's.
struct StreamKSm100Scheduler {};

template <class Tile, class Cluster, uint32_t kStages>
class StreamKSm100
    : public cutlass::gemm::kernel::detail::PersistentTileSchedulerSm100StreamK<Tile, Cluster,
                                                                                kStages> {
  using Base =
      cutlass::gemm::kernel::detail::PersistentTileSchedulerSm100StreamK<Tile, Cluster, kStages>;
  using Units = cutlass::gemm::kernel::detail::PersistentTileSchedulerSm90StreamK<Tile, Cluster>;

 public:
  using typename Base::CLCResponse;
  using typename Base::Params;
  using typename Base::WorkTileInfo;

  CUTLASS_DEVICE StreamKSm100(CLCResponse* response, const Params& params, dim3 place_in_cluster)
      : Base(response, params, place_in_cluster), params_(params) {}

  // Adds the parts of a tile that other CTAs computed before this one, or passes this part on.
  template <bool kComplex, class TiledMma, class Engine, class Layout, class Pipeline, class State,
            class TmemLoad>
  CUTLASS_DEVICE State fixup(const TiledMma& mma, const WorkTileInfo& work,
                             cute::Tensor<Engine, Layout>& accumulator, Pipeline accumulators,
                             State state, TmemLoad load_op) const {
    FencedPipeline<Pipeline> pipeline(accumulators);
    static_assert(!kComplex && cute::is_tmem_v<Engine>);
    if (!Base::requires_fixup(work)) {
      return Base::template fixup<kComplex>(mma, work, accumulator, pipeline, state, load_op);
    }
    constexpr uint32_t kThreads = cutlass::NumThreadsPerWarpGroup;
    constexpr uint32_t kBarrier =
        static_cast<uint32_t>(cutlass::arch::ReservedNamedBarriers::StreamkBarrier0);
    using Barrier = cutlass::NamedBarrierManager<kThreads, kBarrier, 1>;

    auto load = cute::make_tmem_copy(load_op, accumulator);
    auto store = cute::make_tmem_copy(cute::TMEM::tmem_load_to_store(load_op), accumulator);
    const auto mine = load.get_slice(threadIdx.x % kThreads);
    auto in_tmem = mine.partition_S(accumulator);
    // Of the coordinates, only the shape of a thread's share counts.
    const auto coordinates =
        mma.get_slice(0).partition_C(cute::make_identity_tensor(cute::take<0, 2>(Tile{})));
    auto values = cute::make_tensor<typename Engine::element_type>(
        cute::shape(mine.partition_D(coordinates)));

    pipeline.consumer_wait(state);
    cute::copy(load, in_tmem, values);
    cutlass::arch::fence_view_async_tmem_load();
    const bool last_part = Base::compute_epilogue(work);
    if (!last_part) {
      pipeline.consumer_release(state);
      ++state;
    }
    Units::template fixup_helper<decltype(values), Barrier>(params_.sk_params_, work, values, 1, 0);
    if (last_part) {
      cute::copy(store, values, in_tmem);
      cutlass::arch::fence_view_async_tmem_store();
    }
    return state;
  }

 private:
  const Params& params_;  // of the kernel
};

}  // namespace bwgemm::dense

template <class Tile, class Cluster, uint32_t kStages>
struct cutlass::gemm::kernel::detail::TileSchedulerSelector<
    bwgemm::dense::StreamKSm100Scheduler, cutlass::arch::Sm100, Tile, Cluster, kStages> {
  using Scheduler = bwgemm::dense::StreamKSm100<Tile, Cluster, kStages>;
};
