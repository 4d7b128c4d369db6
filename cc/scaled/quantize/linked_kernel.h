// The entry points of the kernels for linking. They have stable names, by which they are found.
#pragma once

#include "scaled/quantize/linked.h"

namespace bwgemm::scaled {

// What the linked function computes.
template <DType kIn>
struct LinkedSource {
  const LinkedQuantizeParams& params;

  __device__ void Load(Patch<kIn>& patch, int64_t, int row, int column) const {
    const QuantizeProblem& p = params.problem;
    // Beyond x what is within it, instead of a branch: all loads can then begin at once.
    const int n = min(column, p.columns - kPatch);
#pragma unroll
    for (int i = 0; i < kPatch; ++i) {
      bwgemm_quantize_source(min(row + i, p.rows - 1), n, &params.source, patch.words[i]);
#pragma unroll
      for (int w = 0; w < Patch<kIn>::kWords; ++w) {
        if (row + i >= p.rows || column >= p.columns) patch.words[i][w] = 0;
      }
    }
  }
};

template <DType kIn, DType kOut, bool kTransposed, bool kRandom>
__device__ __forceinline__ void QuantizeSource(const LinkedQuantizeParams& params,
                                               QuantizeShared& shared, uint2* t_tile) {
  using Source = LinkedSource<kIn>;
  using Quantizer = TileQuantizer<kIn, kOut, kTransposed, kRandom, Source>;
  const Source source{params};
  Quantizer(params, shared, t_tile, source, bwgemm_quantize_plan(kParts)).Run();
}

template <DType kIn, bool kRandom>
__device__ __forceinline__ void QuantizeSource(const LinkedQuantizeParams& params) {
  __shared__ QuantizeShared shared;
  __shared__ alignas(16) uint2 t_tile[kTile * kTile / sizeof(uint2)];
  if (bwgemm_quantize_plan(kToE5M2)) {
    if (bwgemm_quantize_plan(kWithTransposed)) {
      QuantizeSource<kIn, DType::kE5M2, true, kRandom>(params, shared, t_tile);
    } else {
      QuantizeSource<kIn, DType::kE5M2, false, kRandom>(params, shared, t_tile);
    }
  } else if (bwgemm_quantize_plan(kWithTransposed)) {
    QuantizeSource<kIn, DType::kE4M3, true, kRandom>(params, shared, t_tile);
  } else {
    QuantizeSource<kIn, DType::kE4M3, false, kRandom>(params, shared, t_tile);
  }
}

}  // namespace bwgemm::scaled

// resident: CTAs of a multiprocessor that the registers must suffice for.
#define BWGEMM_LINKED_QUANTIZE(name, in, random, resident)                         \
  extern "C" __global__ void __launch_bounds__(bwgemm::scaled::kThreads, resident) \
      name(const __grid_constant__ bwgemm::scaled::LinkedQuantizeParams params) {  \
    bwgemm::scaled::QuantizeSource<bwgemm::DType::in, random>(params);             \
  }
