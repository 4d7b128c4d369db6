// One CTA quantizes a tile of 128 x 128, read once: all layouts, and the transposed copy, which
// passes through shared memory. A warp has 16 rows, a thread a patch of 8 x 8.
#pragma once

#include <cstdint>

#include "scaled/quantize/patch.h"
#include "scaled/quantize/philox.h"
#include "scaled/quantize/problem.h"
#include "scaled/quantize/rounding.h"

namespace bwgemm::scaled {

inline constexpr int kTile = kScaleBlock, kThreads = 256, kWarps = kThreads / 32;
// Rows of tiles that run side by side: their transposed copies are neighbours in memory.
inline constexpr int kBand = 8;

struct QuantizeParams {
  QuantizeProblem problem;
  int32_t row_tiles, column_tiles;
  bool vectors, t_vectors;  // whether eight elements of x and values, of t_values are aligned
};

// Factors are reciprocals of scales.
struct QuantizeShared {
  alignas(16) uint32_t column_amax[kWarps][kTile];
  alignas(16) float column_factor[kTile];
  uint32_t warp_amax[kWarps];
};

// Source: its Load(patch, batch, row, column) brings a patch of x; elements outside of x are zeros.
template <DType kIn, DType kOut, bool kTransposed, bool kRandom, class Source>
class TileQuantizer {
 public:
  // parts: of x side by side, equal in columns of tiles, whose tiles take turns: what they have in
  // common is then read from memory once.
  __device__ TileQuantizer(const QuantizeParams& params, QuantizeShared& shared, uint2* t_tile,
                           const Source& source, int parts = 1)
      : params_(params), p_(params.problem), shared_(shared), t_tile_(t_tile), source_(source) {
    const int tiles = params.row_tiles * params.column_tiles;
    batch_ = blockIdx.x / tiles;
    const int tile = blockIdx.x % tiles, in_band = kBand * params.column_tiles;
    const int band = tile / in_band, rest = tile % in_band;
    const int height = min(kBand, params.row_tiles - band * kBand);
    row_tile_ = band * kBand + rest % height;
    const int column = rest / height;
    column_tile_ = column % parts * (params.column_tiles / parts) + column / parts;
    row_ = row_tile_ * kTile + kPatch * (threadIdx.x / 16);
    column_ = column_tile_ * kTile + kPatch * (threadIdx.x % 16);
  }

  __device__ void Run() {
    source_.Load(patch_, batch_, row_, column_);
    uint32_t of_rows[kPatch], of_columns[kPatch];
    patch_.Largest(of_rows, of_columns);
    uint32_t largest = 0;
#pragma unroll
    for (int i = 0; i < kPatch; ++i) largest = max(largest, of_rows[i]);
    special_ = largest >= kInfinity;
    if constexpr (kRandom) Draw();

    // The factor of row i of this thread's patch is held by lane 2 i of its half of the warp.
    float factor = 1.0f;
    if (p_.blocks == Blocks::k1x128) {
      factor = RowBlocks(of_rows);
      if constexpr (kTransposed) PublishColumns(of_columns);
    } else if (p_.blocks == Blocks::kRow) {
      const int row = row_ + threadIdx.x % 16 / 2;
      if (row < p_.rows) factor = __frcp_rn(p_.scales[int64_t{batch_} * p_.rows + row]);
    } else if (p_.blocks == Blocks::kTensor) {
      factor = __frcp_rn(p_.scales[batch_]);
    }
    if (p_.blocks == Blocks::kSquare || p_.amax) {
      largest = TileLargest(largest);
      if (p_.blocks == Blocks::kSquare) factor = SquareBlock(largest);
      if (p_.amax && threadIdx.x == 0) p_.amax[blockIdx.x] = __uint_as_float(largest);
    }
    WriteValues(factor);
    if constexpr (kTransposed) WriteTransposed(factor);
  }

 private:
  // Of an element in a batch of row-major matrices.
  __device__ int64_t Offset(int64_t row, int64_t column, int64_t rows, int64_t columns) const {
    return (batch_ * rows + row) * columns + column;
  }

  // 16 random bits for each element, which round both copies.
  __device__ void Draw() {
    const int32_t* r = p_.random + int64_t{batch_} * kRandomWords;
    const uint2 key = {static_cast<uint32_t>(r[0]), static_cast<uint32_t>(r[1])};
#pragma unroll
    for (int i = 0; i < kPatch; ++i) {
      random_[i] = Philox({static_cast<uint32_t>(column_ / kPatch + r[4]),
                           static_cast<uint32_t>(row_ + i + r[3]), static_cast<uint32_t>(r[2]), 0},
                          key);
    }
  }

  __device__ uint32_t RandomOf(int i, int j) const {
    const uint4& four = random_[i];
    const uint32_t word = j < 2 ? four.x : j < 4 ? four.y : j < 6 ? four.z : four.w;
    return j % 2 ? word >> 16 : word & 0xFFFFu;
  }

