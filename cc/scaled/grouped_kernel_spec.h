// One line of scaled_grouped.def for one pair of types, as a type: the parameter of every grouped
// scaled kernel.
#pragma once

#include "scaled/problem.h"

namespace bwgemm::scaled {

template <Contraction kContraction_, DType kA_, DType kB_, DType kOut_, int kTileM_, int kTileN_,
          int kTileK_, int kClusterM_, int kClusterN_, Schedule kSchedule_, bool kSwapAb_,
          ScaleUse kScaleUse_>
struct GroupedKernelSpec {
  static constexpr Contraction kContraction = kContraction_;
  static constexpr bool kKGrouped = kContraction == Contraction::kKGrouped;
  static constexpr DType kA = kA_, kB = kB_, kOut = kOut_;
  static constexpr DType kIn = DType::kE4M3;  // SM100: the stages' type; the MMA is told each one's
  static constexpr AMajor kAMajor = AMajor::kK;  // the only one that FP8 wgmma reads
  static constexpr BMajor kBMajor = BMajor::kK;
  static constexpr int kTileM = kTileM_, kTileN = kTileN_, kTileK = kTileK_;
  static constexpr int kClusterM = kClusterM_, kClusterN = kClusterN_;
  static constexpr Schedule kSchedule = kSchedule_;
  // Where scales change along K, a thread reads two of P's rows for a block of K, and every fourth
  // of Q's. So P is the operand whose rows have scales, except in tiles for few rows.
  static constexpr bool kSwapAb = kSwapAb_;
  static constexpr int kTerms = 1;
  static constexpr ScaleUse kScaleUse = kScaleUse_;
  // SM90: see grouped/sm90/config.h. A row of a box is in as few sectors of L2 as it can be.
  static constexpr int kFirstStep = !kKGrouped ? 1 : kScaleUse == ScaleUse::kSums ? 32 : kTileK;

  // SM100: the one that has the machine code of all types, for which elements are bytes, and of
  // both uses of scales of blocks of k.
  using Bytes = GroupedKernelSpec<kContraction, DType::kE4M3, DType::kE4M3, kOut, kTileM, kTileN,
                                  kTileK * BitsOf(kA) / 8, kClusterM, kClusterN, kSchedule, kSwapAb,
                                  kScaleUse == ScaleUse::kRows ? ScaleUse::kBlocks : kScaleUse>;

  static_assert(kKGrouped || kContraction == Contraction::kMGrouped);
  static_assert(kA == DType::kE2M1 ? kB == kA && kScaleUse == ScaleUse::kMma
                                   : BitsOf(kA) == 8 && BitsOf(kB) == 8,
                "operands are e4m3 or e5m2, or both e2m1, whose scales an MMA reads");
  static_assert(kTileK * BitsOf(kA) / 8 == kScaleBlock && kScaleUse != ScaleUse::kNone);

  static constexpr KernelInfo Info(const char* name, Arch arch, int stages) {
    KernelInfo info = InfoOf<GroupedKernelSpec>(name, arch, stages, kAlignmentBytes);
    info.scales = kScaleUse;
    return info;
  }
};

}  // namespace bwgemm::scaled
