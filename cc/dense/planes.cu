#include <algorithm>

#include "core/ceil_div.h"
#include "core/cuda_status.h"
#include "core/helper_kernels.h"
#include "dense/planes.h"
#include "sm90/split.h"

namespace bwgemm::dense {
namespace {

constexpr int kThreads = 256;
constexpr int kVector = 8;  // elements of a plane that a thread stores at once
constexpr int kMostBlocks = 65535;

struct Params {
  const float* x;
  uint4* planes;
  int64_t pitch, batch_pitch;  // of x
  int64_t plane;               // vectors of a plane
  int32_t rows, k, matrices;
  int32_t vectors;         // of a row of a plane
  RowExponents exponents;  // for f16
  const uint32_t* wide;
};

// Terms of bf16.
template <int kTerms_>
struct BF16Terms {
  static constexpr int kTerms = kTerms_;
  __device__ __forceinline__ BF16Terms(const Params&, int, int64_t) {}
  __device__ __forceinline__ sm90::TermPairs<kTerms> Split(float first, float second) const {
    return sm90::SplitAfterOne<kTerms>(first, second);
  }
};

// Terms of f16, of a row that is scaled.
struct F16Terms {
  static constexpr int kTerms = 2;
  float scale;
  __device__ __forceinline__ F16Terms(const Params& params, int matrix, int64_t row)
      : scale(sm90::RowScale(*params.exponents.At(matrix, static_cast<int>(row)))) {}
  __device__ __forceinline__ sm90::TermPairs<kTerms> Split(float first, float second) const {
    return sm90::SplitF16(first * scale, second * scale);
  }
};

template <class Terms>
__device__ __forceinline__ void StoreTerms(const Params& params, Terms terms, int64_t at,
                                           const float (&x)[kVector]) {
  constexpr int kTerms = Terms::kTerms;
  sm90::TermPairs<kTerms> split[kVector / 2];
#pragma unroll
  for (int i = 0; i < kVector / 2; ++i) split[i] = terms.Split(x[2 * i], x[2 * i + 1]);
#pragma unroll
  for (int term = 0; term < kTerms; ++term) {
    params.planes[term * params.plane + at] = {split[0].pairs[term], split[1].pairs[term],
                                               split[2].pairs[term], split[3].pairs[term]};
  }
}

__device__ void Load4(float* to, const float* from, bool inside) {
  const float4 x = inside ? *reinterpret_cast<const float4*>(from) : float4{0.0f, 0.0f, 0.0f, 0.0f};
  to[0] = x.x, to[1] = x.y, to[2] = x.z, to[3] = x.w;
}

// A warp stores a row's vectors.
template <class Terms>
__device__ __forceinline__ void SplitKMajor(const Params& params) {
  const int vector = blockIdx.x * 32 + threadIdx.x % 32, k = vector * kVector;
  if (vector >= params.vectors) return;
  constexpr int kRows = kThreads / 32;
  for (int matrix = blockIdx.z; matrix < params.matrices; matrix += gridDim.z) {
    for (int64_t row = blockIdx.y * kRows + threadIdx.x / 32; row < params.rows;
         row += gridDim.y * kRows) {
      const float* from = params.x + matrix * params.batch_pitch + row * params.pitch + k;
      float x[kVector];
      Load4(x, from, true);
      Load4(x + 4, from + 4, k + 4 < params.k);
      StoreTerms(params, Terms(params, matrix, row),
                 (matrix * int64_t{params.rows} + row) * params.vectors + vector, x);
    }
  }
}

// Squares of x, through shared memory: rows are contiguous in x, k in the planes.
template <class Terms>
__device__ __forceinline__ void SplitRowMajor(const Params& params) {
  constexpr int kSide = 64, kVectors = kSide / kVector;
  __shared__ float square[kSide][kSide + 1];
  const int first_k = blockIdx.x * kSide;
  for (int matrix = blockIdx.z; matrix < params.matrices; matrix += gridDim.z) {
    for (int64_t first_row = int64_t{blockIdx.y} * kSide; first_row < params.rows;
         first_row += int64_t{gridDim.y} * kSide) {
#pragma unroll
      for (int i = threadIdx.x; i < kSide * kSide / 4; i += kThreads) {
        const int k = first_k + i / (kSide / 4), in_row = i % (kSide / 4) * 4;
        const int64_t row = first_row + in_row;
        const float* from = params.x + matrix * params.batch_pitch + k * params.pitch + row;
        float x[4];
        Load4(x, from, k < params.k && row < params.rows);
#pragma unroll
        for (int j = 0; j < 4; ++j) square[i / (kSide / 4)][in_row + j] = x[j];
      }
      __syncthreads();
#pragma unroll
      for (int i = threadIdx.x; i < kSide * kVectors; i += kThreads) {
        const int in_row = i / kVectors, vector = i % kVectors;
        const int64_t row = first_row + in_row;
        const int to = first_k / kVector + vector;
        if (row < params.rows && to < params.vectors) {
          float x[kVector];
#pragma unroll
          for (int j = 0; j < kVector; ++j) x[j] = square[vector * kVector + j][in_row];
          StoreTerms(params, Terms(params, matrix, row),
                     (matrix * int64_t{params.rows} + row) * params.vectors + to, x);
        }
      }
      __syncthreads();
    }
  }
}

template <class Terms>
__global__ void __launch_bounds__(kThreads, 2) KMajorKernel(const __grid_constant__ Params params) {
  SplitKMajor<Terms>(params);
}
template <class Terms>
__global__ void __launch_bounds__(kThreads, 2)
    RowMajorKernel(const __grid_constant__ Params params) {
  SplitRowMajor<Terms>(params);
}
__global__ void __launch_bounds__(kThreads, 2)
    KMajorByRangeKernel(const __grid_constant__ Params params) {
  *params.wide ? SplitKMajor<BF16Terms<3>>(params) : SplitKMajor<F16Terms>(params);
}
__global__ void __launch_bounds__(kThreads, 2)
    RowMajorByRangeKernel(const __grid_constant__ Params params) {
  *params.wide ? SplitRowMajor<BF16Terms<3>>(params) : SplitRowMajor<F16Terms>(params);
}

Params ParamsOf(const PlanesProblem& problem, void* planes) {
  Params params{};
  params.x = static_cast<const float*>(problem.x.data);
  params.planes = static_cast<uint4*>(planes);
  params.pitch = problem.x.pitch;
  params.batch_pitch = problem.x.batch_pitch;
  params.vectors = static_cast<int32_t>(problem.pitch() / kVector);
  params.plane = problem.matrices * problem.rows * params.vectors;
  params.rows = static_cast<int32_t>(problem.rows);
  params.k = static_cast<int32_t>(problem.k);
  params.matrices = static_cast<int32_t>(problem.matrices);
  return params;
}

using Kernel = void (*)(Params);
const HelperKernels kHelpers{reinterpret_cast<const void*>(&KMajorKernel<BF16Terms<2>>),
                             reinterpret_cast<const void*>(&RowMajorKernel<BF16Terms<2>>),
                             reinterpret_cast<const void*>(&KMajorKernel<BF16Terms<3>>),
                             reinterpret_cast<const void*>(&RowMajorKernel<BF16Terms<3>>),
                             reinterpret_cast<const void*>(&KMajorByRangeKernel),
                             reinterpret_cast<const void*>(&RowMajorByRangeKernel)};

Status Launch(const PlanesProblem& problem, const Params& params, Kernel k_major, Kernel row_major,
              cudaStream_t stream) {
  const auto blocks = [](int64_t extent, int64_t of_block) {
    return static_cast<unsigned>(CeilDiv(extent, of_block));
  };
  const auto few = [&](int64_t extent, int64_t of_block) {
    return std::min<unsigned>(blocks(extent, of_block), kMostBlocks);
  };
  const unsigned matrices = few(problem.matrices, 1);
  if (problem.k_major) {
    const dim3 grid(blocks(params.vectors, 32), few(problem.rows, kThreads / 32), matrices);
    k_major<<<grid, kThreads, 0, stream>>>(params);
  } else {
    const dim3 grid(blocks(problem.k, 64), few(problem.rows, 64), matrices);
    row_major<<<grid, kThreads, 0, stream>>>(params);
  }
  return BWGEMM_CUDA_STATUS(cudaGetLastError());
}

}  // namespace

Status SplitIntoPlanes(const PlanesProblem& problem, void* planes, cudaStream_t stream) {
  const Params params = ParamsOf(problem, planes);
  return problem.terms == 2 ? Launch(problem, params, KMajorKernel<BF16Terms<2>>,
                                     RowMajorKernel<BF16Terms<2>>, stream)
                            : Launch(problem, params, KMajorKernel<BF16Terms<3>>,
                                     RowMajorKernel<BF16Terms<3>>, stream);
}

Status SplitByRange(const PlanesProblem& problem, const RowExponents& exponents,
                    const uint32_t* wide, void* planes, cudaStream_t stream) {
  Params params = ParamsOf(problem, planes);
  params.exponents = exponents;
  params.wide = wide;
  return Launch(problem, params, KMajorByRangeKernel, RowMajorByRangeKernel, stream);
}

}  // namespace bwgemm::dense
