// The kernel that quantizes a function of arrays as it computes it. It is compiled to LTO-IR
// without the function; jax_bwgemm.epilogue writes, compiles and links that when a program is
// lowered.
#pragma once

#include "core/epilogue_arguments.h"
#include "scaled/quantize/tile.h"

// Eight elements of row m, from column n on, of x's 16-bit type: two in a word. All are within x.
extern "C" __device__ void bwgemm_quantize_source(int m, int n,
                                                  const bwgemm::EpilogueArguments* arguments,
                                                  uint32_t* words);
// What the kernel is to do; constants once it is inlined.
extern "C" __device__ int bwgemm_quantize_plan(int question);

namespace bwgemm::scaled {

// Yes or no; kParts: see TileQuantizer.
enum QuantizePlan : int { kToE5M2, kWithTransposed, kParts };

struct LinkedQuantizeParams : QuantizeParams {
  EpilogueArguments source;
};

}  // namespace bwgemm::scaled
