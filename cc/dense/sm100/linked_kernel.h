// The entry point of an SM100 kernel for linking. It has the kernel's stable name, by which it is
// found.
#pragma once

#include "dense/sm100/linked_result.h"

#define BWGEMM_LINKED_KERNEL(name, ...)                                                            \
  extern "C" __global__ void __launch_bounds__(                                                    \
      dense::sm100::LinkedGemm<__VA_ARGS__>::Kernel::MaxThreadsPerBlock, 1)                        \
      name(const __grid_constant__ dense::sm100::LinkedGemm<__VA_ARGS__>::Kernel::Params params) { \
    extern __shared__ char shared[];                                                               \
    typename dense::sm100::LinkedGemm<__VA_ARGS__>::Kernel kernel;                                 \
    kernel(params, shared);                                                                        \
  }
