// The only place where the architectures differ: which CUTLASS schedules a Schedule stands for.
#pragma once

#include "cutlass/arch/arch.h"
#include "cutlass/epilogue/dispatch_policy.hpp"
#include "cutlass/epilogue/fusion/operations.hpp"
#include "cutlass/gemm/dispatch_policy.hpp"
#include "dense/problem.h"
#include "dense/stream_k_sm100.h"
#include "dense/waits_sm100.h"

namespace bwgemm::dense {

template <Schedule>
struct ScheduleTraits;

// SM90: one TMA producer warp and two wgmma consumer warpgroups; accumulators in registers.
template <>
struct ScheduleTraits<Schedule::kCooperative> {
  static constexpr Arch kArch = Arch::kSm90;
  using ArchTag = cutlass::arch::Sm90;
  using Mainloop = cutlass::gemm::KernelTmaWarpSpecializedCooperative;
  using Epilogue = cutlass::epilogue::TmaWarpSpecializedCooperative;
  template <class Out>  // D = acc, converted to Out
  using Result = cutlass::epilogue::fusion::LinearCombination<Out, float>;
  template <class Shape, class Loop, class Store, class Scheduler>
  using Kernel = cutlass::gemm::kernel::GemmUniversal<Shape, Loop, Store, Scheduler>;
  using StreamKScheduler = cutlass::gemm::StreamKScheduler;
  static constexpr int kPartCounters = 2;  // of a shared tile: one for each consumer warpgroup
  template <class Params>
  static const auto& StreamKUnits(const Params& params) {
    return params;
  }
};

template <>
struct ScheduleTraits<Schedule::kPingpong> {
  static constexpr Arch kArch = Arch::kSm90;
  using ArchTag = cutlass::arch::Sm90;
  using Mainloop = cutlass::gemm::KernelTmaWarpSpecializedPingpong;
  using Epilogue = cutlass::epilogue::TmaWarpSpecialized;
  template <class Out>  // D = acc, converted to Out
  using Result = cutlass::epilogue::fusion::LinearCombination<Out, float>;
  template <class Shape, class Loop, class Store, class Scheduler>
  using Kernel = cutlass::gemm::kernel::GemmUniversal<Shape, Loop, Store, Scheduler>;
  using StreamKScheduler = void;  // its warpgroups have no common tile to share
};

// SM100: TMA, MMA, scheduler and epilogue warps; accumulators double-buffered in tensor memory, so
// that a tile's epilogue runs under the next tile's MMAs. Tile schedulers are dynamic there: each
// cluster takes its next tile by cluster launch control (CLC).
template <>
struct ScheduleTraits<Schedule::k1Sm> {
  static constexpr Arch kArch = Arch::kSm100;
  using ArchTag = cutlass::arch::Sm100;
  using Mainloop = cutlass::gemm::KernelTmaWarpSpecialized1SmSm100;
  using Epilogue = cutlass::epilogue::TmaWarpSpecialized1Sm;
  template <class Out>
  using Result = LoadedAccumulator<Out>;
  template <class Shape, class Loop, class Store, class Scheduler>
  using Kernel = OrderedKernel<Shape, Loop, Store, Scheduler>;
  using StreamKScheduler = StreamKSm100Scheduler;
  static constexpr int kPartCounters = 1;
  template <class Params>
  static const auto& StreamKUnits(const Params& params) {
    return params.sk_params_;
  }
};

template <>
struct ScheduleTraits<Schedule::k2Sm> {
  static constexpr Arch kArch = Arch::kSm100;
  using ArchTag = cutlass::arch::Sm100;
  using Mainloop = cutlass::gemm::KernelTmaWarpSpecialized2SmSm100;
  using Epilogue = cutlass::epilogue::TmaWarpSpecialized2Sm;
  template <class Out>
  using Result = LoadedAccumulator<Out>;
  template <class Shape, class Loop, class Store, class Scheduler>
  using Kernel = OrderedKernel<Shape, Loop, Store, Scheduler>;
  using StreamKScheduler = StreamKSm100Scheduler;
  static constexpr int kPartCounters = 1;
  template <class Params>
  static const auto& StreamKUnits(const Params& params) {
    return params.sk_params_;
  }
};

}  // namespace bwgemm::dense
