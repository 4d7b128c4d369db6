// The scaled SM100 kernel: the dense one of CUTLASS's parts with 8-bit operands, whose epilogue
// multiplies sums by the scales of their row and column.
#pragma once

#include "cutlass/epilogue/fusion/sm100_callbacks_tma_warpspecialized.hpp"
#include "dense/gemm_kernel.h"
#include "scaled/kernel_spec.h"

namespace bwgemm::scaled::sm100 {

namespace evt = cutlass::epilogue::fusion;

// D = (scale of the row * scale of the column) * acc. A stride of false is one scale for all.
struct ScaledResult {
  using ColumnStride = cute::Stride<bool, cute::_0, int64_t>;
  using RowStride = cute::Stride<cute::_0, bool, int64_t>;
  template <class To>
  using Multiply =
      evt::Sm90Compute<cutlass::multiplies, To, float, cutlass::FloatRoundStyle::round_to_nearest>;
  template <class CtaTile, class Out>
  using Fusion = evt::Sm90EVT<
      Multiply<Out>,
      evt::Sm90EVT<Multiply<float>, evt::Sm90ColBroadcast<0, CtaTile, float, float, ColumnStride>,
                   evt::Sm90RowBroadcast<0, CtaTile, float, float, RowStride>>,
      dense::LoadedAccumulator<float>>;
};

// Without promotion: sums of products stay in tensor memory over all of K.
template <class Spec>
struct Config : dense::GemmKernel<Spec, ScaledResult> {
  static_assert(Spec::kScaleUse == ScaleUse::kSums && !Spec::kSwapAb);
};

}  // namespace bwgemm::scaled::sm100
