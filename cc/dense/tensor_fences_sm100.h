// CUTLASS's SM100 main loop and epilogue with fences around their use of tensor memory.
//
// Accesses of tensor memory by different threads are ordered by a barrier only with
// tcgen05.fence::before_thread_sync on the one side and ::after_thread_sync on the other (PTX ISA
// 9.7.16.6). CUTLASS leaves both out around the barriers by which the MMA and the epilogue's warps
// hand accumulators to each other. It takes that pipeline as a template argument, so it can be
// given one that has them.
#pragma once

#include "cutlass/cutlass.h"

namespace bwgemm::dense {

// tcgen05.commit, by which the producer hands over an accumulator, implies the fence.
template <class Pipeline>
struct FencedPipeline : Pipeline {
  using PipelineState = typename Pipeline::PipelineState;

  CUTLASS_DEVICE explicit FencedPipeline(const Pipeline& pipeline) : Pipeline(pipeline) {}

  template <class... Token>
  CUTLASS_DEVICE void producer_acquire(PipelineState state, Token... token) {
    Pipeline::producer_acquire(state, token...);
    After();
  }
  template <class... Token>
  CUTLASS_DEVICE void consumer_wait(PipelineState state, Token... token) {
    Pipeline::consumer_wait(state, token...);
    After();
  }
  CUTLASS_DEVICE void consumer_release(PipelineState state) {
    asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
    Pipeline::consumer_release(state);
  }

 private:
  static CUTLASS_DEVICE void After() {
    asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
  }
};

// Of a CollectiveMma.
template <class Base>
struct FencedMainloop : Base {
  using Base::Base;

  template <class Loads, class Accumulators, class... Rest>
  CUTLASS_DEVICE auto mma(cute::tuple<Loads, Accumulators> pipelines, Rest&&... rest) {
    const auto& [loads, accumulators] = pipelines;
    return Base::mma(cute::make_tuple(loads, FencedPipeline<Accumulators>(accumulators)),
                     static_cast<Rest&&>(rest)...);
  }
};

// Of a CollectiveEpilogue.
template <class Base>
struct FencedEpilogue : Base {
  using Base::Base;

  template <bool kReuseTmem = false, class LoadState, class StoreState, class Accumulators,
            class... Rest>
  CUTLASS_DEVICE auto store(typename Base::LoadPipeline loads, LoadState load_state,
                            typename Base::StorePipeline stores, StoreState store_state,
                            Accumulators accumulators, Rest&&... rest) {
    return Base::template store<kReuseTmem>(loads, load_state, stores, store_state,
                                            FencedPipeline<Accumulators>(accumulators),
                                            static_cast<Rest&&>(rest)...);
  }
};

}  // namespace bwgemm::dense
