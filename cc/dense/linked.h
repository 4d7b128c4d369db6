// The functions that are linked into a kernel. It is compiled to LTO-IR without them;
// jax_bwgemm.epilogue writes, compiles and links them when a program is lowered.
#pragma once

#include "core/epilogue_arguments.h"
#include "core/epilogue_plan.h"

// x and y are neighbouring results of matrix `batch`: of row m and columns n and n + 1 or, in
// SM90's kernels with swapped operands, of rows m and m + 1 and column n. Cluster-K and split-K
// kernels always have them side by side in a row. Rows and columns may lie beyond the matrix.
// Returns what is stored instead of x and y. Kernels without swapped operands also pass
//   staged   both values of each operand that the kernel loads
//   stored   the place for both values of the result that it stores
//   rows     the operands that are rows in shared memory, from the tile's first column on
//   column   n, counted from the tile's first column
//   summed   the place for both values of each sum over the kernel's rows
extern "C" __device__ float2 bwgemm_epilogue(float x, float y, int m, int n, int batch,
                                             const bwgemm::EpilogueArguments* arguments,
                                             const uint32_t* staged, uint32_t* stored,
                                             const uint8_t* rows, int column, float2* summed);
