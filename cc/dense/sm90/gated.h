// Gated kernels: two products of one lhs, elementwise combined by a function that is linked in.
//
// They have swapped operands, so that rhs columns are the MMA's M side, in blocks of 64: a tile's
// first half of P is rhs columns of one matrix, the second half the same columns of the other, and
// one thread has both sums of an element. D has as many columns as each of the matrices.
#pragma once

#include "core/epilogue_arguments.h"
#include "dense/sm90/config.h"

// (x, y) are sums of the first matrix, (u, v) of the second, of rows m and m + 1 of D and column n;
// rows and columns beyond D are possible. Returns both values of a result, rounded to D's type, the
// first in the lower half. Result 0 is D.
extern "C" __device__ uint32_t bwgemm_gated_epilogue(float x, float y, float u, float v, int m,
                                                     int n,
                                                     const bwgemm::EpilogueArguments* arguments,
                                                     int result);

// How many results there are; a constant once it is inlined.
extern "C" __device__ int bwgemm_gated_results();

namespace bwgemm::dense::sm90 {

struct GatedParams : Params {
  CUtensorMap other_p;
  CUtensorMap results[kMaxEpilogueResults];  // besides D, of its type and shape
  EpilogueArguments epilogue;
};

// The tensor map of P's second half.
template <class C>
__device__ __forceinline__ const CUtensorMap& OtherP(const Params& params) {
  static_assert(C::kPHalves <= 2);
  if constexpr (C::kGated) {
    return static_cast<const GatedParams&>(params).other_p;
  } else {
    return params.p;
  }
}

}  // namespace bwgemm::dense::sm90
