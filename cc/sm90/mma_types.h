// The MMA of one warpgroup and the accumulator of its results.
#pragma once

#include "cute/tensor_impl.hpp"
#include "sm90/descriptor.h"
#include "sm90/wgmma.h"
#include "sm90/wgmma_fp8.h"

namespace bwgemm::sm90 {

// P (kOwnBlocks times 64 rows) x transpose(Q), accumulated in f32.
template <class InP, class InQ, bool kPKMajor, bool kQKMajor, int kOwnBlocks>
struct MmaTypes {
  static constexpr bool kFp8 = sizeof(InP) == 1;
  static_assert(kFp8 ? kPKMajor && kQKMajor : std::is_same_v<InP, InQ>);
  // One MMA of a warpgroup, 64 x kColumns.
  template <int kColumns>
  using Multiply = std::conditional_t<kFp8, WgmmaFp8<InP, InQ, kColumns>,
                                      Wgmma<InP, kColumns, kPKMajor, kQKMajor>>;
  // A warpgroup's results: 64 x kColumns for each of its blocks of P. It is a CuTe tensor because
  // ptxas waits after every wgmma if it is a struct of our own.
  template <int kColumns>
  using Accumulator = decltype(cute::make_tensor<float>(
      cute::Shape<cute::Int<kColumns / 2>, cute::Int<kOwnBlocks>>{}));
};

}  // namespace bwgemm::sm90
