// The shape of one scaled SM90 kernel: that of a dense one, whose elements are of 8 bits.
#pragma once

#include "dense/sm90/config.h"
#include "scaled/kernel_spec.h"

namespace bwgemm::scaled::sm90 {

template <class Spec>
struct Config : dense::sm90::Config<Spec> {
  using Base = dense::sm90::Config<Spec>;
  static constexpr bool kPromotes = Spec::kScaleUse != ScaleUse::kSums;
  // Promoting kernels multiply with so many rows of Q at a time: their results wait in registers of
  // their own for the sums of earlier blocks of K, and Q's scales may change every 128 rows.
  static constexpr int kPart = Base::kTileN < kScaleBlock ? Base::kTileN : kScaleBlock;
  static constexpr int kParts = Base::kTileN / kPart;
  static_assert(Base::kTileN % kPart == 0);
  static_assert(!kPromotes || (!Base::kPingpong && Base::kOwnBlocks == 1));
  static_assert(!kPromotes || Base::kResults + kPart / 2 <= 192);
  static constexpr bool kMovesRegisters = Base::kMovesRegisters || (kPromotes && kPart > 64);

  using DescriptorPart = typename Base::Q::template Descriptor<kPart>;
};

struct Params : dense::sm90::Params {
  Scales p_scales, q_scales;
};

}  // namespace bwgemm::scaled::sm90
