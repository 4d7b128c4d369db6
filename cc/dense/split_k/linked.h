// The second kernel of split-K with an epilogue: its parameters, and how it is launched.
#pragma once

#include <cstdint>

#include "core/epilogue_arguments.h"

namespace bwgemm::dense::split_k {

inline constexpr int kThreads = 128;  // as of the one without: dense/split_k.cu

struct LinkedParams {
  const float2* partials;  // [splits, pairs]
  void* d;
  int64_t pairs;  // of neighbouring columns: N is even
  int32_t splits;
  EpilogueArguments epilogue;
};

}  // namespace bwgemm::dense::split_k
