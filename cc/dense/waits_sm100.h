// Waits and fences that the PTX ISA requires and CUTLASS's SM100 kernels leave out. The emulator
// reports where they are missing.
//
// CUTLASS's kernels are only included from here: they find the function below by its name, so it
// must come first.
#pragma once

#include "cutlass/arch/barrier.h"
#include "cutlass/epilogue/fusion/sm90_visitor_tma_warpspecialized.hpp"
#include "cutlass/pipeline/sm90_pipeline.hpp"

namespace cutlass::gemm::kernel {

// CUTLASS's kernels initialise the barrier by which the CTAs of a pair free tensor memory after the
// last fence. The cluster barrier that follows is relaxed, so the peer might not see it (PTX ISA
// 9.7.13.4). Unqualified calls in this namespace find this function, not that of namespace cutlass.
CUTLASS_DEVICE void pipeline_init_arrive_relaxed(int cluster_size) {
  arch::fence_barrier_init();
  cutlass::pipeline_init_arrive_relaxed(cluster_size);
}

}  // namespace cutlass::gemm::kernel

#include "cutlass/gemm/kernel/gemm_universal_decl.h"
#include "cutlass/gemm/kernel/sm100_gemm_tma_warpspecialized.hpp"
#include "cutlass/gemm/kernel/tile_scheduler.hpp"
#include "dense/tensor_fences_sm100.h"

namespace bwgemm::dense {

// The epilogue's result: the rounded accumulator, after tcgen05.ld has loaded it. Registers may not
// be used before tcgen05.wait::ld (PTX ISA 9.7.16.8), which CUTLASS only has after a tile's last
// load.
template <class Out>
struct LoadedAccumulator : cutlass::epilogue::fusion::Sm90VisitorImpl<> {
  using cutlass::epilogue::fusion::Sm90VisitorImpl<>::Sm90VisitorImpl;

  struct ConsumerStoreCallbacks : cutlass::epilogue::fusion::EmptyConsumerStoreCallbacks {
    // `index` counts the parts of what one load has brought, and is known when it is compiled.
    template <class Value, int kCount>
    CUTLASS_DEVICE cutlass::Array<Out, kCount> visit(
        const cutlass::Array<Value, kCount>& accumulator, int index, int, int) {
      if (index == 0) cutlass::arch::fence_view_async_tmem_load();
      return cutlass::NumericArrayConverter<Out, Value, kCount>{}(accumulator);
    }
  };

  template <bool kReferenceSource, class... Args>
  CUTLASS_DEVICE auto get_consumer_store_callbacks(
      const cutlass::epilogue::fusion::ConsumerStoreArgs<Args...>&) {
    return ConsumerStoreCallbacks{};
  }
};

// Shared memory must stay until the last bulk stores have read it.
template <class Base>
struct WaitsForStores : Base {
  CUTLASS_DEVICE void operator()(const typename Base::Params& params, char* shared) {
    Base::operator()(params, shared);
    cute::tma_store_wait<0>();
  }
};

// CUTLASS's SM100 kernel with these waits and fences.
template <class Shape, class Mainloop, class Epilogue, class Scheduler>
using OrderedKernel =
    WaitsForStores<cutlass::gemm::kernel::GemmUniversal<Shape, FencedMainloop<Mainloop>,
                                                        FencedEpilogue<Epilogue>, Scheduler>>;

}  // namespace bwgemm::dense
