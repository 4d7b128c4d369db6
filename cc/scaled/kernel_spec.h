// One line of scaled.def for one pair of types, as a type: the parameter of every scaled kernel.
#pragma once

#include "scaled/problem.h"

namespace bwgemm::scaled {

template <DType kA_, DType kB_, DType kOut_, int kTileM_, int kTileN_, int kTileK_, int kClusterM_,
          int kClusterN_, Schedule kSchedule_, bool kSwapAb_, ScaleUse kScaleUse_>
struct KernelSpec {
  static constexpr Contraction kContraction = Contraction::kScaled;
  static constexpr DType kA = kA_, kB = kB_, kOut = kOut_;
  static constexpr AMajor kAMajor = AMajor::kK;  // the only one that SM90 reads
  static constexpr BMajor kBMajor = BMajor::kK;
  static constexpr int kTileM = kTileM_, kTileN = kTileN_, kTileK = kTileK_;
  static constexpr int kClusterM = kClusterM_, kClusterN = kClusterN_;
  static constexpr Schedule kSchedule = kSchedule_;
  static constexpr bool kSwapAb = kSwapAb_, kStreamK = false;
  // Q's boxes are not moved where the scale of a row follows from its place in the tile (square
  // blocks), or where a chunk of 64 columns, which is stored as one, lies in two boxes.
  static constexpr bool kClampsP = true, kClampsQ = kScaleUse_ != ScaleUse::kBlocks &&
                                                    (kSwapAb_ || kTileN_ % 64 == 0);
  static constexpr bool kSplitsBoth = false;  // no operand is f32
  static constexpr int kTerms = 1;
  static constexpr DType kTermType = DType::kBF16;
  static constexpr bool kScalesRows = false;
  static constexpr ScaleUse kScaleUse = kScaleUse_;

  static_assert(kA == DType::kE2M1 ? kB == kA && kScaleUse == ScaleUse::kMma
                                   : BitsOf(kA) == 8 && BitsOf(kB) == 8,
                "operands are e4m3 or e5m2, or both e2m1, whose scales an MMA reads");
  static_assert(kTileK % kScaleBlock == 0 && kScaleUse != ScaleUse::kNone);

  // uneven_parts: see KernelInfo.
  static constexpr KernelInfo Info(const char* name, const char* f32_twin, Arch arch, int stages,
                                   bool uneven_parts) {
    KernelInfo info = InfoOf<KernelSpec>(name, arch, stages, kAlignmentBytes);
    info.scales = kScaleUse;
    info.uneven_parts = uneven_parts;
    info.f32_twin = f32_twin;
    return info;
  }
};

}  // namespace bwgemm::scaled
