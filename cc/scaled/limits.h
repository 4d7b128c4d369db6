// What grouped scaled kernels of every architecture ask of a problem.
#pragma once

#include <string>

#include "core/status.h"
#include "scaled/problem.h"

namespace bwgemm::scaled {

// TMA's: pitches are multiples of 16 bytes. Operands have so many elements in a byte.
inline Status CheckPitches(const grouped::GroupedProblem& p, bool k_grouped, DType out,
                           int per_byte = 1) {
  const int64_t depth = k_grouped ? p.m : p.k;  // contiguous in both operands
  const int64_t multiple = kAlignmentBytes * per_byte;
  const int64_t columns = kAlignmentBytes / SizeOf(out);
  if (depth % multiple == 0 && p.n % columns == 0) return Status::Ok();
  return Status::InvalidArgument(std::string(k_grouped ? "M" : "K") + " of " + p.ToString() +
                                 " must be a multiple of " + std::to_string(multiple) + ", N of " +
                                 std::to_string(columns));
}

}  // namespace bwgemm::scaled
