// What one warpgroup multiplies with, and keeps its results in.
#pragma once

#include "cute/tensor_impl.hpp"
#include "sm90/descriptor.h"
#include "sm90/wgmma.h"

namespace bwgemm::sm90 {

// P (kOwnBlocks times 64 rows) x transpose(Q), accumulated in f32.
template <class In, bool kPKMajor, bool kQKMajor, int kOwnBlocks>
struct MmaTypes {
  // One MMA of a warpgroup, 64 x kColumns.
  template <int kColumns>
  using Multiply = Wgmma<In, kColumns, kPKMajor, kQKMajor>;
  // A warpgroup's results: for each of its blocks of P, 64 x kColumns. A tensor of CuTe's: with a
  // struct of our own, ptxas waits after every wgmma.
  template <int kColumns>
  using Accumulator = decltype(cute::make_tensor<float>(
      cute::Shape<cute::Int<kColumns / 2>, cute::Int<kOwnBlocks>>{}));
};

}  // namespace bwgemm::sm90
