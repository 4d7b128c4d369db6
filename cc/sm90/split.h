// f32 values as sums of two bf16 terms: x = high + low, with a relative error of at most 2^-18 and
// an absolute one of 2^-134, bf16's least. Infinities and NaN are the high term alone, and so are
// magnitudes beyond bf16's largest, 3.39e38, which become infinite.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

namespace bwgemm::sm90 {

// Two values' terms, as the halves of a register: the first value's in the lower one.
struct SplitPair {
  uint32_t high, low;
};

__device__ __forceinline__ uint32_t Bits(__nv_bfloat162 pair) {
  return reinterpret_cast<const uint32_t&>(pair);
}

// What the high term leaves: exact, since it has at most 16 bits (Sterbenz).
__device__ __forceinline__ float Rest(float x, float high) {
  return fabsf(high) == INFINITY ? 0.0f : x - high;
}

__device__ __forceinline__ SplitPair Split(float first, float second) {
  const uint32_t high = Bits(__floats2bfloat162_rn(first, second));
  const float first_high = __uint_as_float(high << 16);
  const float second_high = __uint_as_float(high & 0xffff0000u);
  return {high, Bits(__floats2bfloat162_rn(Rest(first, first_high), Rest(second, second_high)))};
}

}  // namespace bwgemm::sm90
