// What kernels ask of a problem.
#pragma once

#include <string>

#include "core/status.h"
#include "dense/problem.h"

namespace bwgemm::dense {

inline Status NotAligned(const GemmProblem& p) {
  return Status::InvalidArgument("the contiguous dimensions of " + p.ToString() +
                                 " must be multiples of " + std::to_string(kAlignmentBytes) +
                                 " bytes");
}

// Tensor maps want every line to begin at a multiple of 16 bytes.
inline Status CheckAligned(const GemmProblem& p, DType a, DType b, DType out) {
  auto aligned = [](const GemmOperand& x, DType dtype) {
    const int elements = kAlignmentBytes / SizeOf(dtype);
    return x.pitch % elements == 0 && x.batch_pitch % elements == 0;
  };
  const bool all = aligned(p.a, a) && aligned(p.b, b) && aligned(p.d, out);
  return all ? Status::Ok() : NotAligned(p);
}

// CTAs along y or z of a grid.
constexpr int64_t kMostGridY = 65535;

// Rows of `columns` tiles, `count` times: their number has to fit in 32 bits. `of`: for messages.
inline Status CheckTiles(const GemmProblem& p, int64_t rows, int64_t columns, int64_t count,
                         const char* of) {
  if (rows * columns <= INT32_MAX / count) return Status::Ok();
  return Status::InvalidArgument(p.ToString() + " has more than 2^31 - 1 " + of);
}

}  // namespace bwgemm::dense
