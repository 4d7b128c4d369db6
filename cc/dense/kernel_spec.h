// One line of kernels.def for one pair of types and majors, as a type: the parameter of every dense
// kernel.
#pragma once

#include "dense/problem.h"

namespace bwgemm::dense {

template <DType kA_, DType kB_, DType kOut_, AMajor kAMajor_, BMajor kBMajor_, int kTileM_,
          int kTileN_, int kTileK_, int kClusterM_, int kClusterN_, Schedule kSchedule_,
          bool kSwapAb_, bool kStreamK_,
          int kTerms_ = (kA_ == DType::kF32) != (kB_ == DType::kF32) ? 2 : 1,
          DType kTermType_ = DType::kBF16>
struct KernelSpec {
  static constexpr Contraction kContraction = Contraction::kDense;
  static constexpr DType kA = kA_, kB = kB_, kOut = kOut_;
  static constexpr bool kSplitsBoth = kA == DType::kF32 && kB == DType::kF32;
  // What the MMA multiplies.
  static constexpr DType kIn = kSplitsBoth ? kTermType_ : kA == DType::kF32 ? kB : kA;
  static constexpr AMajor kAMajor = kAMajor_;
  static constexpr BMajor kBMajor = kBMajor_;
  static constexpr int kTileM = kTileM_, kTileN = kTileN_, kTileK = kTileK_;
  static constexpr int kClusterM = kClusterM_, kClusterN = kClusterN_;
  static constexpr Schedule kSchedule = kSchedule_;
  static constexpr bool kSwapAb = kSwapAb_, kStreamK = kStreamK_;
  static constexpr int kTerms = kTerms_;  // that an f32 operand is split into
  static constexpr DType kTermType = kTermType_;
  // Rows are scaled so that f16 holds their terms: see sm90/split.h.
  static constexpr bool kScalesRows = kSplitsBoth && kTermType == DType::kF16;
  static constexpr bool kClampsP = true, kClampsQ = true;  // see sm90/stage.h
  // The kernel of f32's own accuracy for all values.
  using BF16Terms = KernelSpec<kA, kB, kOut, kAMajor, kBMajor, kTileM, kTileN, kTileK, kClusterM,
                               kClusterN, kSchedule, kSwapAb, kStreamK, 3>;

  static_assert(kIn == DType::kBF16 || kIn == DType::kF16, "the MMA multiplies bf16 or f16");
  static_assert(kA == kB || (kIn == DType::kBF16 && (kA == DType::kF32) != (kB == DType::kF32)),
                "operands of one type, or f32 and bf16");
  static_assert(kSplitsBoth ? kTerms == 2 || kTerms == 3 : kTerms == (kA == kB ? 1 : 2));
  static_assert(!kScalesRows || kTerms == 2);
  static_assert(kOut == kIn || kOut == DType::kF32, "the output is the input type or f32");

  // uneven_parts: see KernelInfo.
  static constexpr KernelInfo Info(const char* name, const char* f32_twin, Arch arch, int stages,
                                   bool uneven_parts) {
    KernelInfo info = InfoOf<KernelSpec>(name, arch, stages, kAlignmentBytes);
    info.term_dtype = kTermType;
    info.stream_k = kStreamK;
    info.uneven_parts = uneven_parts;
    info.f32_twin = f32_twin;
    return info;
  }
};

}  // namespace bwgemm::dense
