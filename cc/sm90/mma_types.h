// What one warpgroup multiplies with, and keeps its results in.
#pragma once

#include "cute/arch/mma_sm90_gmma.hpp"
#include "cute/atom/mma_traits_sm90_gmma.hpp"
#include "cute/tensor.hpp"

namespace bwgemm::sm90 {

constexpr int kMmaRows = 64;  // of every wgmma

// P (kOwnBlocks times 64 rows) x transpose(Q), a stage kTileK deep, accumulated in f32.
template <class In, bool kPKMajor, bool kQKMajor, int kOwnBlocks, int kTileK>
struct MmaTypes {
  template <bool kKMajor>
  static constexpr cute::GMMA::Major kMajor =
      kKMajor ? cute::GMMA::Major::K : cute::GMMA::Major::MN;
  // One MMA of a warpgroup, 64 x kColumns.
  template <int kColumns>
  using TiledMma = decltype(cute::make_tiled_mma(
      cute::GMMA::ss_op_selector<
          In, In, float, cute::Shape<cute::Int<kMmaRows>, cute::Int<kColumns>, cute::Int<kTileK>>,
          kMajor<kPKMajor>, kMajor<kQKMajor>>()));
  // A warpgroup's results: for each of its blocks of P, 64 x kColumns.
  template <int kColumns>
  using Accumulator = decltype(cute::partition_fragment_C(
      TiledMma<kColumns>{}, cute::Shape<cute::Int<kOwnBlocks * kMmaRows>, cute::Int<kColumns>>{}));
};

}  // namespace bwgemm::sm90
