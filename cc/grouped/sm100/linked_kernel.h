// The entry point of a kernel with swapped operands for linking. It has the kernel's stable name,
// by which it is found. A thread has a column of D, and the function gets pairs of its rows; the
// kernel moves nothing for it: a warp's lanes read and write neighbours.
#pragma once

#include "core/epilogue_arguments.h"
#include "grouped/linked.h"
#include "grouped/sm100/kernel.h"

namespace bwgemm::grouped::sm100 {

struct LinkedResults {
  template <int kCount>
  __device__ __forceinline__ static void ApplyToRows(const WithEpilogue<Params>& params,
                                                     const Tile& tile, int row, int column,
                                                     uint32_t (&values)[kCount]) {
    CUTE_UNROLL
    for (int i = 0; i < kCount; i += 2) {
      const float2 pair = bwgemm_grouped_epilogue(
          __uint_as_float(values[i]), __uint_as_float(values[i + 1]), 0.f, 0.f, row + i, column,
          tile.expert, tile.row + tile.rows, &params.epilogue, nullptr, nullptr, nullptr);
      values[i] = __float_as_uint(pair.x);
      values[i + 1] = __float_as_uint(pair.y);
    }
  }
};

template <class Spec>
struct LinkedConfig : Config<Spec> {
  static_assert(Spec::kSwapAb && !Spec::kKGrouped);
  using Params = WithEpilogue<sm100::Params>;
  using Results = LinkedResults;
};

}  // namespace bwgemm::grouped::sm100

#define BWGEMM_LINKED_KERNEL(name, gated, ...)                                                    \
  extern "C" __global__ void __launch_bounds__(bwgemm::grouped::sm100::kThreads, 1)               \
      name(const __grid_constant__ bwgemm::WithEpilogue<bwgemm::grouped::sm100::Params> params) { \
    static_assert(!(gated), "of one product");                                                    \
    using Spec = __VA_ARGS__;                                                                     \
    bwgemm::grouped::sm100::RunCta<bwgemm::grouped::sm100::LinkedConfig<Spec>>(params);           \
  }
