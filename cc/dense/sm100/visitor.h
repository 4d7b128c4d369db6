// What every visitor of ours has: what CUTLASS asks of one that has arguments, but neither shared
// memory nor a workspace.
#pragma once

#include "cutlass/epilogue/fusion/sm90_visitor_tma_warpspecialized.hpp"

namespace bwgemm::dense::sm100 {

template <class Arguments_>
struct Visitor {
  struct SharedStorage {};
  using Arguments = Arguments_;
  using Params = Arguments_;

  template <class Shape>
  static Params to_underlying_arguments(const Shape&, const Arguments& arguments, void*) {
    return arguments;
  }
  template <class Shape>
  static bool can_implement(const Shape&, const Arguments&) {
    return true;
  }
  template <class Shape>
  static size_t get_workspace_size(const Shape&, const Arguments&) {
    return 0;
  }
  template <class Shape>
  static cutlass::Status initialize_workspace(const Shape&, const Arguments&, void*, cudaStream_t,
                                              cutlass::CudaHostAdapter* = nullptr) {
    return cutlass::Status::kSuccess;
  }

  Visitor() = default;
  CUTLASS_HOST_DEVICE Visitor(const Params& params, const SharedStorage&) : params(&params) {}

  CUTLASS_DEVICE bool is_producer_load_needed() const { return false; }
  CUTLASS_DEVICE bool is_C_load_needed() const { return false; }

  template <class... Args>
  CUTLASS_DEVICE auto get_producer_load_callbacks(
      const cutlass::epilogue::fusion::ProducerLoadArgs<Args...>&) {
    return cutlass::epilogue::fusion::EmptyProducerLoadCallbacks{};
  }

  const Params* params = nullptr;
};

}  // namespace bwgemm::dense::sm100