  // The scales of blocks of 128 along K: the 16 threads of a row reduce all their rows at once,
  // each step leaving a thread half of them.
  __device__ float RowBlocks(const uint32_t* of_rows) {
    uint32_t left[kPatch];
#pragma unroll
    for (int i = 0; i < kPatch; ++i) left[i] = of_rows[i];
#pragma unroll
    for (int step = 8, count = kPatch / 2; count >= 1; step /= 2, count /= 2) {
      const bool upper = threadIdx.x & step;
#pragma unroll
      for (int i = 0; i < count; ++i) {
        const uint32_t given = upper ? left[i] : left[i + count];
        const uint32_t kept = upper ? left[i + count] : left[i];
        left[i] = max(kept, __shfl_xor_sync(0xFFFFFFFFu, given, step));
      }
    }
    const uint32_t amax = max(left[0], __shfl_xor_sync(0xFFFFFFFFu, left[0], 1));
    const float scale = ScaleOf<kOut>(amax, p_.epsilon, p_.power_of_two);
    const int row = row_ + threadIdx.x % 16 / 2;
    if (threadIdx.x % 2 == 0 && row < p_.rows) {
      p_.scales[Offset(column_tile_, row, params_.column_tiles, p_.rows)] = scale;
    }
    return __frcp_rn(scale);
  }

  // A warp's largest magnitude of each column.
  __device__ void PublishColumns(const uint32_t* of_columns) {
    const bool upper = threadIdx.x & 16;
    uint4 kept;
    auto reduced = [&](int j) {
      const uint32_t given = upper ? of_columns[j] : of_columns[j + 4];
      const uint32_t own = upper ? of_columns[j + 4] : of_columns[j];
      return max(own, __shfl_xor_sync(0xFFFFFFFFu, given, 16));
    };
    kept.x = reduced(0);
    kept.y = reduced(1);
    kept.z = reduced(2);
    kept.w = reduced(3);
    const int column = threadIdx.x % 16 * kPatch + (upper ? 4 : 0);
    *reinterpret_cast<uint4*>(&shared_.column_amax[threadIdx.x / 32][column]) = kept;
  }

