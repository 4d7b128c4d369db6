// Two bf16 values in a register, the first in the lower half.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

namespace bwgemm::sm90 {

__device__ __forceinline__ uint32_t RoundPair(float first, float second) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(first, second);
  return reinterpret_cast<const uint32_t&>(pair);
}
__device__ __forceinline__ float FirstOf(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float SecondOf(uint32_t pair) {
  return __uint_as_float(pair & 0xffff0000u);
}

// Both values, or bf16's largest with their sign, so that x - FirstOf(..) is infinite where x is,
// and NaN where x is NaN.
__device__ __forceinline__ uint32_t FinitePair(uint32_t pair) {
  constexpr uint32_t kMost = 0x7f7f7f7f;
  uint32_t finite;
  asm("min.xorsign.abs.bf16x2 %0, %1, %2;" : "=r"(finite) : "r"(pair), "r"(kMost));
  return finite;
}

// The larger magnitudes of two pairs, with any sign. NaN counts as the least.
__device__ __forceinline__ uint32_t LargerPair(uint32_t a, uint32_t b) {
  uint32_t larger;
  asm("max.xorsign.abs.bf16x2 %0, %1, %2;" : "=r"(larger) : "r"(a), "r"(b));
  return larger;
}

// Whether one of the two is infinite, or NaN.
__device__ __forceinline__ bool HasInfinity(uint32_t pair) {
  constexpr uint32_t kExponents = 0x7f807f80, kCarry = 0x00800080, kOverflow = 0x80008000;
  return (((pair & kExponents) + kCarry) & kOverflow) != 0;
}

}  // namespace bwgemm::sm90
