// Sums of results over rows, within a warp and in a fixed order. What warps and tiles have is added
// after the launch.
#pragma once

#include <cstdint>

#include "cutlass/cutlass.h"

namespace bwgemm::dense::sm90 {

// Of a warp's 16 rows and 64 columns in the MMA's fragment layout (sm90/lines.h): thread l % 4 of
// a row has columns 2 * (l % 4) and the next of every 8. Two threads whose numbers differ in a bit
// exchange one of two sums each, so that in the end lane l has the sums of columns 2 * l and the
// next, and no sum was added twice.
class ColumnSums {
 public:
  // Of this thread's rows, columns 8 * j on. For all j in order, each a constant.
  __device__ __forceinline__ void Add(int j, float2 own, int lane) {
    CUTE_UNROLL
    for (int level = 0; level < 3; ++level) {
      if ((j >> level & 1) == 0) {
        waiting_[level] = own;
        return;
      }
      own = Exchange(waiting_[level], own, lane, 4 << level);
    }
    total_ = own;
  }

  // Of columns 2 * lane and the next, after the last Add.
  __device__ __forceinline__ float2 total() const { return total_; }

 private:
  // Lanes without the bit keep the first sums, those with it the second.
  __device__ __forceinline__ static float2 Exchange(float2 first, float2 second, int lane,
                                                    int bit) {
    const bool upper = (lane & bit) != 0;
    const float2 kept = upper ? second : first, sent = upper ? first : second;
    return make_float2(kept.x + __shfl_xor_sync(0xffffffff, sent.x, bit),
                       kept.y + __shfl_xor_sync(0xffffffff, sent.y, bit));
  }

  float2 waiting_[3], total_;
};

}  // namespace bwgemm::dense::sm90
