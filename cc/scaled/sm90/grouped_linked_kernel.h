// The entry point of a grouped scaled kernel for linking. It has the kernel's stable name, by which
// it is found.
#pragma once

#include "scaled/sm90/grouped_kernel.h"

#define BWGEMM_SCALED_LINKED_KERNEL(name, ...)                                 \
  extern "C" __global__ void __launch_bounds__(bwgemm::sm90::kThreads, 1)      \
      name(const __grid_constant__ scaled::sm90::LinkedGroupedParams params) { \
    using Spec = __VA_ARGS__;                                                  \
    using C = scaled::sm90::GroupedConfig<Spec, /*kLinked=*/true>;             \
    scaled::sm90::RunGroupedScaled<C>(params);                                 \
  }
