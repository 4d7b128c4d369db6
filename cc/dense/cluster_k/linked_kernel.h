// The entry point of a cluster-K kernel for linking. The function follows the sum over all parts:
// a CTA applies it to its slice of the tile. It moves nothing for the function.
#pragma once

#include "core/epilogue_arguments.h"
#include "dense/cluster_k/kernel.h"
#include "dense/linked.h"

namespace bwgemm::dense::cluster_k {

struct LinkedResult {
  const EpilogueArguments& arguments;

  __device__ __forceinline__ float4 operator()(float4 sum, uint32_t row, uint32_t column,
                                               int batch) const {
    const int m = static_cast<int>(row), n = static_cast<int>(column);
    const float2 low = bwgemm_epilogue(sum.x, sum.y, m, n, batch, &arguments, nullptr, nullptr,
                                       nullptr, 0, nullptr);
    const float2 high = bwgemm_epilogue(sum.z, sum.w, m, n + 2, batch, &arguments, nullptr, nullptr,
                                        nullptr, 0, nullptr);
    return {low.x, low.y, high.x, high.y};
  }
};

}  // namespace bwgemm::dense::cluster_k

#define BWGEMM_LINKED_KERNEL(name, ...)                                                    \
  extern "C" __global__ void __launch_bounds__(dense::cluster_k::kThreads,                 \
                                               dense::cluster_k::kCtasPerSm)               \
      name(const __grid_constant__ WithEpilogue<dense::cluster_k::Params> params) {        \
    using Spec = __VA_ARGS__;                                                              \
    using C = dense::cluster_k::Config<Spec>;                                              \
    dense::cluster_k::RunGemm<C>(params, dense::cluster_k::LinkedResult{params.epilogue}); \
  }
