// wgmma whose first operand is in registers: 64 x kColumns x 16, bf16 or f16, f32 results.
#pragma once

#include <type_traits>

#include "cutlass/numeric_types.h"
#include "sm90/wgmma.h"

namespace bwgemm::sm90 {

// The first operand of one MMA (PTX ISA "wgmma register fragments"): thread t holds pairs of
// elements along K: of row 16 * (t / 32) + (t % 32) / 4 at 2 * (t % 4), of the row 8 below it, and
// both again 8 elements on.
struct WgmmaFragment {
  uint32_t pairs[4];
};

// clang-format off
#define BWGEMM_WGMMA_OF_REGISTERS(type, columns, a0, a1, a2, a3, b, adds, b_mn)        \
  if constexpr (kColumns == columns) {                                                 \
    asm volatile(                                                                      \
        "{\n.reg .pred p;\nsetp.ne.b32 p, " adds ", 0;\n"                              \
        "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." type "." type          \
        " {" BWGEMM_NUMBERS_##columns "}, {" a0 ", " a1 ", " a2 ", " a3 "}, " b        \
        ", p, 1, 1, " b_mn ";\n}"                                                      \
        : BWGEMM_RESULTS_##columns                                                     \
        : "r"(a.pairs[0]), "r"(a.pairs[1]), "r"(a.pairs[2]), "r"(a.pairs[3]),          \
          "l"(desc_b), "r"(static_cast<int>(accumulate)), "n"(kBKMajor ? 0 : 1));      \
  }
// clang-format on

// Element: of both operands.
template <class Element, int kColumns, bool kBKMajor>
struct WgmmaRegisters {
  static_assert(kColumns == 16 || kColumns == 64 || kColumns == 128 || kColumns == 192 ||
                    kColumns == 256,
                "add the width below");

  // D = A x B, or D += A x B. d(i): the thread's i-th result.
  template <class Results>
  __device__ static void Issue(const WgmmaFragment& a, uint64_t desc_b, Results&& d,
                               bool accumulate) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    if constexpr (std::is_same_v<Element, cutlass::half_t>) {
      static_assert(kColumns == 256, "add the width below");
      BWGEMM_WGMMA_OF_REGISTERS("f16", 256, "%128", "%129", "%130", "%131", "%132", "%133", "%134")
    } else {
      BWGEMM_WGMMA_OF_REGISTERS("bf16", 16, "%8", "%9", "%10", "%11", "%12", "%13", "%14")
      BWGEMM_WGMMA_OF_REGISTERS("bf16", 64, "%32", "%33", "%34", "%35", "%36", "%37", "%38")
      BWGEMM_WGMMA_OF_REGISTERS("bf16", 128, "%64", "%65", "%66", "%67", "%68", "%69", "%70")
      BWGEMM_WGMMA_OF_REGISTERS("bf16", 192, "%96", "%97", "%98", "%99", "%100", "%101", "%102")
      BWGEMM_WGMMA_OF_REGISTERS("bf16", 256, "%128", "%129", "%130", "%131", "%132", "%133", "%134")
    }
#else
    CUTE_INVALID_CONTROL_PATH("compiled for another architecture");
#endif
  }
};

#undef BWGEMM_WGMMA_OF_REGISTERS

}  // namespace bwgemm::sm90
