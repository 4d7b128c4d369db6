// Scales on the device: a warp copies them from global to shared memory, ahead of the consumers.
//
// Not by TMA, whose alignment would bind the number of rows.
#pragma once

#include <cstdint>

#include "cute/arch/util.hpp"
#include "scaled/problem.h"

namespace bwgemm::scaled::sm90 {

__device__ __forceinline__ void CopyScale(float* to, const float* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(cute::cast_smem_ptr_to_uint(to)),
               "l"(from)
               : "memory");
}

// Before a thread ends: what it copies is still on its way.
__device__ __forceinline__ void AwaitCopies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

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
