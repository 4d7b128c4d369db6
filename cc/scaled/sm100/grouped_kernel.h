// The grouped scaled SM100 kernels: the grouped one with 8-bit operands. Its epilogue multiplies
// the sums by the scales of their row and column: the sums over all of k once, or those of every
// 128 of k, which it adds up in registers.
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

struct ScaledResults : grouped::sm100::PlainResults {
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

// Scales of blocks of k, which k-grouped products count from the first column. A thread has one
// row.
template <bool kKGrouped>
class BlockPromotion {
 public:
  struct Scales {
    float of_all;
    const float* of_columns;
  };

  __device__ BlockPromotion(const GroupedParams& params, const grouped::Tile& tile, int row,
                            int column)
      : p_(params.p_scales),
        q_(params.q_scales),
        of_row_(ScaleOf(p_, tile, row, params.p_rows)),
        of_column_(ScaleOf(q_, tile, column, params.q_rows)),
        first_block_(kKGrouped ? tile.row / kScaleBlock : 0),
        // A tile's columns share a scale unless each has its own.
        each_column_(q_.row_pitch != 0 && q_.log_rows == 0),
        last_four_(params.q_rows - 4 - column) {}

  __device__ Scales Of(int block) const {
    block += first_block_;
    const float of_row = __ldg(of_row_ + block * p_.k_pitch);
    const float* of_columns = of_column_ + block * q_.k_pitch;
    return {each_column_ ? of_row : of_row * __ldg(of_columns), of_columns};
  }

  // Columns `first` to first + 31 of the tile; beyond the operand's they have some scale of it.
  __device__ void Add(const Scales& scales, int first, const uint32_t (&values)[32],
                      float* sums) const {
    if (each_column_) {
      CUTE_UNROLL
      for (int i = 0; i < 32; i += 4) {
        const float4 of =
            __ldg(reinterpret_cast<const float4*>(scales.of_columns + min(first + i, last_four_)));
        Add(scales.of_all * of.x, values[i], sums[i]);
        Add(scales.of_all * of.y, values[i + 1], sums[i + 1]);
        Add(scales.of_all * of.z, values[i + 2], sums[i + 2]);
        Add(scales.of_all * of.w, values[i + 3], sums[i + 3]);
      }
    } else {
      CUTE_UNROLL
      for (int i = 0; i < 32; ++i) Add(scales.of_all, values[i], sums[i]);
    }
  }

 private:
  __device__ static void Add(float scale, uint32_t value, float& sum) {
    sum = fmaf(scale, __uint_as_float(value), sum);
  }

  const bwgemm::scaled::Scales &p_, &q_;
  const float *of_row_, *of_column_;
  int first_block_;
  bool each_column_;
  int last_four_;
};

// One kernel serves all types: In only says that an element is a byte.
template <class Spec, bool kPromotes>
struct GroupedCode : grouped::sm100::Config<Spec, 0, kPromotes> {
  static_assert(!Spec::kSwapAb);
  using Params = GroupedParams;

  template <class Descriptor>
  __device__ static void SetFormats(const Params& params, Descriptor& descriptor) {
    descriptor.a_format_ = params.p_format;
    descriptor.b_format_ = params.q_format;
  }
};

template <class Spec>
struct GroupedSumsConfig : GroupedCode<Spec, false> {
  using Results = ScaledResults;
};

template <class Spec>
struct GroupedPromotedConfig : GroupedCode<Spec, true> {
  static_assert(Spec::kTileN == kScaleBlock && Spec::kTileK == kScaleBlock);
  using Promotion = BlockPromotion<Spec::kKGrouped>;
};

template <class Spec>
using GroupedScaledConfig =
    std::conditional_t<Spec::kScaleUse == ScaleUse::kSums, GroupedSumsConfig<Spec>,
                       GroupedPromotedConfig<Spec>>;

template <class C>
__global__ void __launch_bounds__(grouped::sm100::kThreads, 1)
    GroupedScaledKernel(const __grid_constant__ GroupedParams params) {
  grouped::sm100::RunCta<C>(params);
}

}  // namespace bwgemm::scaled::sm100
