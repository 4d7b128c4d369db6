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

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "cute/config.hpp"

namespace bwgemm::sm90 {

// How an infinite value is written.
enum class Infinity {
  // As the first term alone, and so are magnitudes beyond bf16's largest, 3.39e38.
  kFirst,
  // As 1 in the first term and infinity in the last, with its sign. If both operands of a product
  // are split, the last term of one is only multiplied by the first term of the other. A product
  // with infinity is then that of IEEE 754; infinity times a low term would be NaN, or have the
  // wrong sign. Finite values beyond bf16's largest have it as their first term.
  kLast,
};

// Two values' terms, as the halves of registers: the first value's in the lower ones.
template <int kTerms>
struct TermPairs {
  uint32_t pairs[kTerms];
};

__device__ __forceinline__ uint32_t RoundPair(float first, float second) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(first, second);
  return reinterpret_cast<const uint32_t&>(pair);
}
__device__ __forceinline__ float FirstOf(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float SecondOf(uint32_t pair) {
  return __uint_as_float(pair & 0xffff0000u);
}

// What a term leaves of x: exact (Sterbenz).
__device__ __forceinline__ float Rest(float x, float term) {
  return fabsf(term) == INFINITY ? 0.0f : x - term;
}
// The value that is rounded to the first term, and the one that all finite terms add up to.
__device__ __forceinline__ float FiniteFirst(float x) {
  constexpr float kMost = 3.3895313892515355e38f;  // bf16's largest
  return fabsf(x) > kMost ? copysignf(kMost, x) : x;
}
__device__ __forceinline__ float FinitePart(float x) {
  return fabsf(x) == INFINITY ? copysignf(1.0f, x) : x;
}

template <int kTerms, Infinity kInfinity>
__device__ __forceinline__ TermPairs<kTerms> Split(float first, float second) {
  static_assert(kTerms == 2 || kTerms == 3);
  TermPairs<kTerms> terms;
  if constexpr (kInfinity == Infinity::kFirst) {
    float rest[2] = {first, second};
    CUTE_UNROLL
    for (int i = 0; i < kTerms; ++i) {
      terms.pairs[i] = RoundPair(rest[0], rest[1]);
      rest[0] = Rest(rest[0], FirstOf(terms.pairs[i]));
      rest[1] = Rest(rest[1], SecondOf(terms.pairs[i]));
    }
  } else {
    float rest[2] = {FinitePart(first), FinitePart(second)};
    terms.pairs[0] = RoundPair(FiniteFirst(rest[0]), FiniteFirst(rest[1]));
    CUTE_UNROLL
    for (int i = 1; i < kTerms; ++i) {
      rest[0] -= FirstOf(terms.pairs[i - 1]);
      rest[1] -= SecondOf(terms.pairs[i - 1]);
      if (i == kTerms - 1) {
        if (fabsf(first) == INFINITY) rest[0] = first;
        if (fabsf(second) == INFINITY) rest[1] = second;
      }
      terms.pairs[i] = RoundPair(rest[0], rest[1]);
    }
  }
  return terms;
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
