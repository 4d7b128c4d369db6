// Kernels that an epilogue is linked into: compiled to LTO-IR with an undefined function, which
// jax_bwgemm.epilogue writes, compiles and links when a program is lowered.
#pragma once

#include "dense/epilogue_arguments.h"
#include "dense/sm90/config.h"

// x and y are neighbouring results: of row m and columns n and n + 1 or, of a kernel with swapped
// operands, of rows m and m + 1 and column n. Rows and columns beyond D are possible. Returns what
// is stored in their place.
extern "C" __device__ float2 bwgemm_epilogue(float x, float y, int m, int n,
                                             const bwgemm::dense::EpilogueArguments* arguments);

namespace bwgemm::dense::sm90 {

template <class Base>
struct Linked : Base {
  static constexpr bool kLinked = true;
};

struct LinkedParams : Params {
  EpilogueArguments epilogue;
};

}  // namespace bwgemm::dense::sm90
