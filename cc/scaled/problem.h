// The problem of a scaled product: plain structs, no CUDA, CUTLASS or XLA.
//
//   D[B,M,N] = A[B,M,K] x transpose(B[B,N,K]), values times scales, f32 accumulation, D row-major.
#pragma once

#include "dense/problem.h"

namespace bwgemm::scaled {

// The f32 scales of one operand: the element (row, k) of matrix b has the scale
// data[b * batch_pitch + (k / 128) * k_pitch + (row >> log_rows) * row_pitch].
struct Scales {
  const float* data = nullptr;
  int64_t batch_pitch = 0;
  int64_t k_pitch = 0, row_pitch = 0;  // 0: shared
  int32_t log_rows = 0;
};

struct ScaledProblem {
  dense::GemmProblem gemm;
  Scales a, b;

  std::string ToString() const { return gemm.ToString(); }
};

using KernelOps = bwgemm::KernelOps<ScaledProblem>;
using KernelEntry = bwgemm::KernelEntry<ScaledProblem>;

}  // namespace bwgemm::scaled
