// What a linked epilogue reads and writes besides the product. The text that declares it for the
// epilogue's own compilation is in jax_bwgemm/epilogue/hook.py.
#pragma once

#include <cstdint>

namespace bwgemm {

inline constexpr int kMaxEpilogueOperands = 8;
inline constexpr int kMaxEpilogueResults = 3;  // besides D
inline constexpr int kMaxStaged = 2;

struct EpilogueArguments {
  const void* operands[kMaxEpilogueOperands];
  void* results[kMaxEpilogueResults];
  int32_t m, n;  // of D, or of each matrix of a batch
  // Indices of those that the kernel moves in whole lines; -1: none. They have D's type and shape.
  // Dense kernels move one result, and one operand or, ping-pong, two.
  int32_t staged_operands[kMaxStaged], staged_results[kMaxStaged];
};

// The parameters of a kernel without an epilogue, and these.
template <class Plain>
struct WithEpilogue : Plain {
  EpilogueArguments epilogue;
};

// A result that is summed over rows leaves partial sums, f32 [batch, rows, N]. Each of these rows
// is the sum of the rows that one warp has of a tile. consumers: warpgroups that share a tile.
inline constexpr int64_t PartialSumRows(int64_t m, int tile_m, int consumers) {
  return (m + tile_m - 1) / tile_m * consumers * 4;
}

// Grouped kernels sum a result over columns: the partial sums are f32 [parts, M], each part of so
// many columns.
inline constexpr int kPartColumns = 16;

}  // namespace bwgemm
