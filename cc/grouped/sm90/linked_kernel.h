// The entry point of a kernel for linking. It has the kernel's stable name, by which it is found; a
// gated one has "gated" in the place of "rows".
#pragma once

#include "grouped/sm90/kernel.h"

#define BWGEMM_LINKED_KERNEL(name, gated, ...)                            \
  extern "C" __global__ void __launch_bounds__(bwgemm::sm90::kThreads, 1) \
      name(const __grid_constant__ grouped::sm90::LinkedParams params) {  \
    using Spec = __VA_ARGS__;                                             \
    using C = grouped::sm90::Config<Spec, /*kLinked=*/true, gated>;       \
    grouped::sm90::RunGrouped<C>(params);                                 \
  }
