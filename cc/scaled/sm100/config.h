// The scaled SM100 kernels: the dense one of CUTLASS's parts with 8-bit operands. Either its epilogue
// multiplies sums by the scales of their row and column, or its MMA instructions multiply products
// by the scales of blocks of 32.
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

// Operands of MXFP8: values, and an E8M0 scale for 32 along K. The main loop loads the scales beside
// the values and copies them to tensor memory, where tcgen05.mma reads them.
template <Schedule kSchedule>
struct BlockScaledOperands {
  using OperatorClass = cutlass::arch::OpClassBlockScaledTensorOp;
  using Mainloop = std::conditional_t<kSchedule == Schedule::k2Sm,
                                      cutlass::gemm::KernelTmaWarpSpecialized2SmMxf8f6f4Sm100,
                                      cutlass::gemm::KernelTmaWarpSpecialized1SmMxf8f6f4Sm100>;
  template <class Value>
  using Element = cutlass::mx_float8_t<Value>;
};

// Without promotion: sums of products stay in tensor memory over all of K.
template <class Spec>
struct SumsConfig : dense::GemmKernel<Spec, ScaledResult> {
  static_assert(Spec::kScaleUse == ScaleUse::kSums && !Spec::kSwapAb);
};

template <class Spec>
struct MmaConfig
    : dense::GemmKernel<Spec, dense::PlainResult<dense::ScheduleTraits<Spec::kSchedule>>,
                        BlockScaledOperands<Spec::kSchedule>> {
  static_assert(Spec::kScaleUse == ScaleUse::kMma && !Spec::kSwapAb);
};

template <class Spec>
using Config =
    std::conditional_t<Spec::kScaleUse == ScaleUse::kMma, MmaConfig<Spec>, SumsConfig<Spec>>;

}  // namespace bwgemm::scaled::sm100
