// Which CUTLASS schedules a Schedule of SM100 stands for.
#pragma once

#include "cutlass/arch/arch.h"
#include "cutlass/epilogue/dispatch_policy.hpp"
#include "cutlass/gemm/dispatch_policy.hpp"
#include "dense/problem.h"
#include "dense/stream_k_sm100.h"
#include "dense/waits_sm100.h"

namespace bwgemm::dense {

template <Schedule>
struct ScheduleTraits;

// SM100: TMA, MMA, scheduler and epilogue warps; accumulators double-buffered in tensor memory, so
// that a tile's epilogue runs under the next tile's MMAs. Tile schedulers are dynamic there: each
// cluster takes its next tile by cluster launch control (CLC).
template <>
struct ScheduleTraits<Schedule::k1Sm> {
  using ArchTag = cutlass::arch::Sm100;
  using Mainloop = cutlass::gemm::KernelTmaWarpSpecialized1SmSm100;
  using Epilogue = cutlass::epilogue::TmaWarpSpecialized1Sm;
  template <class Shape, class Loop, class Store, class Scheduler>
  using Kernel = OrderedKernel<Shape, Loop, Store, Scheduler>;
};

template <>
struct ScheduleTraits<Schedule::k2Sm> {
  using ArchTag = cutlass::arch::Sm100;
  using Mainloop = cutlass::gemm::KernelTmaWarpSpecialized2SmSm100;
  using Epilogue = cutlass::epilogue::TmaWarpSpecialized2Sm;
  template <class Shape, class Loop, class Store, class Scheduler>
  using Kernel = OrderedKernel<Shape, Loop, Store, Scheduler>;
};

}  // namespace bwgemm::dense
