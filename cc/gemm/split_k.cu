#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "common/cuda_status.h"
#include "gemm/split_k.h"

namespace bwgemm {
namespace {

constexpr int kThreads = 128;  // small blocks: a small D should still reach every multiprocessor
constexpr int kVector = 4;     // elements per thread, one 16-byte load per part

__device__ void Store(float* d, float4 v) { *reinterpret_cast<float4*>(d) = v; }
__device__ void Store(__nv_bfloat16* d, float4 v) {
  __nv_bfloat162 pair[2] = {__floats2bfloat162_rn(v.x, v.y), __floats2bfloat162_rn(v.z, v.w)};
  *reinterpret_cast<uint2*>(d) = *reinterpret_cast<uint2*>(pair);
}
__device__ void Store(__half* d, float4 v) {
  __half2 pair[2] = {__floats2half2_rn(v.x, v.y), __floats2half2_rn(v.z, v.w)};
  *reinterpret_cast<uint2*>(d) = *reinterpret_cast<uint2*>(pair);
}

// kBatch: parts on their way from memory at once.
template <class Out, int kBatch>
__global__ void __launch_bounds__(kThreads)
    AddPartialsKernel(const float4* partials, Out* d, int64_t vectors, int splits) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= vectors) return;
  constexpr float4 kNothing{-0.0f, -0.0f, -0.0f, -0.0f};  // the zero that changes no sum
  float4 sum = kNothing;
  for (int first = 0; first < splits; first += kBatch) {
    float4 part[kBatch];
#pragma unroll
    for (int s = 0; s < kBatch; ++s) {
      part[s] = first + s < splits ? partials[(first + s) * vectors + i] : kNothing;
    }
#pragma unroll
    for (int s = 0; s < kBatch; ++s) {
      sum.x += part[s].x;
      sum.y += part[s].y;
      sum.z += part[s].z;
      sum.w += part[s].w;
    }
  }
  Store(d + i * kVector, sum);
}

template <class Out>
Status Launch(const float* partials, void* d, int64_t elements, int splits, cudaStream_t stream) {
  const int64_t vectors = elements / kVector;
  const int64_t blocks = (vectors + kThreads - 1) / kThreads;
  if (blocks > INT32_MAX) {
    return Status::InvalidArgument("split-K result of " + std::to_string(elements) +
                                   " elements is too large");
  }
  const auto kernel = splits <= 4   ? AddPartialsKernel<Out, 4>
                      : splits <= 8 ? AddPartialsKernel<Out, 8>
                                    : AddPartialsKernel<Out, 16>;
  kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(
      reinterpret_cast<const float4*>(partials), static_cast<Out*>(d), vectors, splits);
  return BWGEMM_CUDA_STATUS(cudaGetLastError());
}

__global__ void __launch_bounds__(kThreads) ClearKernel(float4* words, int64_t vectors) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < vectors) words[i] = {0.0f, 0.0f, 0.0f, 0.0f};
}

}  // namespace

Status ClearCounters(void* counters, size_t bytes, cudaStream_t stream) {
  const int64_t vectors = static_cast<int64_t>(bytes / sizeof(float4));
  const int64_t blocks = (vectors + kThreads - 1) / kThreads;
  ClearKernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(
      static_cast<float4*>(counters), vectors);
  return BWGEMM_CUDA_STATUS(cudaGetLastError());
}

Status AddPartials(const float* partials, void* d, DType d_dtype, int64_t elements, int splits,
                   cudaStream_t stream) {
  switch (d_dtype) {
    case DType::kBF16:
      return Launch<__nv_bfloat16>(partials, d, elements, splits, stream);
    case DType::kF16:
      return Launch<__half>(partials, d, elements, splits, stream);
    case DType::kF32:
      return Launch<float>(partials, d, elements, splits, stream);
  }
  return Status::Internal("unknown dtype");
}

}  // namespace bwgemm
