// What one warpgroup multiplies with, and keeps its results in.
#pragma once

#include "cute/tensor.hpp"
#include "sm90/wgmma.h"

namespace bwgemm::sm90 {

// P (kOwnBlocks times 64 rows) x transpose(Q), accumulated in f32.
template <class In, bool kPKMajor, bool kQKMajor, int kOwnBlocks>
struct MmaTypes {
  template <bool kKMajor>
  static constexpr cute::GMMA::Major kMajor =
      kKMajor ? cute::GMMA::Major::K : cute::GMMA::Major::MN;
  // One MMA of a warpgroup, 64 x kColumns.
  template <int kColumns>
  using TiledMma =
      decltype(cute::make_tiled_mma(Wgmma<In, kColumns, kMajor<kPKMajor>, kMajor<kQKMajor>>{}));
  // A warpgroup's results: for each of its blocks of P, 64 x kColumns.
  template <int kColumns>
  using Accumulator = decltype(cute::partition_fragment_C(
      TiledMma<kColumns>{}, cute::Shape<cute::Int<kOwnBlocks * kMmaRows>, cute::Int<kColumns>>{}));
};

}  // namespace bwgemm::sm90
