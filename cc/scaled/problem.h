// The problem of a scaled product: plain structs, no device code, CUTLASS or XLA.
//
//   dense      D[B,M,N] = A[B,M,K] x transpose(B[B,N,K])
//   m-grouped  D[B,M,N], rows of group g = those of A[B,M,K] x transpose(B[B,g,N,K])
//   k-grouped  D[B,g,K,N] = A[B,K,M] x transpose(B[B,N,M]), of which the columns of group g
//
// Elements are values times scales. Sums are f32, D is row-major. The contracted dimension is the
// last of both operands. Where that is M (k-grouped), blocks of 128 begin at multiples of 128 of
// all M, and not where a group begins.
#pragma once

#include "dense/problem.h"
#include "grouped/problem.h"

namespace bwgemm::scaled {

// The f32 scales of one operand: the element (row, k) of matrix e of batch element b has the scale
// data[b * batch_pitch + e * expert_pitch + (k / 128) * k_pitch + (row >> log_rows) * row_pitch].
struct Scales {
  const float* data = nullptr;
  int64_t batch_pitch = 0;
  int64_t expert_pitch = 0;            // of B of m-grouped products alone
  int64_t k_pitch = 0, row_pitch = 0;  // 0: shared
  int32_t log_rows = 0;
  // Scales that an MMA reads, instead: in tiles (core/types.h), a band of rows after the other.
  // Pitches count bytes.
  const uint8_t* tiles = nullptr;
};

struct ScaledProblem {
  dense::GemmProblem gemm;
  Scales a, b;
  Scales alpha;  // of all elements, where values are e2m1

  std::string ToString() const { return gemm.ToString(); }
};

struct GroupedScaledProblem {
  grouped::GroupedProblem grouped;
  Scales a, b;
  Scales alpha;  // of each matrix's results, where values are e2m1

  std::string ToString() const { return grouped.ToString(); }
};

using KernelOps = bwgemm::KernelOps<ScaledProblem>;
using KernelEntry = bwgemm::KernelEntry<ScaledProblem>;
using GroupedKernelOps = bwgemm::KernelOps<GroupedScaledProblem>;
using GroupedKernelEntry = bwgemm::KernelEntry<GroupedScaledProblem>;

}  // namespace bwgemm::scaled
