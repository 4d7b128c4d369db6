// The entry point of a kernel for linking. It has the kernel's stable name, by which it is found.
#pragma once

#include "dense/sm90/kernel.h"

#define BWGEMM_LINKED_KERNEL(name, ...)                                   \
  extern "C" __global__ void __launch_bounds__(bwgemm::sm90::kThreads, 1) \
      name(const __grid_constant__ dense::sm90::TwoMatrixParams params) { \
    using Spec = __VA_ARGS__;                                             \
    using C = dense::sm90::Config<Spec, /*kLinked=*/true>;                \
    dense::sm90::RunGemm<C>(params);                                      \
  }

#define BWGEMM_GATED_KERNEL(name, ...)                                      \
  extern "C" __global__ void __launch_bounds__(bwgemm::sm90::kThreads, 1)   \
      name(const __grid_constant__ dense::sm90::GatedParams params) {       \
    using Spec = __VA_ARGS__;                                               \
    using C = dense::sm90::Config<Spec, /*kLinked=*/true, /*kGated=*/true>; \
    dense::sm90::RunGemm<C>(params);                                        \
  }
