// Sums that outlast many MMAs. The tensor cores truncate whatever an MMA adds to its accumulators,
// by up to one unit in the last place of the accumulator: a bias that grows with the number of MMAs
// and with the size of the sums, not with that of the products.
//
// So every so often the upper 16 bits of each sum leave its accumulator, as a bf16 value, and the
// accumulator goes on with what is left, a hundredth of the sum. sum = upper + accumulator has more
// bits than f32. A second set of f32 sums would take twice the registers of this one, which the
// widest tiles do not have.
#pragma once

#include <cstdint>

#include "cute/tensor_impl.hpp"

namespace bwgemm::sm90 {

// The upper parts of kCount sums of a thread.
template <int kCount>
class HighSums {
 public:
  __device__ __forceinline__ void Clear() {
    CUTE_UNROLL
    for (uint32_t& pair : pairs_) pair = 0;
  }

  // Takes the upper part of every sum. No MMA may be at work on the accumulators.
  template <class Results>
  __device__ __forceinline__ void Take(Results& accumulators) {
    CUTE_UNROLL
    for (int i = 0; i < kCount / 2; ++i) {
      const float first = First(i), second = Second(i);
      const float first_sum = first + accumulators(2 * i);
      const float second_sum = second + accumulators(2 * i + 1);
      pairs_[i] = __byte_perm(__float_as_uint(first_sum), __float_as_uint(second_sum), 0x7632);
      accumulators(2 * i) = Left(first_sum, first - First(i), accumulators(2 * i));
      accumulators(2 * i + 1) = Left(second_sum, second - Second(i), accumulators(2 * i + 1));
    }
  }

  // Completes the sums in the accumulators.
  template <class Results>
  __device__ __forceinline__ void AddTo(Results& accumulators) const {
    CUTE_UNROLL
    for (int i = 0; i < kCount / 2; ++i) {
      accumulators(2 * i) += First(i);
      accumulators(2 * i + 1) += Second(i);
    }
  }

 private:
  __device__ __forceinline__ float First(int i) const { return __uint_as_float(pairs_[i] << 16); }
  __device__ __forceinline__ float Second(int i) const {
    return __uint_as_float(pairs_[i] & 0xffff0000u);
  }

  // The accumulator after its upper part grew by -taken. Of an infinite sum, or NaN, nothing: the
  // upper part is the sum.
  __device__ __forceinline__ static float Left(float sum, float taken, float accumulator) {
    return fabsf(sum) < INFINITY ? taken + accumulator : 0.0f;
  }

  uint32_t pairs_[kCount / 2];
};

}  // namespace bwgemm::sm90
