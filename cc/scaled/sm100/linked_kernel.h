// The entry point of a scaled SM100 kernel for linking. It has the kernel's stable name, by which
// it is found.
#pragma once

#include "scaled/sm100/config.h"

#define BWGEMM_SCALED_LINKED_KERNEL(name, ...)                                                     \
  extern "C" __global__ void                                                                       \
  __launch_bounds__(scaled::sm100::Config<__VA_ARGS__, true>::Kernel::MaxThreadsPerBlock, 1) name( \
      const __grid_constant__ scaled::sm100::Config<__VA_ARGS__, true>::Kernel::Params params) {   \
    extern __shared__ char shared[];                                                               \
    typename scaled::sm100::Config<__VA_ARGS__, true>::Kernel kernel;                              \
    kernel(params, shared);                                                                        \
  }
