// wgmma on two operands of 8-bit floating point in shared memory, both K-major: 64 x kColumns x 32,
// f32 results. As wgmma.h, whose lists of registers it uses.
#pragma once

#include "cutlass/float8.h"
#include "sm90/wgmma.h"

namespace bwgemm::sm90 {

// clang-format off
#define BWGEMM_WGMMA(type_a, type_b, columns, a, b, adds)                                  \
  asm volatile(                                                                            \
      "{\n.reg .pred p;\nsetp.ne.b32 p, " adds ", 0;\n"                                    \
      "wgmma.mma_async.sync.aligned.m64n" #columns "k32.f32." type_a "." type_b            \
      " {" BWGEMM_NUMBERS_##columns "}, " a ", " b ", p, 1, 1;\n}"                         \
      : BWGEMM_RESULTS_##columns                                                           \
      : "l"(desc_a), "l"(desc_b), "r"(static_cast<int>(accumulate)))
#define BWGEMM_WGMMA_OF(columns, ...)                                                      \
  if constexpr (kColumns == columns) {                                                     \
    if constexpr (kE4M3<InA> && kE4M3<InB>) {                                              \
      BWGEMM_WGMMA("e4m3", "e4m3", columns, __VA_ARGS__);                                  \
    } else if constexpr (kE4M3<InA>) {                                                     \
      BWGEMM_WGMMA("e4m3", "e5m2", columns, __VA_ARGS__);                                  \
    } else if constexpr (kE4M3<InB>) {                                                     \
      BWGEMM_WGMMA("e5m2", "e4m3", columns, __VA_ARGS__);                                  \
    } else {                                                                               \
      BWGEMM_WGMMA("e5m2", "e5m2", columns, __VA_ARGS__);                                  \
    }                                                                                      \
  }
// clang-format on

template <class InA, class InB, int kColumns>
struct WgmmaFp8 {
  template <class T>
  static constexpr bool kE4M3 = std::is_same_v<T, cutlass::float_e4m3_t>;
  template <class T>
  static constexpr bool kIsFp8 = kE4M3<T> || std::is_same_v<T, cutlass::float_e5m2_t>;
  static_assert(kIsFp8<InA> && kIsFp8<InB>);
  // The widths that Issue() has an instruction for: it would do nothing for others.
  static constexpr bool kHasWidth = kColumns % 16 == 0 && kColumns >= 16 && kColumns <= 256;
  static_assert(kHasWidth);
  static constexpr int kDepth = 2 * kMmaDepth;  // elements of K

  // D = A x B, or D += A x B. d(i): the thread's i-th result.
  template <class Results>
  __device__ static void Issue(uint64_t desc_a, uint64_t desc_b, Results&& d, bool accumulate) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    BWGEMM_WGMMA_OF(16, "%8", "%9", "%10")
    BWGEMM_WGMMA_OF(32, "%16", "%17", "%18")
    BWGEMM_WGMMA_OF(48, "%24", "%25", "%26")
    BWGEMM_WGMMA_OF(64, "%32", "%33", "%34")
    BWGEMM_WGMMA_OF(80, "%40", "%41", "%42")
    BWGEMM_WGMMA_OF(96, "%48", "%49", "%50")
    BWGEMM_WGMMA_OF(112, "%56", "%57", "%58")
    BWGEMM_WGMMA_OF(128, "%64", "%65", "%66")
    BWGEMM_WGMMA_OF(144, "%72", "%73", "%74")
    BWGEMM_WGMMA_OF(160, "%80", "%81", "%82")
    BWGEMM_WGMMA_OF(176, "%88", "%89", "%90")
    BWGEMM_WGMMA_OF(192, "%96", "%97", "%98")
    BWGEMM_WGMMA_OF(208, "%104", "%105", "%106")
    BWGEMM_WGMMA_OF(224, "%112", "%113", "%114")
    BWGEMM_WGMMA_OF(240, "%120", "%121", "%122")
    BWGEMM_WGMMA_OF(256, "%128", "%129", "%130")
#else
    CUTE_INVALID_CONTROL_PATH("compiled for another architecture");
#endif
  }
};

#undef BWGEMM_WGMMA_OF
#undef BWGEMM_WGMMA

}  // namespace bwgemm::sm90
