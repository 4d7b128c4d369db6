// wgmma on two operands in shared memory: 64 x kColumns x 16, 16-bit types, f32 results.
//
// CuTe has a separate operation for every width, and templates over layouts to find descriptors.
// Both cost a translation unit more compile time than its kernels. Here the width is a parameter,
// and descriptors are arithmetic (descriptor.h). The instruction: PTX ISA, 9.7.15.5.2
// (wgmma.mma_async).
#pragma once

#include <cstdint>
#include <type_traits>

#include "cute/tensor_impl.hpp"
#include "cutlass/numeric_types.h"

namespace bwgemm::sm90 {

constexpr int kMmaRows = 64;  // of every wgmma
constexpr int kMmaDepth = 16;

// The results in a thread's registers as operands of asm, and their numbers in its text. An asm
// statement's text is a literal: its length cannot depend on a template parameter.
// clang-format off
#define BWGEMM_8_RESULTS(n)                                   \
  "+f"(d(n)), "+f"(d(n + 1)), "+f"(d(n + 2)), "+f"(d(n + 3)), \
  "+f"(d(n + 4)), "+f"(d(n + 5)), "+f"(d(n + 6)), "+f"(d(n + 7))
#define BWGEMM_RESULTS_16 BWGEMM_8_RESULTS(0)
#define BWGEMM_RESULTS_32 BWGEMM_RESULTS_16, BWGEMM_8_RESULTS(8)
#define BWGEMM_RESULTS_48 BWGEMM_RESULTS_32, BWGEMM_8_RESULTS(16)
#define BWGEMM_RESULTS_64 BWGEMM_RESULTS_48, BWGEMM_8_RESULTS(24)
#define BWGEMM_RESULTS_80 BWGEMM_RESULTS_64, BWGEMM_8_RESULTS(32)
#define BWGEMM_RESULTS_96 BWGEMM_RESULTS_80, BWGEMM_8_RESULTS(40)
#define BWGEMM_RESULTS_112 BWGEMM_RESULTS_96, BWGEMM_8_RESULTS(48)
#define BWGEMM_RESULTS_128 BWGEMM_RESULTS_112, BWGEMM_8_RESULTS(56)
#define BWGEMM_RESULTS_144 BWGEMM_RESULTS_128, BWGEMM_8_RESULTS(64)
#define BWGEMM_RESULTS_160 BWGEMM_RESULTS_144, BWGEMM_8_RESULTS(72)
#define BWGEMM_RESULTS_176 BWGEMM_RESULTS_160, BWGEMM_8_RESULTS(80)
#define BWGEMM_RESULTS_192 BWGEMM_RESULTS_176, BWGEMM_8_RESULTS(88)
#define BWGEMM_RESULTS_208 BWGEMM_RESULTS_192, BWGEMM_8_RESULTS(96)
#define BWGEMM_RESULTS_224 BWGEMM_RESULTS_208, BWGEMM_8_RESULTS(104)
#define BWGEMM_RESULTS_240 BWGEMM_RESULTS_224, BWGEMM_8_RESULTS(112)
#define BWGEMM_RESULTS_256 BWGEMM_RESULTS_240, BWGEMM_8_RESULTS(120)
#define BWGEMM_4_RESULTS(n) "+f"(d(n)), "+f"(d(n + 1)), "+f"(d(n + 2)), "+f"(d(n + 3))
#define BWGEMM_RESULTS_88 BWGEMM_RESULTS_80, BWGEMM_4_RESULTS(40)
#define BWGEMM_RESULTS_120 BWGEMM_RESULTS_112, BWGEMM_4_RESULTS(56)
#define BWGEMM_RESULTS_136 BWGEMM_RESULTS_128, BWGEMM_4_RESULTS(64)
#define BWGEMM_RESULTS_152 BWGEMM_RESULTS_144, BWGEMM_4_RESULTS(72)
#define BWGEMM_NUMBERS_16 "%0, %1, %2, %3, %4, %5, %6, %7"
#define BWGEMM_NUMBERS_32 BWGEMM_NUMBERS_16 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define BWGEMM_NUMBERS_48 BWGEMM_NUMBERS_32 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define BWGEMM_NUMBERS_64 BWGEMM_NUMBERS_48 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define BWGEMM_NUMBERS_80 BWGEMM_NUMBERS_64 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define BWGEMM_NUMBERS_96 BWGEMM_NUMBERS_80 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define BWGEMM_NUMBERS_112 BWGEMM_NUMBERS_96 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define BWGEMM_NUMBERS_128 BWGEMM_NUMBERS_112 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define BWGEMM_NUMBERS_144 BWGEMM_NUMBERS_128 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define BWGEMM_NUMBERS_160 BWGEMM_NUMBERS_144 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define BWGEMM_NUMBERS_176 BWGEMM_NUMBERS_160 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define BWGEMM_NUMBERS_192 BWGEMM_NUMBERS_176 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define BWGEMM_NUMBERS_208 BWGEMM_NUMBERS_192 ", %96, %97, %98, %99, %100, %101, %102, %103"
#define BWGEMM_NUMBERS_224 BWGEMM_NUMBERS_208 ", %104, %105, %106, %107, %108, %109, %110, %111"
#define BWGEMM_NUMBERS_240 BWGEMM_NUMBERS_224 ", %112, %113, %114, %115, %116, %117, %118, %119"
#define BWGEMM_NUMBERS_256 BWGEMM_NUMBERS_240 ", %120, %121, %122, %123, %124, %125, %126, %127"
#define BWGEMM_NUMBERS_88 BWGEMM_NUMBERS_80 ", %40, %41, %42, %43"
#define BWGEMM_NUMBERS_120 BWGEMM_NUMBERS_112 ", %56, %57, %58, %59"
#define BWGEMM_NUMBERS_136 BWGEMM_NUMBERS_128 ", %64, %65, %66, %67"
#define BWGEMM_NUMBERS_152 BWGEMM_NUMBERS_144 ", %72, %73, %74, %75"

#define BWGEMM_WGMMA(type, columns, a, b, adds, a_mn, b_mn)                            \
  asm volatile(                                                                        \
      "{\n.reg .pred p;\nsetp.ne.b32 p, " adds ", 0;\n"                                \
      "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." type "." type            \
      " {" BWGEMM_NUMBERS_##columns "}, " a ", " b ", p, 1, 1, " a_mn ", " b_mn ";\n}" \
      : BWGEMM_RESULTS_##columns                                                       \
      : "l"(desc_a), "l"(desc_b), "r"(static_cast<int>(accumulate)),                   \
        "n"(kAKMajor ? 0 : 1), "n"(kBKMajor ? 0 : 1))
#define BWGEMM_WGMMA_OF(columns, ...)                                                  \
  if constexpr (kColumns == columns) {                                                 \
    if constexpr (std::is_same_v<In, cute::bfloat16_t>) {                              \
      BWGEMM_WGMMA("bf16", columns, __VA_ARGS__);                                      \
    } else {                                                                           \
      BWGEMM_WGMMA("f16", columns, __VA_ARGS__);                                       \
    }                                                                                  \
  }
// clang-format on

template <class In, int kColumns, bool kAKMajor, bool kBKMajor>
struct Wgmma {
  static_assert(std::is_same_v<In, cute::bfloat16_t> || std::is_same_v<In, cute::half_t>);
  // The widths that Issue() has an instruction for: it would do nothing for others.
  static constexpr bool kHasWidth = (kColumns % 16 == 0 && kColumns >= 16 && kColumns <= 256) ||
                                    kColumns == 88 || kColumns == 120 || kColumns == 136 ||
                                    kColumns == 152;
  static_assert(kHasWidth, "add the width to the lists above and below");
  static constexpr int kDepth = kMmaDepth;  // elements of K

