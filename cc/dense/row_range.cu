#include <algorithm>

#include "core/ceil_div.h"
#include "core/cuda_status.h"
#include "core/helper_kernels.h"
#include "dense/row_range.h"

namespace bwgemm::dense {
namespace {

constexpr int kWarp = 32;
constexpr int kMostBlocks = 65535;  // along y and z

struct Params {
  const float* x;
  uint8_t* exponents;
  uint32_t* wide;
  int64_t pitch, batch_pitch;  // of x
  int32_t rows, k, matrices;
};

// The exponents of values that are not zero. Integers: the order of additions does not matter.
struct Range {
  uint64_t squares = 0;
  uint64_t sum = 0;
  uint32_t count = 0;
  uint32_t most = 0;

  __device__ void Add(const Range& other) {
    squares += other.squares;
    sum += other.sum;
    count += other.count;
    most = max(most, other.most);
  }

  template <int kCount>
  __device__ void Add(const float (&x)[kCount]) {
    uint32_t their_squares = 0, their_sum = 0;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const uint32_t magnitude = __float_as_uint(x[i]) & 0x7fffffff, exponent = magnitude >> 23;
      their_squares += exponent * exponent;
      their_sum += exponent;
      count += magnitude != 0;
      most = max(most, exponent);
    }
    squares += their_squares;
    sum += their_sum;
  }

  __device__ void AddWarp() {
#pragma unroll
    for (int lane = kWarp / 2; lane > 0; lane /= 2) {
      Range other;
      other.squares = __shfl_xor_sync(0xffffffff, squares, lane);
      other.sum = __shfl_xor_sync(0xffffffff, sum, lane);
      other.count = __shfl_xor_sync(0xffffffff, count, lane);
      other.most = __shfl_xor_sync(0xffffffff, most, lane);
      Add(other);
    }
  }

  // The sum of the squares of the distances from the largest, against the limit; and infinity, NaN.
  __device__ bool Wide() const {
    const int64_t top = most, distances = static_cast<int64_t>(count) * top * top -
                                          2 * top * static_cast<int64_t>(sum) +
                                          static_cast<int64_t>(squares);
    return most == 255 || distances > static_cast<int64_t>(count) * kMostSquare;
  }

  __device__ void Store(const Params& params, int64_t row) const {
    params.exponents[row] = static_cast<uint8_t>(most);
    if (Wide()) *params.wide = 1;  // from any number of threads: the same value
  }
};

// K contiguous: kWarps warps have a row.
template <int kWarps>
__global__ void __launch_bounds__(8 * kWarp) KMajorKernel(Params params) {
  constexpr int kRows = 8 / kWarps;
  __shared__ Range ranges[8];
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  for (int matrix = blockIdx.z; matrix < params.matrices; matrix += gridDim.z) {
    for (int64_t first = int64_t{blockIdx.x} * kRows; first < params.rows;
         first += int64_t{gridDim.x} * kRows) {
      const int64_t row = first + warp / kWarps;
      Range range;
      if (row < params.rows) {
        const float* x = params.x + matrix * params.batch_pitch + row * params.pitch;
#pragma unroll 4
        for (int64_t k = 4 * (warp % kWarps * kWarp + lane); k < params.k;
             k += 4 * kWarps * kWarp) {
          const float4 four = *reinterpret_cast<const float4*>(x + k);
          range.Add({four.x, four.y, four.z, four.w});
        }
      }
      range.AddWarp();
      if constexpr (kWarps > 1) {
        if (lane == 0) ranges[warp] = range;
        __syncthreads();
        if (warp % kWarps == 0 && lane == 0) {
          for (int i = 1; i < kWarps; ++i) range.Add(ranges[warp + i]);
        }
      }
      if (row < params.rows && warp % kWarps == 0 && lane == 0) {
        range.Store(params, matrix * int64_t{params.rows} + row);
      }
      if constexpr (kWarps > 1) __syncthreads();
    }
  }
}

// Rows contiguous: a block has 32 rows, a warp every 32nd k of them, then every row a warp.
__global__ void __launch_bounds__(1024) RowMajorKernel(Params params) {
  __shared__ Range ranges[kWarp][kWarp + 1];
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  for (int matrix = blockIdx.z; matrix < params.matrices; matrix += gridDim.z) {
    for (int64_t first = int64_t{blockIdx.x} * kWarp; first < params.rows;
         first += int64_t{gridDim.x} * kWarp) {
      Range range;
      if (first + lane < params.rows) {
        const float* x = params.x + matrix * params.batch_pitch + first + lane;
#pragma unroll 4
        for (int64_t k = warp; k < params.k; k += kWarp) range.Add({x[k * params.pitch]});
      }
      ranges[warp][lane] = range;
      __syncthreads();
      Range own = ranges[lane][warp];
      own.AddWarp();
      if (lane == 0 && first + warp < params.rows) {
        own.Store(params, matrix * int64_t{params.rows} + first + warp);
      }
      __syncthreads();
    }
  }
}

const HelperKernels kHelpers{reinterpret_cast<const void*>(&RowMajorKernel),
                             reinterpret_cast<const void*>(&KMajorKernel<8>),
                             reinterpret_cast<const void*>(&KMajorKernel<1>)};

}  // namespace

Status FindRowExponents(const RowsOfF32& operand, uint8_t* exponents, uint32_t* wide,
                        cudaStream_t stream) {
  Params params;
  params.x = static_cast<const float*>(operand.x.data);
  params.exponents = exponents;
  params.wide = wide;
  params.pitch = operand.x.pitch;
  params.batch_pitch = operand.x.batch_pitch;
  params.rows = static_cast<int32_t>(operand.rows);
  params.k = static_cast<int32_t>(operand.k);
  params.matrices = static_cast<int32_t>(operand.matrices);
  const bool long_rows = operand.k > 2048;
  const int64_t in_block = !operand.k_major ? kWarp : long_rows ? 1 : 8;
  const auto blocks = std::min<int64_t>(CeilDiv(operand.rows, in_block), INT32_MAX);
  const dim3 grid(static_cast<unsigned>(blocks), 1,
                  static_cast<unsigned>(std::min<int64_t>(operand.matrices, kMostBlocks)));
  if (!operand.k_major) {
    RowMajorKernel<<<grid, 1024, 0, stream>>>(params);
  } else if (long_rows) {
    KMajorKernel<8><<<grid, 8 * kWarp, 0, stream>>>(params);
  } else {
    KMajorKernel<1><<<grid, 8 * kWarp, 0, stream>>>(params);
  }
  return BWGEMM_CUDA_STATUS(cudaGetLastError());
}

}  // namespace bwgemm::dense
