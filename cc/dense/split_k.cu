#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <type_traits>

#include "core/ceil_div.h"
#include "core/cuda_status.h"
#include "core/helper_kernels.h"
#include "dense/split_k.h"

namespace bwgemm::dense {
namespace {

constexpr int kThreads = 128;  // small blocks: a small D should still reach every multiprocessor

// Elements that a thread adds, one load for each part.
template <int kVector>
struct alignas(kVector * sizeof(float)) Vector {
  float of[kVector];
};

template <class Out, int kVector>
__device__ void Store(Out* d, const Vector<kVector>& v) {
  if constexpr (std::is_same_v<Out, float>) {
    *reinterpret_cast<Vector<kVector>*>(d) = v;
  } else {
    using Pair = std::conditional_t<std::is_same_v<Out, __half>, __half2, __nv_bfloat162>;
    struct alignas(kVector * sizeof(Out)) {
      Pair of[kVector / 2];
    } pairs;
#pragma unroll
    for (int i = 0; i < kVector / 2; ++i) {
      if constexpr (std::is_same_v<Out, __half>) {
        pairs.of[i] = __floats2half2_rn(v.of[2 * i], v.of[2 * i + 1]);
      } else {
        pairs.of[i] = __floats2bfloat162_rn(v.of[2 * i], v.of[2 * i + 1]);
      }
    }
    *reinterpret_cast<decltype(pairs)*>(d) = pairs;
  }
}

// kBatch: parts on their way from memory at once.
template <class Out, int kVector, int kBatch>
__global__ void __launch_bounds__(kThreads)
    AddPartialsKernel(const Vector<kVector>* partials, Out* d, int64_t vectors, int splits) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= vectors) return;
  constexpr float kNothing = -0.0f;  // the zero that changes no sum
  Vector<kVector> sum;
#pragma unroll
  for (int j = 0; j < kVector; ++j) sum.of[j] = kNothing;
  for (int first = 0; first < splits; first += kBatch) {
    Vector<kVector> part[kBatch];
#pragma unroll
    for (int s = 0; s < kBatch; ++s) {
      if (first + s < splits) {
        part[s] = partials[(first + s) * vectors + i];
      } else {
#pragma unroll
        for (int j = 0; j < kVector; ++j) part[s].of[j] = kNothing;
      }
    }
#pragma unroll
    for (int s = 0; s < kBatch; ++s) {
#pragma unroll
      for (int j = 0; j < kVector; ++j) sum.of[j] += part[s].of[j];
    }
  }
  Store(d + i * kVector, sum);
}

template <class Out, int kVector>
Status LaunchVectors(const float* partials, Out* d, int64_t elements, int splits,
                     cudaStream_t stream) {
  const int64_t vectors = elements / kVector;
  const int64_t blocks = CeilDiv(vectors, kThreads);
  if (blocks > INT32_MAX) {
    return Status::InvalidArgument("split-K result of " + std::to_string(elements) +
                                   " elements is too large");
  }
  const auto kernel = splits <= 4   ? AddPartialsKernel<Out, kVector, 4>
                      : splits <= 8 ? AddPartialsKernel<Out, kVector, 8>
                                    : AddPartialsKernel<Out, kVector, 16>;
  kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(
      reinterpret_cast<const Vector<kVector>*>(partials), d, vectors, splits);
  return BWGEMM_CUDA_STATUS(cudaGetLastError());
}

template <class Out>
Status Launch(const float* partials, void* d, int64_t elements, int splits, cudaStream_t stream) {
  // Few elements: two to a thread, so that more threads load. Many: four to a thread.
  constexpr int64_t kFew = 256 * 1024;
  auto* to = static_cast<Out*>(d);
  return elements < kFew ? LaunchVectors<Out, 2>(partials, to, elements, splits, stream)
                         : LaunchVectors<Out, 4>(partials, to, elements, splits, stream);
}

__global__ void __launch_bounds__(kThreads) ClearKernel(float4* words, int64_t vectors) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < vectors) words[i] = {0.0f, 0.0f, 0.0f, 0.0f};
}

template <class Out, int kVector>
HelperKernels AddKernels() {
  return {reinterpret_cast<const void*>(&AddPartialsKernel<Out, kVector, 4>),
          reinterpret_cast<const void*>(&AddPartialsKernel<Out, kVector, 8>),
          reinterpret_cast<const void*>(&AddPartialsKernel<Out, kVector, 16>)};
}
const HelperKernels kHelpers[] = {AddKernels<__nv_bfloat16, 2>(),
                                  AddKernels<__nv_bfloat16, 4>(),
                                  AddKernels<__half, 2>(),
                                  AddKernels<__half, 4>(),
                                  AddKernels<float, 2>(),
                                  AddKernels<float, 4>(),
                                  {reinterpret_cast<const void*>(&ClearKernel)}};

}  // namespace

Status ClearCounters(void* counters, size_t bytes, cudaStream_t stream) {
  const int64_t vectors = static_cast<int64_t>(bytes / sizeof(float4));
  const int64_t blocks = CeilDiv(vectors, kThreads);
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

}  // namespace bwgemm::dense
