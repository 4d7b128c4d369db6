// The functions that are linked into a kernel. It is compiled to LTO-IR without them;
// jax_bwgemm.epilogue writes, compiles and links them when a program is lowered.
#pragma once

#include "core/epilogue_arguments.h"
#include "core/epilogue_plan.h"

// x and y are neighbouring results: of row m and columns n and n + 1 or, of a kernel with swapped
// operands, of rows m and m + 1 and column n. Rows and columns beyond D are possible. Returns what
// is stored in their place. Of kernels without swapped operands also: `staged`, both values of the
// operand that the kernel loads; `stored`, for both of the result that it stores; `rows`, the
// operands that are rows in shared memory, from the tile's first column on, and `column`, n counted
// from there; `summed`, for both of the values that the kernel sums over its rows.
extern "C" __device__ float2 bwgemm_epilogue(float x, float y, int m, int n,
                                             const bwgemm::EpilogueArguments* arguments,
                                             uint32_t staged, uint32_t* stored, const uint8_t* rows,
                                             int column, float2* summed);
