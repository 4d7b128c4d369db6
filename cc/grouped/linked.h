// The functions that are linked into m-grouped kernels: as dense/linked.h.
#pragma once

#include "core/epilogue_arguments.h"
#include "core/epilogue_plan.h"

// With swapped operands. x and y are results of rows m and m + 1 of D and column n; in gated
// kernels u and v are those of the second matrix. The tile's rows belong to matrix `expert` (-1: to
// none) and end before row `end`. Rows from `end` on and columns beyond D are possible. Returns
// what is stored instead of x and y.
//   staged   both values of each operand that the kernel loads
//   stored   the place for both values of each result that it stores
//   summed   the place for both values of the result that it sums over columns
extern "C" __device__ float2 bwgemm_grouped_epilogue(float x, float y, float u, float v, int m,
                                                     int n, int expert, int end,
                                                     const bwgemm::EpilogueArguments* arguments,
                                                     const uint32_t* staged, uint32_t* stored,
                                                     float2* summed);

// Without swapped operands. x and y are results of row m and columns n and n + 1. The kernel moves
// nothing for the function and sums none of its results.
extern "C" __device__ float2
bwgemm_grouped_row_epilogue(float x, float y, int m, int n, int expert, int end,
                            const bwgemm::EpilogueArguments* arguments);