  // D = A x B, or D += A x B. d(i): the thread's i-th result.
  template <class Results>
  __device__ static void Issue(uint64_t desc_a, uint64_t desc_b, Results&& d, bool accumulate) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    BWGEMM_WGMMA_OF(16, "%8", "%9", "%10", "%11", "%12")
    BWGEMM_WGMMA_OF(32, "%16", "%17", "%18", "%19", "%20")
    BWGEMM_WGMMA_OF(48, "%24", "%25", "%26", "%27", "%28")
    BWGEMM_WGMMA_OF(64, "%32", "%33", "%34", "%35", "%36")
    BWGEMM_WGMMA_OF(80, "%40", "%41", "%42", "%43", "%44")
    BWGEMM_WGMMA_OF(88, "%44", "%45", "%46", "%47", "%48")
    BWGEMM_WGMMA_OF(96, "%48", "%49", "%50", "%51", "%52")
    BWGEMM_WGMMA_OF(112, "%56", "%57", "%58", "%59", "%60")
    BWGEMM_WGMMA_OF(120, "%60", "%61", "%62", "%63", "%64")
    BWGEMM_WGMMA_OF(128, "%64", "%65", "%66", "%67", "%68")
    BWGEMM_WGMMA_OF(136, "%68", "%69", "%70", "%71", "%72")
    BWGEMM_WGMMA_OF(144, "%72", "%73", "%74", "%75", "%76")
    BWGEMM_WGMMA_OF(152, "%76", "%77", "%78", "%79", "%80")
    BWGEMM_WGMMA_OF(160, "%80", "%81", "%82", "%83", "%84")
    BWGEMM_WGMMA_OF(176, "%88", "%89", "%90", "%91", "%92")
    BWGEMM_WGMMA_OF(192, "%96", "%97", "%98", "%99", "%100")
    BWGEMM_WGMMA_OF(208, "%104", "%105", "%106", "%107", "%108")
    BWGEMM_WGMMA_OF(224, "%112", "%113", "%114", "%115", "%116")
    BWGEMM_WGMMA_OF(240, "%120", "%121", "%122", "%123", "%124")
    BWGEMM_WGMMA_OF(256, "%128", "%129", "%130", "%131", "%132")
#else
    CUTE_INVALID_CONTROL_PATH("compiled for another architecture");
#endif
  }
};

#undef BWGEMM_WGMMA_OF
#undef BWGEMM_WGMMA

// Ahead of the MMAs of a batch: they see the registers and shared memory as they are now.
__device__ __forceinline__ void ArriveWarpgroup() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

// Ends a batch of MMAs.
__device__ __forceinline__ void CommitBatch() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Waits until all but the last kPending batches are done.
template <int kPending>
__device__ __forceinline__ void AwaitBatches() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Keeps the compiler from moving what it does with the results across: the MMAs that write them
// are asynchronous.
template <class Results>
__device__ __forceinline__ void FenceResults(Results& results) {
  CUTE_UNROLL
  for (int i = 0; i < cute::size(results); ++i) asm volatile("" : "+f"(results(i))::"memory");
}

}  // namespace bwgemm::sm90
