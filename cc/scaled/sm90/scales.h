// Scales on the device: from global memory to the threads whose results they multiply.
//
// They are read through the L1 cache, not with the operands: 512 bytes a stage and operand are not
// worth a TMA instruction, whose alignment would also bind the number of rows.
#pragma once

#include <cstdint>

#include "scaled/problem.h"

namespace bwgemm::scaled::sm90 {

// Volatile: the compiler moves no load behind the wait for the MMAs, which is to hide it.
__device__ __forceinline__ float LoadScale(const float* from) {
  float scale;
  asm volatile("ld.global.nc.f32 %0, [%1];" : "=f"(scale) : "l"(from));
  return scale;
}
__device__ __forceinline__ float2 LoadScalePair(const float* from) {
  float2 scales;
  asm volatile("ld.global.nc.v2.f32 {%0, %1}, [%2];" : "=f"(scales.x), "=f"(scales.y) : "l"(from));
  return scales;
}

// Those of two rows of Q, of which there are `rows`, with a scale for each.
template <class C>
__device__ __forceinline__ float2 LoadRowPair(const float* data, uint32_t row, uint32_t rows) {
  if constexpr (C::kSwapAb) {  // rows of A: any number
    return {LoadScale(data + min(row, rows - 1)), LoadScale(data + min(row + 1, rows - 1))};
  } else {  // columns of D, whose alignment makes them even
    return LoadScalePair(data + min(row, rows - 2));
  }
}

// The thread's number in its warpgroup, read by a volatile instruction: else whatever follows from
// it is computed ahead of the main loop and kept in registers that this does not have.
__device__ __forceinline__ int RereadThread() {
  uint32_t thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread % 128;
}

// Where the first scale of a row is; those of the next blocks of K follow at k_pitch. Rows beyond
// the operand have the last one's, and results that are not stored. Places fit in 32 bits: see
// Launcher::Supports.
__device__ __forceinline__ uint32_t FirstScale(const Scales& scales, int rows, uint32_t row,
                                               int matrix) {
  const uint32_t inside = min(row, static_cast<uint32_t>(rows - 1));
  return matrix * static_cast<uint32_t>(scales.batch_pitch) +
         (inside >> scales.log_rows) * static_cast<uint32_t>(scales.row_pitch);
}

}  // namespace bwgemm::scaled::sm90
