// The 8 x 8 elements of a matrix that a thread holds, as they were read.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "core/types.h"
#include "scaled/quantize/rounding.h"

namespace bwgemm::scaled {

inline constexpr int kPatch = 8;

template <DType kIn>
__device__ float Widen(uint32_t bits16) {
  if constexpr (kIn == DType::kBF16) {
    return __uint_as_float(bits16 << 16);
  } else {
    return __half2float(__ushort_as_half(static_cast<unsigned short>(bits16)));
  }
}

template <DType kIn>
struct Patch {
  static constexpr bool kWide = kIn == DType::kF32;
  static constexpr int kWords = kWide ? kPatch : kPatch / 2;  // of a row
  uint32_t words[kPatch][kWords];

  __device__ float At(int row, int column) const {
    if constexpr (kWide) {
      return __uint_as_float(words[row][column]);
    } else {
      const uint32_t word = words[row][column / 2];
      return Widen<kIn>(column % 2 ? word >> 16 : word & 0xFFFFu);
    }
  }

  // Elements outside of the matrix are zeros. x: the patch's first element; rows and columns: how
  // many of the matrix begin here; vectors: whether rows are aligned to 16 bytes and columns is a
  // multiple of kPatch.
  __device__ void Load(const void* x, int64_t pitch, int rows, int columns, bool vectors) {
    using Element = std::conditional_t<kWide, uint32_t, uint16_t>;
    const auto* first = static_cast<const Element*>(x);
#pragma unroll
    for (int i = 0; i < kPatch; ++i) {
      const Element* row = first + i * pitch;
#pragma unroll
      for (int w = 0; w < kWords; ++w) words[i][w] = 0;
      if (i >= rows || columns <= 0) continue;
      if (vectors) {
#pragma unroll
        for (int v = 0; v < kWords / 4; ++v) {
          const uint4 four = __ldg(reinterpret_cast<const uint4*>(row) + v);
          words[i][4 * v] = four.x;
          words[i][4 * v + 1] = four.y;
          words[i][4 * v + 2] = four.z;
          words[i][4 * v + 3] = four.w;
        }
        continue;
      }
#pragma unroll
      for (int j = 0; j < kPatch; ++j) {
        if (j >= columns) continue;
        if constexpr (kWide) {
          words[i][j] = row[j];
        } else {
          words[i][j / 2] |= static_cast<uint32_t>(row[j]) << (j % 2 * 16);
        }
      }
    }
  }

  // Largest magnitudes, as bits of f32, of the patch's rows and columns. Compared as integers: NaN
  // is above infinity, which is above all numbers.
  __device__ void Largest(uint32_t* of_rows, uint32_t* of_columns) const {
    if constexpr (kWide) {
#pragma unroll
      for (int i = 0; i < kPatch; ++i) of_rows[i] = of_columns[i] = 0;
#pragma unroll
      for (int i = 0; i < kPatch; ++i) {
#pragma unroll
        for (int j = 0; j < kPatch; ++j) {
          const uint32_t magnitude = words[i][j] & 0x7FFFFFFFu;
          of_rows[i] = max(of_rows[i], magnitude);
          of_columns[j] = max(of_columns[j], magnitude);
        }
      }
    } else {
      uint32_t pairs[kWords] = {};
#pragma unroll
      for (int i = 0; i < kPatch; ++i) {
        uint32_t row = 0;
#pragma unroll
        for (int w = 0; w < kWords; ++w) {
          const uint32_t magnitudes = words[i][w] & 0x7FFF7FFFu;
          row = __vmaxu2(row, magnitudes);
          pairs[w] = __vmaxu2(pairs[w], magnitudes);
        }
        of_rows[i] = __float_as_uint(Widen<kIn>(max(row >> 16, row & 0xFFFFu)));
      }
#pragma unroll
      for (int w = 0; w < kWords; ++w) {
        of_columns[2 * w] = __float_as_uint(Widen<kIn>(pairs[w] & 0xFFFFu));
        of_columns[2 * w + 1] = __float_as_uint(Widen<kIn>(pairs[w] >> 16));
      }
    }
  }
};

}  // namespace bwgemm::scaled
