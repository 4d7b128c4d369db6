// The grouped scaled SM100 kernel: the grouped one with 8-bit operands, whose sums its epilogue
// multiplies by the scales of their row and column.
#pragma once

#include "grouped/sm100/kernel.h"
#include "scaled/grouped_kernel_spec.h"

namespace bwgemm::scaled::sm100 {

struct GroupedParams : grouped::sm100::Params {
  Scales p_scales, q_scales;
  int32_t p_rows, q_rows;      // of the operands that have these scales
  uint8_t p_format, q_format;  // of tcgen05.mma's instruction descriptor
};

// Of one row; beyond the operand the last row's, and a result that is not stored.
__device__ inline const float* ScaleOf(const Scales& scales, const grouped::Tile& tile, int row,
                                       int rows) {
  return scales.data + tile.batch * scales.batch_pitch + tile.expert * scales.expert_pitch +
         (min(row, rows - 1) >> scales.log_rows) * scales.row_pitch;
}

struct ScaledResults {
  // A thread's results: of one row, from `column` on.
  template <int kCount>
  __device__ static void Apply(const GroupedParams& params, const grouped::Tile& tile, int row,
                               int column, uint32_t (&values)[kCount]) {
    const float of_row = __ldg(ScaleOf(params.p_scales, tile, row, params.p_rows));
    CUTE_UNROLL
    for (int i = 0; i < kCount; ++i) {
      const float of_column = __ldg(ScaleOf(params.q_scales, tile, column + i, params.q_rows));
      values[i] = __float_as_uint(of_row * of_column * __uint_as_float(values[i]));
    }
  }
};

template <class Spec>
struct GroupedSumsConfig : grouped::sm100::Config<Spec> {
  static_assert(Spec::kScaleUse == ScaleUse::kSums && !Spec::kSwapAb);
  using Params = GroupedParams;
  using Results = ScaledResults;

  // One kernel is all types': In only says that an element is a byte.
  template <class Descriptor>
  __device__ static void SetFormats(const Params& params, Descriptor& descriptor) {
    descriptor.a_format_ = params.p_format;
    descriptor.b_format_ = params.q_format;
  }
};

template <class C>
__global__ void __launch_bounds__(grouped::sm100::kThreads, 1)
    GroupedScaledKernel(const __grid_constant__ GroupedParams params) {
  grouped::sm100::RunCta<C>(params);
}

}  // namespace bwgemm::scaled::sm100
