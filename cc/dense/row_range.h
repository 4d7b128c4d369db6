// The range of an f32 operand's rows, ahead of a product of its f16 terms (sm90/split.h).
//
// The terms' absolute error is at most 2^-39 of a row's largest magnitude. That is as good as f32's
// rounding if most values of the row are not much smaller. So a row is *narrow* if the exponents of
// its values that are not zero lie, in the root mean square, at most 11.3 below the largest
// (kMostSquare). If all rows of both operands are narrow and finite, the terms are f16, else bf16:
// a flag in memory decides, which kernels read (Condition), so that the host need not wait.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "core/status.h"
#include "dense/problem.h"

namespace bwgemm::dense {

constexpr int kMostSquare = 128;

// `matrices` of `rows` x k in f32, whose k is contiguous or whose rows are.
struct RowsOfF32 {
  GemmOperand x;
  bool k_major = true;
  int64_t rows = 0, k = 0, matrices = 1;
};

// Biased exponents of the rows' largest magnitudes: [matrices, rows], and kExponentsAfter more that
// tiles at the edge read.
constexpr int kExponentsAfter = 256;
struct RowExponents {
  const uint8_t* data = nullptr;
  int32_t rows = 0;

  __device__ __forceinline__ const uint8_t* At(int matrix, int row) const {
    return data + (matrix * int64_t{rows} + row);
  }
};

// Which of two launches does its work: if its condition is not met, a kernel returns at once.
struct Condition {
  const uint32_t* wide = nullptr;  // whether a row is not narrow; null: no condition
  bool if_wide = false;

  __device__ __forceinline__ bool Unmet() const { return wide && (*wide != 0) != if_wide; }
};

// Launches a kernel that writes `exponents`, as RowExponents, and sets *wide if a row is not
// narrow. The operand and its pitches: aligned to 16 bytes.
Status FindRowExponents(const RowsOfF32& operand, uint8_t* exponents, uint32_t* wide,
                        cudaStream_t stream);

}  // namespace bwgemm::dense
