// The scaled SM100 kernels: the dense one of CUTLASS's parts with 8-bit or 4-bit operands. Either
// its epilogue multiplies sums by the scales of their row and column, or its MMA instructions
// multiply products by the scales of blocks.
#pragma once

#include "cutlass/epilogue/fusion/sm100_callbacks_tma_warpspecialized.hpp"
#include "dense/gemm_kernel.h"
#include "dense/sm100/linked_result.h"
#include "scaled/kernel_spec.h"

// After the declarations in dense/gemm_kernel.h.
#include "cutlass/gemm/collective/builders/sm100_blockscaled_umma_builder.inl"
#include "cutlass/gemm/collective/sm100_blockscaled_mma_warpspecialized.hpp"

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

// D = alpha * acc. Alpha is the scale that a batch element has beside those of its blocks.
struct AlphaResult {
  template <class CtaTile, class Out>
  using Fusion =
      evt::Sm90EVT<ScaledResult::Multiply<Out>,
                   evt::Sm90ColBroadcast<0, CtaTile, float, float, ScaledResult::ColumnStride>,
                   dense::LoadedAccumulator<float>>;
};

// A linked function of what ScaledResult gives.
template <class Spec>
struct LinkedScaledResult {
  template <class CtaTile, class Out>
  using Fusion = evt::Sm90EVT<typename dense::sm100::Linked<Spec>::template Fusion<CtaTile, Out>,
                              typename ScaledResult::Fusion<CtaTile, float>>;
};

// Operands of block formats: values, and a scale for some of them along K. The main loop loads the
// scales beside the values and copies them to tensor memory, where tcgen05.mma reads them.
struct BlockScaled {
  using OperatorClass = cutlass::arch::OpClassBlockScaledTensorOp;
  // Two accumulators of 256 columns leave no tensor memory for scales: the second one begins in
  // what the epilogue reads first of the first. 64 columns make enough room for scales.
  template <int kTileN>
  using EpilogueTile = std::conditional_t<kTileN == 256, cute::Shape<cute::_128, cute::_64>,
                                          cutlass::epilogue::collective::EpilogueTileAuto>;
};

// MXFP8 has E8M0 scales for 32 elements of 8 bits.
template <DType kValues, bool kPair>
struct BlockScaledOperands : BlockScaled {
  using Mainloop =
      std::conditional_t<kPair, cutlass::gemm::KernelTmaWarpSpecialized2SmMxf8f6f4Sm100,
                         cutlass::gemm::KernelTmaWarpSpecialized1SmMxf8f6f4Sm100>;
  template <class Value>
  using Element = cutlass::mx_float8_t<Value>;
};

// NVFP4 has E4M3 scales for 16 elements of 4 bits.
template <bool kPair>
struct BlockScaledOperands<DType::kE2M1, kPair> : BlockScaled {
  using Mainloop = std::conditional_t<kPair, cutlass::gemm::KernelTmaWarpSpecialized2SmNvf4Sm100,
                                      cutlass::gemm::KernelTmaWarpSpecialized1SmNvf4Sm100>;
  template <class Value>
  using Element = cutlass::nv_float4_t<Value>;
};

// Without promotion: sums of products stay in tensor memory over all of K.
template <class Spec, bool kLinked_ = false>
struct SumsConfig
    : dense::GemmKernel<Spec,
                        std::conditional_t<kLinked_, LinkedScaledResult<Spec>, ScaledResult>> {
  static constexpr bool kLinked = kLinked_;
  static constexpr bool kLinkable = true;
  static_assert(Spec::kScaleUse == ScaleUse::kSums && !Spec::kSwapAb);
  static_assert(Spec::kOut != DType::kF16, "ScaledResult rounds to what GemmKernel calls Out");
};

template <class Spec>
using MmaResult = std::conditional_t<Spec::kA == DType::kE2M1, AlphaResult, dense::PlainResult>;

// A function is linked where no alpha multiplies the sums.
template <class Spec, bool kLinked_ = false>
struct MmaConfig
    : dense::GemmKernel<Spec,
                        std::conditional_t<kLinked_, dense::sm100::Linked<Spec>, MmaResult<Spec>>,
                        BlockScaledOperands<Spec::kA, Spec::kSchedule == Schedule::k2Sm>> {
  static constexpr bool kLinked = kLinked_;
  static constexpr bool kLinkable = Spec::kA != DType::kE2M1;
  static_assert(Spec::kScaleUse == ScaleUse::kMma && !Spec::kSwapAb);
  static_assert(Spec::kOut != DType::kF16, "AlphaResult rounds to what GemmKernel calls Out");
};

template <class Spec, bool kLinked = false>
using Config = std::conditional_t<Spec::kScaleUse == ScaleUse::kMma, MmaConfig<Spec, kLinked>,
                                  SumsConfig<Spec, kLinked>>;

}  // namespace bwgemm::scaled::sm100
