// One of CUTLASS's GEMM kernels for SM100: operands -> tile -> epilogue -> mainloop -> kernel.
#pragma once

#include "cute/tensor.hpp"
#include "cutlass/epilogue/collective/collective_builder.hpp"
#include "cutlass/gemm/collective/collective_builder_decl.hpp"
#include "cutlass/gemm/collective/collective_mma_decl.hpp"
#include "dense/kernel_spec.h"
#include "dense/schedules.h"
#include "dense/sm100/float_format.h"
#include "dense/waits_sm100.h"

// CUTLASS's collective_builder.hpp includes the main loops of all architectures. These are the ones
// in use. They need the declarations above.
#include "cutlass/gemm/collective/builders/sm100_umma_builder.inl"
#include "cutlass/gemm/collective/sm100_mma_warpspecialized.hpp"

namespace bwgemm::dense {

// What the epilogue does with the sums: it only rounds them. Results of 16 bits are of either type.
struct PlainResult {
  template <class CtaTile, class Out>
  using Fusion =
      std::conditional_t<sizeof(Out) == 2, sm100::FormatAccumulator<Out>, LoadedAccumulator<Out>>;
};

// What the main loop reads: operands without scales.
template <class Traits>
struct PlainOperands {
  using OperatorClass = cutlass::arch::OpClassTensorOp;
  using Mainloop = typename Traits::Mainloop;
  template <class Value>
  using Element = Value;
  template <int kTileN>
  using EpilogueTile = cutlass::epilogue::collective::EpilogueTileAuto;
};

template <class Spec, class Result = PlainResult,
          class Operands = PlainOperands<ScheduleTraits<Spec::kSchedule>>>
struct GemmKernel : Spec {
  using Traits = ScheduleTraits<Spec::kSchedule>;

  static_assert(Spec::kSchedule != Schedule::k2Sm || Spec::kClusterM % 2 == 0,
                "a 2-CTA MMA needs an even number of CTAs along M in the cluster");

  // Operands. CUTLASS's B is K x N: RowMajor means N contiguous. With swapped operands CUTLASS
  // computes transpose(D) = transpose(B) x transpose(A). rhs, which is long when M is small, is
  // then on the MMA's M side, whose smallest tile is 64; lhs is on its N side, whose smallest is 8.
  static constexpr DType kAType = Spec::kSwapAb ? Spec::kB : Spec::kA;
  static constexpr DType kBType = Spec::kSwapAb ? Spec::kA : Spec::kB;
  using A = sm100::FormatType<kAType>;
  using B = sm100::FormatType<kBType>;
  using Out = sm100::FormatType<Spec::kOut>;
  static constexpr bool kTakesFormats = cute::sizeof_bits_v<A> >= 8;
  using Accumulator = float;
  using Row = cutlass::layout::RowMajor;
  using Column = cutlass::layout::ColumnMajor;
  static constexpr bool kAKMajor =
      Spec::kSwapAb ? Spec::kBMajor == BMajor::kK : Spec::kAMajor == AMajor::kK;
  static constexpr bool kBKMajor =
      Spec::kSwapAb ? Spec::kAMajor == AMajor::kK : Spec::kBMajor == BMajor::kK;
  using LayoutA = std::conditional_t<kAKMajor, Row, Column>;
  using LayoutB = std::conditional_t<kBKMajor, Column, Row>;
  using LayoutD = std::conditional_t<Spec::kSwapAb, Column, Row>;
  static constexpr int kAlignA = kAlignmentBytes * 8 / cute::sizeof_bits_v<A>;
  static constexpr int kAlignB = kAlignmentBytes * 8 / cute::sizeof_bits_v<B>;
  static constexpr int kAlignOut = kAlignmentBytes / sizeof(Out);

  using Tile =
      cute::Shape<cute::Int<Spec::kTileM>, cute::Int<Spec::kTileN>, cute::Int<Spec::kTileK>>;
  using CtaTile =
      cute::Shape<cute::Int<Spec::kSchedule == Schedule::k2Sm ? Spec::kTileM / 2 : Spec::kTileM>,
                  cute::Int<Spec::kTileN>, cute::Int<Spec::kTileK>>;
  using Cluster = cute::Shape<cute::Int<Spec::kClusterM>, cute::Int<Spec::kClusterN>, cute::_1>;

  using EpilogueTile = typename Operands::template EpilogueTile<Spec::kTileN>;

  // The epilogue comes first because the mainloop gets the shared memory that it leaves over.
  // No C operand; converted to Out.
  using Epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
      typename Traits::ArchTag, typename Operands::OperatorClass, Tile, Cluster, EpilogueTile,
      Accumulator, Accumulator, void, LayoutD, kAlignOut, Out, LayoutD, kAlignOut,
      typename Traits::Epilogue, typename Result::template Fusion<CtaTile, Out>>::CollectiveOp;

  using Loop = typename cutlass::gemm::collective::CollectiveBuilder<
      typename Traits::ArchTag, typename Operands::OperatorClass,
      typename Operands::template Element<A>, LayoutA, kAlignA,
      typename Operands::template Element<B>, LayoutB, kAlignB, Accumulator, Tile, Cluster,
      cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(
          sizeof(typename Epilogue::SharedStorage))>,
      typename Operands::Mainloop>::CollectiveOp;
  using Mainloop = std::conditional_t<kTakesFormats, sm100::FormatMainloop<Loop>, Loop>;
  static constexpr int kStages = Mainloop::DispatchPolicy::Stages;

  using TileScheduler =
      std::conditional_t<Spec::kStreamK, StreamKSm100Scheduler, cutlass::gemm::PersistentScheduler>;
  using Kernel = typename Traits::template Kernel<cute::Shape<int, int, int, int>, Mainloop,
                                                  Epilogue, TileScheduler>;
};

}  // namespace bwgemm::dense
