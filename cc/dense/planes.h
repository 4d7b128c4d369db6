// Splits a matrix of f32 into planes of 16-bit terms ahead of a product that multiplies these
// (sm90/split_mma.h).
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "core/status.h"
#include "dense/problem.h"
#include "dense/row_range.h"

namespace bwgemm::dense {

// An operand to split.
struct PlanesProblem : RowsOfF32 {
  int terms = 2;  // or 3, of bf16

  // Planes are [terms, matrices, rows, pitch]: k is contiguous whatever it was.
  int64_t pitch() const { return (k + 7) / 8 * 8; }
  size_t bytes() const { return static_cast<size_t>(terms) * matrices * rows * pitch() * 2; }
};

// Launches a kernel. `planes`: aligned to 16 bytes, as are the operand and its pitches.
Status SplitIntoPlanes(const PlanesProblem& problem, void* planes, cudaStream_t stream);

// The same of f16 terms of rows with these exponents; if *wide, of three bf16 terms, for which
// there has to be space.
Status SplitByRange(const PlanesProblem& problem, const RowExponents& exponents,
                    const uint32_t* wide, void* planes, cudaStream_t stream);

}  // namespace bwgemm::dense
