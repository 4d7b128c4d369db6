// The entry point of a grouped scaled kernel for linking. It has the kernel's stable name, by which
// it is found. A thread has a row of D, and the function gets pairs of its columns; the kernel
// moves nothing for it.
#pragma once

#include "core/epilogue_arguments.h"
#include "grouped/linked.h"
#include "scaled/sm100/grouped_kernel.h"
#include "scaled/sm100/grouped_mma.h"

namespace bwgemm::scaled::sm100 {

// What Plain makes of the sums, then the function of it.
template <class Plain>
struct LinkedResults : Plain {
  template <int kCount, class LaunchParams>
  __device__ __forceinline__ static void Finish(const LaunchParams& params,
                                                const grouped::Tile& tile, int row, int column,
                                                uint32_t (&values)[kCount]) {
    CUTE_UNROLL
    for (int i = 0; i < kCount; i += 2) {
      const float2 pair = bwgemm_grouped_row_epilogue(
          __uint_as_float(values[i]), __uint_as_float(values[i + 1]), row, column + i, tile.expert,
          tile.row + tile.rows, &params.epilogue);
      values[i] = __float_as_uint(pair.x);
      values[i + 1] = __float_as_uint(pair.y);
    }
  }
};

// Code: of a kernel of all types.
template <class Code>
struct LinkedCode : Code {
  using Params = WithEpilogue<typename Code::Params>;
  using Results = LinkedResults<typename Code::Results>;
};

template <class Bytes>
using GroupedCodeOf = std::conditional_t<Bytes::kScaleUse == ScaleUse::kMma, GroupedMmaCode<Bytes>,
                                         GroupedScaledConfig<Bytes>>;

}  // namespace bwgemm::scaled::sm100

#define BWGEMM_SCALED_LINKED_KERNEL(name, ...)                                          \
  extern "C" __global__ void __launch_bounds__(grouped::sm100::kThreads, 1)             \
      name(const __grid_constant__ scaled::sm100::LinkedCode<                           \
           scaled::sm100::GroupedCodeOf<typename __VA_ARGS__::Bytes>>::Params params) { \
    using Code = scaled::sm100::GroupedCodeOf<typename __VA_ARGS__::Bytes>;             \
    grouped::sm100::RunCta<scaled::sm100::LinkedCode<Code>>(params);                    \
  }
