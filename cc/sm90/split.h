// f32 values as sums of 16-bit terms. Each term is the value that is left after the terms before
// it, rounded to nearest.
//
// bf16: two terms have a relative error of at most 2^-17, three are exact, apart from an absolute
// error of 2^-134, since no term is below bf16's least number.
//
// f16: two terms have a relative error of at most 2^-22, but f16 has few exponents. So the rows of
// an operand are scaled first, by powers of two that bring the largest value of each to 2^14, and
// the results are scaled back. The absolute error is then at most 2^-39 of the row's largest value:
// see row_range.h for which rows that is as good as f32.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "cute/config.hpp"
#include "sm90/bf16_pair.h"

namespace bwgemm::sm90 {

// How an infinite value is written, with its sign.
enum class Infinity {
  // As bf16's largest number in the first term and infinity in the last. The other operand is not
  // split, so both terms' products have the sign of the values' product.
  kAfterLargest,
  // As 1 in the first term and infinity in the last. The other operand is split too. Its low terms
  // may have another sign than its value: they meet the 1, and infinity only meets its first term.
  kAfterOne,
};

// Two values' terms, as the halves of registers: the first value's in the lower ones.
template <int kTerms>
struct TermPairs {
  uint32_t pairs[kTerms];
};

// Terms of values whose first terms are known. Exact but for the last term's rounding (Sterbenz).
template <int kTerms>
__device__ __forceinline__ TermPairs<kTerms> SplitAfter(uint32_t pair, float first, float second) {
  static_assert(kTerms == 2 || kTerms == 3);
  TermPairs<kTerms> terms;
  terms.pairs[0] = pair;
  CUTE_UNROLL
  for (int i = 1; i < kTerms; ++i) {
    first -= FirstOf(terms.pairs[i - 1]);
    second -= SecondOf(terms.pairs[i - 1]);
    terms.pairs[i] = RoundPair(first, second);
  }
  return terms;
}

// With infinity after 1. Finite values beyond bf16's largest have that as their first term.
template <int kTerms>
__device__ __forceinline__ TermPairs<kTerms> SplitAfterOne(float first, float second) {
  auto finite = [](float x) { return fabsf(x) == INFINITY ? copysignf(1.0f, x) : x; };
  const float x = finite(first), y = finite(second);
  auto terms = SplitAfter<kTerms>(FinitePair(RoundPair(x, y)), x, y);
  uint32_t& last = terms.pairs[kTerms - 1];
  last = RoundPair(x == first ? FirstOf(last) : first, y == second ? SecondOf(last) : second);
  return terms;
}

// The terms of kPairs pairs of values.
template <int kTerms, Infinity kInfinity, int kPairs>
__device__ __forceinline__ void Split(const float2 (&values)[kPairs],
                                      TermPairs<kTerms> (&terms)[kPairs]) {
  CUTE_UNROLL
  for (int i = 0; i < kPairs; ++i) {
    const float2 x = values[i];
    uint32_t pair = RoundPair(x.x, x.y);
    if constexpr (kInfinity == Infinity::kAfterLargest) pair = FinitePair(pair);
    terms[i] = SplitAfter<kTerms>(pair, x.x, x.y);
  }
  if constexpr (kInfinity == Infinity::kAfterOne) {
    uint32_t most = terms[0].pairs[0];
    CUTE_UNROLL
    for (int i = 1; i < kPairs; ++i) most = LargerPair(most, terms[i].pairs[0]);
    if (HasInfinity(most)) {  // seldom: a few instructions for all values instead of a few for each
      CUTE_UNROLL
      for (int i = 0; i < kPairs; ++i) terms[i] = SplitAfterOne<kTerms>(values[i].x, values[i].y);
    }
  }
}

// Of finite values below f16's largest.
__device__ __forceinline__ TermPairs<2> SplitF16(float first, float second) {
  const __half2 high = __floats2half2_rn(first, second);
  const float2 value = __half22float2(high);
  const __half2 low = __floats2half2_rn(first - value.x, second - value.y);
  return {reinterpret_cast<const uint32_t&>(high), reinterpret_cast<const uint32_t&>(low)};
}

// The scale of a row whose largest magnitude has the biased exponent `exponent`: a normal number.
constexpr int kScaledTop = 14;  // exponent of the largest magnitude of a scaled row
__device__ __forceinline__ uint32_t BiasedScale(uint32_t exponent) {
  return min(254u, 2 * 127 + kScaledTop - exponent);
}
__device__ __forceinline__ float RowScale(uint32_t exponent) {
  return __uint_as_float(BiasedScale(exponent) << 23);
}

// What undoes a scale: two factors, each about the square root, because one f32 does not hold the
// product of two rows' factors.
struct Unscaling {
  float first, second;

  __device__ __forceinline__ explicit Unscaling(uint32_t exponent) {
    const int power = 127 - static_cast<int>(BiasedScale(exponent)), half = power >> 1;
    first = __uint_as_float((half + 127) << 23);
    second = __uint_as_float((power - half + 127) << 23);
  }
  // A result of the two rows that were scaled. It overflows on the way only if it does so at last.
  __device__ __forceinline__ float Undo(float x, const Unscaling& other) const {
    return x * (first * other.first) * (second * other.second);
  }
};

}  // namespace bwgemm::sm90
