// Scales on the device: a warp copies them from global to shared memory, ahead of the consumers.
//
// Not by TMA, whose alignment would bind the number of rows.
#pragma once

#include <cstdint>

#include "cute/arch/util.hpp"
#include "dense/sm90/tiles.h"
#include "scaled/problem.h"

namespace bwgemm::scaled::sm90 {

__device__ __forceinline__ void CopyScale(float* to, const float* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(cute::cast_smem_ptr_to_uint(to)),
               "l"(from)
               : "memory");
}

// Before a thread ends: what it copies is still on its way.
__device__ __forceinline__ void AwaitCopies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// The thread's number in its warpgroup, read by a volatile instruction. Otherwise the compiler
// computes what follows from it before the main loop, and keeps it in registers that the loop
// needs.
__device__ __forceinline__ int RereadThread() {
  uint32_t thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread % 128;
}

// The rows of an operand whose scales a tile needs. Places fit in 32 bits: see the launchers'
// Supports.
struct ScaledRows {
  const Scales& scales;
  int rows;        // of the operand
  uint32_t first;  // of the tile
  int batch;
  int expert = 0;
  int moved = 0;  // bwgemm::sm90::Stage's kMovedRows

  // Where the first scale of the tile's row i is; those of the next blocks of K follow at k_pitch.
  // Rows beyond the operand have the last one's, and results that are not stored.
  __device__ __forceinline__ uint32_t At(uint32_t i) const {
    uint32_t row = first + i;
    if (moved > 0) {
      const uint32_t in_unit = i % moved;
      row = bwgemm::sm90::ClampedRow(row - in_unit, moved, rows) + in_unit;
    }
    const uint32_t inside = min(row, static_cast<uint32_t>(rows - 1));
    return batch * static_cast<uint32_t>(scales.batch_pitch) +
           expert * static_cast<uint32_t>(scales.expert_pitch) +
           (inside >> scales.log_rows) * static_cast<uint32_t>(scales.row_pitch);
  }
};

// A tile's rows of both operands, and its blocks of K.
struct ScaledTile {
  ScaledRows p, q;
  int first_block, k_blocks;
};

// That of a dense kernel.
template <class C, class LaunchParams>
__device__ __forceinline__ ScaledTile DenseTile(const LaunchParams& params,
                                                const dense::sm90::Tile& tile) {
  const auto p = dense::sm90::PRow<C>(tile), q = dense::sm90::QRow<C>(tile);
  return {{params.p_scales, params.p_rows, p, tile.batch, /*expert=*/0, C::P::kMovedRows},
          {params.q_scales, params.q_rows, q, tile.batch, /*expert=*/0, C::Q::kMovedRows},
          dense::sm90::FirstKBlock(params, tile),
          dense::sm90::KBlocks(params, tile)};
}

}  // namespace bwgemm::scaled::sm90
