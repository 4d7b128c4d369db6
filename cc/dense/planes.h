// Splits a matrix of f32 into planes of bf16, one for each term, ahead of a product that multiplies
// the terms (sm90/split_mma.h).
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "core/status.h"
#include "dense/problem.h"

namespace bwgemm::dense {

// An operand to split: `matrices` of `rows` x k, whose k is contiguous or whose rows are.
struct PlanesProblem {
  GemmOperand x;
  bool k_major = true;
  int64_t rows = 0, k = 0, matrices = 1;
  int terms = 2;  // or 3

  // Planes are [terms, matrices, rows, pitch] in bf16: k is contiguous whatever it was.
  int64_t pitch() const { return (k + 7) / 8 * 8; }
  size_t bytes() const { return static_cast<size_t>(terms) * matrices * rows * pitch() * 2; }
};

// Launches a kernel. `planes`: aligned to 16 bytes, as are the operand and its pitches.
Status SplitIntoPlanes(const PlanesProblem& problem, void* planes, cudaStream_t stream);

}  // namespace bwgemm::dense
