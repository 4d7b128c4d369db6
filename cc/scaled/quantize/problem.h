// Quantization of matrices: plain structs, no device code, CUTLASS or XLA.
//
//   x[B,R,K] -> values[B,R,K] of 8 bits, one scale for each block, and, if asked,
//   t_values[B,K,R]: the transposed matrices, with scales of their own blocks.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>

#include "core/epilogue_arguments.h"
#include "core/status.h"
#include "core/types.h"

namespace bwgemm::scaled {

// Which elements of a row-major matrix share a scale, and where scales come from.
enum class Blocks {
  kTensor,  // all; scales are operands
  kRow,     // a row; scales are operands
  k1x128,   // 128 along a row: scales[K/128, R]
  kSquare,  // 128 x 128: scales[R/128, K/128]
};

// Words of `random` for each matrix: a key of two, the matrix's number, and the row and the group
// of eight columns that it begins with in a larger one.
inline constexpr int kRandomWords = 5;

struct QuantizeProblem {
  int32_t batch = 1, rows = 0, columns = 0;
  DType x_dtype = DType::kBF16, out_dtype = DType::kE4M3;
  Blocks blocks = Blocks::kTensor;
  bool power_of_two = false;
  float epsilon = 0;

  const void* x = nullptr;
  const int32_t* random = nullptr;  // null: round to nearest even
  uint8_t* values = nullptr;
  uint8_t* t_values = nullptr;  // null: no transposed copy
  // Read of kTensor [B] and kRow [B,R], t_scales [B] and [B,K]; written of the others.
  float* scales = nullptr;
  float* t_scales = nullptr;
  // Largest magnitudes, one of each tile of 128 x 128, in any order; null: not wanted.
  float* amax = nullptr;

  std::string ToString() const {
    return "B=" + std::to_string(batch) + ", R=" + std::to_string(rows) +
           ", K=" + std::to_string(columns);
  }
};

// One kernel; pointers are aligned to their types.
Status Quantize(const QuantizeProblem& problem, cudaStream_t stream);

// The same of what a linked function computes: `function` is the kernel (linked.h). x is null.
Status QuantizeLinked(const QuantizeProblem& problem, const EpilogueArguments& source,
                      const void* function, cudaStream_t stream);

}  // namespace bwgemm::scaled
