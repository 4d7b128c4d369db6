// Registers have no index at run time: a choice among constants in its place.
#pragma once

#include "cute/numeric/integral_constant.hpp"

namespace bwgemm::sm90 {

// Calls f(cute::Int<i>) for the i that `value` is, one of 0 to kCount - 1.
template <int kCount, class F>
__device__ __forceinline__ void WithConstant(int value, F&& f) {
  static_assert(kCount <= 24);
#define BWGEMM_CASE(i)                           \
  case i:                                        \
    if constexpr (i < kCount) f(cute::Int<i>{}); \
    break;
#define BWGEMM_CASES(i) \
  BWGEMM_CASE(i)        \
  BWGEMM_CASE(i + 1)    \
  BWGEMM_CASE(i + 2)    \
  BWGEMM_CASE(i + 3)    \
  BWGEMM_CASE(i + 4)    \
  BWGEMM_CASE(i + 5)    \
  BWGEMM_CASE(i + 6)    \
  BWGEMM_CASE(i + 7)
  switch (value) {
    BWGEMM_CASES(0)
    BWGEMM_CASES(8)
    BWGEMM_CASES(16)
    default:
      __builtin_unreachable();
  }
#undef BWGEMM_CASES
#undef BWGEMM_CASE
}

}  // namespace bwgemm::sm90
