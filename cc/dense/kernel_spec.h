// What one line of kernels.def says of one kernel, as a type: the parameter of every kernel here.
#pragma once

#include "dense/kernel_table.h"

namespace bwgemm {

template <DType kIn_, DType kOut_, LhsMajor kLhs_, RhsMajor kRhs_, int kTileM_, int kTileN_,
          int kTileK_, int kClusterM_, int kClusterN_, Schedule kSchedule_, bool kSwapAb_,
          bool kStreamK_>
struct KernelSpec {
  static constexpr DType kIn = kIn_, kOut = kOut_;
  static constexpr LhsMajor kLhs = kLhs_;
  static constexpr RhsMajor kRhs = kRhs_;
  static constexpr int kTileM = kTileM_, kTileN = kTileN_, kTileK = kTileK_;
  static constexpr int kClusterM = kClusterM_, kClusterN = kClusterN_;
  static constexpr Schedule kSchedule = kSchedule_;
  static constexpr bool kSwapAb = kSwapAb_, kStreamK = kStreamK_;

  static_assert(kIn != DType::kF32, "the tensor-core kernels take bf16 or f16 inputs");
  static_assert(kOut == kIn || kOut == DType::kF32, "the output is the input type or f32");

  // The row of the kernel table.
  static constexpr KernelInfo Info(const char* name, Arch arch, int stages) {
    return {name,   arch,      kIn,       kOut,      kLhs,    kRhs,     kTileM, kTileN,
            kTileK, kClusterM, kClusterN, kSchedule, kSwapAb, kStreamK, stages};
  }
};

}  // namespace bwgemm