  __device__ uint32_t TileLargest(uint32_t largest) {
#pragma unroll
    for (int step = 16; step >= 1; step /= 2) {
      largest = max(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, step));
    }
    if (threadIdx.x % 32 == 0) shared_.warp_amax[threadIdx.x / 32] = largest;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < kWarps; ++w) largest = max(largest, shared_.warp_amax[w]);
    return largest;
  }

  __device__ float SquareBlock(uint32_t largest) {
    const float scale = ScaleOf<kOut>(largest, p_.epsilon, p_.power_of_two);
    if (threadIdx.x == 0) {
      const int rows = params_.row_tiles, columns = params_.column_tiles;
      p_.scales[Offset(row_tile_, column_tile_, rows, columns)] = scale;
      if constexpr (kTransposed) {
        p_.t_scales[Offset(column_tile_, row_tile_, columns, rows)] = scale;
      }
    }
    return __frcp_rn(scale);
  }

  // Two neighbours, the first in the lower byte. i, j: of the first; down: the second is below it.
  template <bool kDown>
  __device__ uint32_t Convert(int i, int j, float factor) const {
    const int i2 = i + kDown, j2 = j + !kDown;
    float first = Times(patch_.At(i, j), factor);
    float second = Times(patch_.At(i2, j2), factor);
    if constexpr (kRandom) {
      first = Dithered<kOut>(first, RandomOf(i, j));
      second = Dithered<kOut>(second, RandomOf(i2, j2));
    }
    uint32_t bytes = Nearest<kOut>(first, second);
    if (special_) {
      const float a = patch_.At(i, j), b = patch_.At(i2, j2);
      if (IsSpecial(a)) bytes = (bytes & 0xFF00u) | Special<kOut>(a);
      if (IsSpecial(b)) bytes = (bytes & 0xFFu) | Special<kOut>(b) << 8;
    }
    return bytes;
  }

  __device__ void WriteValues(float factor) {
#pragma unroll
    for (int i = 0; i < kPatch; ++i) {
      const float f = __shfl_sync(0xFFFFFFFFu, factor, 2 * i, 16);
      const uint2 bytes = {Convert<false>(i, 0, f) | Convert<false>(i, 2, f) << 16,
                           Convert<false>(i, 4, f) | Convert<false>(i, 6, f) << 16};
      if (row_ + i >= p_.rows) continue;
      uint8_t* to = p_.values + Offset(row_ + i, column_, p_.rows, p_.columns);
      Store(to, bytes, p_.columns - column_, params_.vectors);
    }
  }

  static __device__ void Store(uint8_t* to, uint2 bytes, int count, bool vector) {
    if (count <= 0) return;
    if (vector) {
      *reinterpret_cast<uint2*>(to) = bytes;
      return;
    }
#pragma unroll
    for (int j = 0; j < kPatch; ++j) {
      if (j < count) to[j] = static_cast<uint8_t>((j < 4 ? bytes.x : bytes.y) >> (j % 4 * 8));
    }
  }

  // Puts the reciprocal scales of columns, which are rows of the transposed copy, into shared
  // memory.
  __device__ void PublishFactors() {
    __syncthreads();  // column_amax
    if (threadIdx.x < kTile) {
      const int column = column_tile_ * kTile + threadIdx.x;
      float scale = 1.0f;
      if (p_.blocks == Blocks::k1x128) {
        uint32_t amax = 0;
#pragma unroll
        for (int w = 0; w < kWarps; ++w) amax = max(amax, shared_.column_amax[w][threadIdx.x]);
        scale = ScaleOf<kOut>(amax, p_.epsilon, p_.power_of_two);
        if (column < p_.columns) {
          p_.t_scales[Offset(row_tile_, column, params_.row_tiles, p_.columns)] = scale;
        }
      } else if (column < p_.columns) {
        scale = p_.t_scales[int64_t{batch_} * p_.columns + column];
      }
      shared_.column_factor[threadIdx.x] = __frcp_rn(scale);
    }
    __syncthreads();
  }

  // A column's 128 bytes are 16 words of 8, of which a thread has one. Word w of column c lies at
  // w ^ (c / 8): neither the writes of a column's threads nor the reads of a row's conflict.
  __device__ void WriteTransposed(float factor) {
    const bool by_column = p_.blocks == Blocks::kRow || p_.blocks == Blocks::k1x128;
    if (by_column) PublishFactors();
    const int x = threadIdx.x % 16, y = threadIdx.x / 16;
#pragma unroll
    for (int j = 0; j < kPatch; ++j) {
      const float f = by_column ? shared_.column_factor[x * kPatch + j] : factor;
      const uint2 bytes = {Convert<true>(0, j, f) | Convert<true>(2, j, f) << 16,
                           Convert<true>(4, j, f) | Convert<true>(6, j, f) << 16};
      t_tile_[(x * kPatch + j) * 16 + (y ^ x)] = bytes;
    }
    __syncthreads();
    const int row = row_tile_ * kTile + x * kPatch;  // of the matrix: a column of the copy
#pragma unroll
    for (int i = 0; i < kPatch; ++i) {
      const int c = i * 16 + y, column = column_tile_ * kTile + c;
      if (column >= p_.columns) continue;
      const uint2 bytes = t_tile_[c * 16 + (x ^ (c / kPatch))];
      Store(p_.t_values + Offset(column, row, p_.columns, p_.rows), bytes, p_.rows - row,
            params_.t_vectors);
    }
  }

  const QuantizeParams& params_;
  const QuantizeProblem& p_;
  QuantizeShared& shared_;
  uint2* t_tile_;
  const Source& source_;
  int batch_, row_tile_, column_tile_, row_, column_;
  Patch<kIn> patch_;
  uint4 random_[kPatch];
  bool special_;  // whether the patch has infinities or NaNs
};

// x in memory.
template <DType kIn>
struct MemorySource {
  const QuantizeParams& params;

  __device__ void Load(Patch<kIn>& patch, int64_t batch, int row, int column) const {
    const QuantizeProblem& p = params.problem;
    const int64_t first = (batch * p.rows + row) * p.columns + column;
    patch.Load(static_cast<const char*>(p.x) + first * SizeOf(kIn), p.columns, p.rows - row,
               p.columns - column, params.vectors);
  }
};

// CTAs of a multiprocessor that the registers must suffice for: the most without spills. The
// compiler for SM100 needs more registers.
constexpr int LeastResident(DType in, bool transposed, bool random) {
  const bool large = in == DType::kF32 || random;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
  return large || transposed ? 1 : 2;
#else
  return large ? transposed ? 1 : 2 : 3;
#endif
}

template <DType kIn, DType kOut, bool kTransposed, bool kRandom>
__global__ void __launch_bounds__(kThreads, LeastResident(kIn, kTransposed, kRandom))
    QuantizeKernel(const __grid_constant__ QuantizeParams params) {
  __shared__ QuantizeShared shared;
  __shared__ alignas(16) uint2 t_tile[kTransposed ? kTile * kTile / sizeof(uint2) : 1];
  const MemorySource<kIn> source{params};
  using Quantizer = TileQuantizer<kIn, kOut, kTransposed, kRandom, MemorySource<kIn>>;
  Quantizer(params, shared, t_tile, source).Run();
}

}  // namespace bwgemm::scaled
