// The shape of one scaled SM90 kernel: that of a dense one, whose elements are of 8 bits.
#pragma once

#include <numeric>

#include "dense/sm90/config.h"
#include "scaled/kernel_spec.h"

namespace bwgemm::scaled::sm90 {

template <class Spec>
struct Config : dense::sm90::Config<Spec> {
  using Base = dense::sm90::Config<Spec>;
  static constexpr bool kPromotes = Spec::kScaleUse != ScaleUse::kSums;

  // A promoting MMA has so many rows of Q, and its sums, which are scaled and added to the results,
  // are in registers of their own.
  static constexpr int kPart = Base::kTileN == 256 ? kScaleBlock : Base::kTileN;
  static constexpr int kParts = Base::kTileN / kPart;
  // The scales of Q's rows that a thread needs for a part.
  static constexpr int kRowScales = Spec::kScaleUse == ScaleUse::kRows ? kPart / 4 : 0;
  // Two sets of sums let the MMAs of the next block of K run while a block's are promoted.
  static constexpr int kMostRegisters = 192;
  static constexpr int kSumSets =
      kParts == 1 && Base::kResults + 2 * (kPart / 2 + kRowScales) <= kMostRegisters ? 2 : 1;
  // Rows of Q that have one scale wherever the tile lies, where squares do.
  static constexpr int kChunk = std::gcd(kPart, kScaleBlock);
  static_assert(!kPromotes || (Base::kOwnBlocks == 1 && Base::kTileK == kScaleBlock));
  static_assert(kParts == 1 || Spec::kScaleUse != ScaleUse::kRows);
  static_assert(!kPromotes || kParts > 1 || kPart <= kScaleBlock + kChunk,
                "a tile has rows of two squares at most");
  static_assert(!kPromotes || Base::kResults + kSumSets * kPart / 2 <= kMostRegisters);
  static constexpr bool kMovesRegisters = Base::kMovesRegisters || (kPromotes && kPart > 64);

  using DescriptorPart = typename Base::Q::template Descriptor<kPart>;
};

struct Params : dense::sm90::Params {
  Scales p_scales, q_scales;
};

}  // namespace bwgemm::scaled::sm90
