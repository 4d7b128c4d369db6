// The entry points of the second kernel of split-K for linking: a thread adds the parts of two
// neighbouring results, always in the order of the parts, and the function follows. It moves
// nothing for the function, which loads and stores whole lines of a warp's.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "dense/linked.h"
#include "dense/split_k/linked.h"

namespace bwgemm::dense::split_k {

inline __device__ void StorePair(__nv_bfloat162* d, float2 x) {
  *d = __floats2bfloat162_rn(x.x, x.y);
}
inline __device__ void StorePair(__half2* d, float2 x) { *d = __floats2half2_rn(x.x, x.y); }

template <class Pair>
__device__ __forceinline__ void AddPartials(const LinkedParams& params) {
  constexpr int kBatch = 8;          // parts on their way from memory at once
  constexpr float kNothing = -0.0f;  // the zero that changes no sum
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= params.pairs) return;
  float2 sum{kNothing, kNothing};
  for (int first = 0; first < params.splits; first += kBatch) {
    float2 part[kBatch];
#pragma unroll
    for (int s = 0; s < kBatch; ++s) {
      part[s] = float2{kNothing, kNothing};
      if (first + s < params.splits) part[s] = params.partials[(first + s) * params.pairs + i];
    }
#pragma unroll
    for (int s = 0; s < kBatch; ++s) {
      sum.x += part[s].x;
      sum.y += part[s].y;
    }
  }
  const int64_t width = params.epilogue.n / 2;
  const int64_t row = i / width;
  const float2 result =
      bwgemm_epilogue(sum.x, sum.y, static_cast<int>(row), static_cast<int>(i - row * width) * 2,
                      /*batch=*/0, &params.epilogue, nullptr, nullptr, nullptr, 0, nullptr);
  StorePair(static_cast<Pair*>(params.d) + i, result);
}

}  // namespace bwgemm::dense::split_k

// By the name of D's type.
#define BWGEMM_LINKED_SPLIT_K(arch, type, Pair)                                                    \
  extern "C" __global__ void __launch_bounds__(bwgemm::dense::split_k::kThreads)                   \
      arch##_split_k_##type(const __grid_constant__ bwgemm::dense::split_k::LinkedParams params) { \
    bwgemm::dense::split_k::AddPartials<Pair>(params);                                             \
  }
