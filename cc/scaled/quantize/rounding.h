// From f32 to values of 8 bits and their scales. jax_bwgemm/scaled/rounding.py has the same
// formulas: results are equal bit by bit, so every operation here rounds once.
#pragma once

#include <cuda_fp8.h>

#include <cstdint>

#include "core/types.h"

namespace bwgemm::scaled {

// Bits of an f32 magnitude: infinity, and the least normal number. Those below count as zero.
inline constexpr uint32_t kInfinity = 0x7F800000u, kLeastNormal = 0x00800000u;

template <DType kOut>
struct Narrow;
template <>
struct Narrow<DType::kE4M3> {
  static constexpr float kLargest = 448.0f, kInverse = 1.0f / 448.0f;
  static constexpr int kFraction = 3, kLeastExponent = 127 - 6;
  static constexpr uint32_t kOfInfinity = 0x7F, kOfNan = 0x7F;  // it has no infinities
  static constexpr __nv_fp8_interpretation_t kType = __NV_E4M3;
};
template <>
struct Narrow<DType::kE5M2> {
  static constexpr float kLargest = 57344.0f, kInverse = 1.0f / 57344.0f;
  static constexpr int kFraction = 2, kLeastExponent = 127 - 14;
  static constexpr uint32_t kOfInfinity = 0x7C, kOfNan = 0x7E;
  static constexpr __nv_fp8_interpretation_t kType = __NV_E5M2;
};

// The product, where subnormal numbers are zeros.
__device__ inline float Times(float x, float factor) {
  float product;
  asm("mul.rn.ftz.f32 %0, %1, %2;" : "=f"(product) : "f"(x), "f"(factor));
  return product;
}

// A block's scale, from the bits of its largest magnitude.
template <DType kOut>
__device__ float ScaleOf(uint32_t amax, float epsilon, bool power_of_two) {
  if (amax >= kInfinity) return 1.0f;
  const float largest = fmaxf(__uint_as_float(amax), epsilon);
  if (largest < __uint_as_float(kLeastNormal)) return 1.0f;
  const float scale = fmaxf(Times(largest, Narrow<kOut>::kInverse), __uint_as_float(kLeastNormal));
  if (!power_of_two) return scale;
  return __uint_as_float((__float_as_uint(scale) + 0x007FFFFFu) & 0x7F800000u);
}

// Two numbers to nearest even; the first is the lower byte.
template <DType kOut>
__device__ uint32_t Nearest(float first, float second) {
  return __nv_cvt_float2_to_fp8x2({first, second}, __NV_SATFINITE, Narrow<kOut>::kType);
}

// One of both neighbours: the upper one if the distance from the lower, in steps, and 16 random
// bits add up to 1.
template <DType kOut>
__device__ float Dithered(float x, uint32_t random) {
  using N = Narrow<kOut>;
  const float magnitude = fminf(fabsf(x), N::kLargest);
  const int exponent = max(static_cast<int>(__float_as_uint(magnitude) >> 23), N::kLeastExponent);
  const float steps_in_one = __uint_as_float((254 + N::kFraction - exponent) << 23);
  const float step = __uint_as_float((exponent - N::kFraction) << 23);
  const float threshold = __fmul_rn(static_cast<float>(random) + 0.5f, 0x1p-16f);
  const float steps = floorf(__fadd_rn(__fmul_rn(magnitude, steps_in_one), threshold));
  return copysignf(__fmul_rn(steps, step), x);
}

// Of an infinity or NaN.
template <DType kOut>
__device__ uint32_t Special(float x) {
  const uint32_t bits = __float_as_uint(x), sign = bits >> 24 & 0x80;
  return sign |
         ((bits & 0x7FFFFFFFu) == kInfinity ? Narrow<kOut>::kOfInfinity : Narrow<kOut>::kOfNan);
}

__device__ inline bool IsSpecial(float x) {
  return (__float_as_uint(x) & 0x7FFFFFFFu) >= kInfinity;
}

}  // namespace bwgemm::scaled
