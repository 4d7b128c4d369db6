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
#include "sm90/bf16_pair.h"

namespace bwgemm::sm90 {

// Tiles of split operands that are at most so wide are narrow: latencies limit them, not MMAs.
constexpr int kNarrowTile = 64;

// After how many elements of K the upper parts leave the accumulators of split operands. It costs
// time, except in narrow tiles: seldom where the other operand has one plane, since its terms lose
// more than truncation does; often where the result is to be as accurate as f32's, with three terms
// or two of f16.
constexpr int RunK(int terms, int planes, bool f16, int tile_n) {
  const bool narrow = tile_n <= kNarrowTile;
  if (terms == 3) return narrow ? 64 : 128;
  if (f16) return 160;
  return planes == 1 ? 1536 : narrow ? 256 : 1024;
}

// The upper parts of kCount sums of a thread, two in a register.
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
      // Infinities and NaN stay in the accumulators.
      pairs_[i] =
          FinitePair(__byte_perm(__float_as_uint(first_sum), __float_as_uint(second_sum), 0x7632));
      accumulators(2 * i) += first - First(i);
      accumulators(2 * i + 1) += second - Second(i);
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
  __device__ __forceinline__ float First(int i) const { return FirstOf(pairs_[i]); }
  __device__ __forceinline__ float Second(int i) const { return SecondOf(pairs_[i]); }

  uint32_t pairs_[kCount / 2];
};

}  // namespace bwgemm::sm90
