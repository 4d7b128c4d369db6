// The functions that are linked into an m-grouped kernel with swapped operands: as dense/linked.h.
#pragma once

#include "core/epilogue_arguments.h"
#include "core/epilogue_plan.h"

// x and y are results of rows m and m + 1 of D and column n, in a tile whose rows have matrix
// `expert`, or none if that is -1, and end ahead of row `end`; u and v, of a gated kernel, are the
// same of the second matrix. Rows from `end` on and columns beyond D are possible. Returns what is
// stored in their place. `staged`: both values of each operand that the kernel loads; `stored`, for
// both of each result that it stores; `summed`, for both of the value that it sums over columns.
extern "C" __device__ float2 bwgemm_grouped_epilogue(float x, float y, float u, float v, int m,
                                                     int n, int expert, int end,
                                                     const bwgemm::EpilogueArguments* arguments,
                                                     const uint32_t* staged, uint32_t* stored,
                                                     float2* summed);
