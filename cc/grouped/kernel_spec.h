// One line of grouped.def for one pair of types and majors, as a type: the parameter of every
// grouped kernel.
#pragma once

#include "grouped/limits.h"

namespace bwgemm::grouped {

template <Contraction kContraction_, DType kA_, DType kB_, DType kOut_, BMajor kBMajor_,
          int kTileM_, int kTileN_, int kTileK_, int kClusterM_, int kClusterN_,
          Schedule kSchedule_, bool kSwapAb_>
struct KernelSpec {
  static constexpr Contraction kContraction = kContraction_;
  static constexpr bool kKGrouped = kContraction == Contraction::kKGrouped;
  static constexpr DType kA = kA_, kB = kB_, kOut = kOut_;
  static constexpr DType kIn = kA == DType::kF32 ? kB : kA;  // what the MMA multiplies
  static constexpr int kTerms = kA == kB ? 1 : 2;            // of bf16, of an f32 operand
  static constexpr bool kScalesRows = false;
  static constexpr int kFirstStep = 1;
  static constexpr AMajor kAMajor = kKGrouped ? AMajor::kM : AMajor::kK;
  static constexpr BMajor kBMajor = kBMajor_;
  static constexpr int kTileM = kTileM_, kTileN = kTileN_, kTileK = kTileK_;
  static constexpr int kClusterM = kClusterM_, kClusterN = kClusterN_;
  static constexpr Schedule kSchedule = kSchedule_;
  static constexpr bool kSwapAb = kSwapAb_;

  static_assert(kContraction != Contraction::kDense);
  static_assert(kIn == DType::kBF16 || kIn == DType::kF16, "the MMA multiplies bf16 or f16");
  static_assert(kA == kB || (kIn == DType::kBF16 && (kA == DType::kF32) != (kB == DType::kF32)),
                "operands of one type, or f32 and bf16");
  static_assert(kOut == kIn || kOut == DType::kF32, "the output is the input type or f32");
  static_assert(!kKGrouped || kBMajor == BMajor::kN, "k-grouped has one form");
  static_assert(kTerms > 1 || (kClusterN == 1 && !(kKGrouped && kSwapAb)));

  static constexpr KernelInfo Info(const char* name, Arch arch, int stages) {
    return InfoOf<KernelSpec>(name, arch, stages, kAlignmentBytes);
  }
};

}  // namespace bwgemm::grouped
