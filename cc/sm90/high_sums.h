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

// After how many elements of K the upper parts leave the accumulators of split operands. It costs
// time: seldom where the other operand has one plane, since its terms lose more than truncation
// does; often where the result is to be as accurate as f32's, with three terms or two of f16.
constexpr int RunK(int terms, int planes, bool f16) {
  return terms == 3 ? 64 : f16 ? 160 : planes == 2 ? 512 : 1536;
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
      pairs_[i] =
          Finite(__byte_perm(__float_as_uint(first_sum), __float_as_uint(second_sum), 0x7632));
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
  __device__ __forceinline__ float First(int i) const { return __uint_as_float(pairs_[i] << 16); }
  __device__ __forceinline__ float Second(int i) const {
    return __uint_as_float(pairs_[i] & 0xffff0000u);
  }

  // Both values, or bf16's largest with their sign: infinities and NaN stay in the accumulators.
  __device__ __forceinline__ static uint32_t Finite(uint32_t pair) {
    constexpr uint32_t kMost = 0x7f7f7f7f;
    uint32_t finite;
    asm("min.xorsign.abs.bf16x2 %0, %1, %2;" : "=r"(finite) : "r"(pair), "r"(kMost));
    return finite;
  }

  uint32_t pairs_[kCount / 2];
};

}  // namespace bwgemm::sm90
