// What a linked epilogue reads and writes besides the product. The text that declares it for the
// epilogue's own compilation is in jax_bwgemm/epilogue/hook.py.
#pragma once

#include <cstdint>

namespace bwgemm::dense {

inline constexpr int kMaxEpilogueOperands = 8;
inline constexpr int kMaxEpilogueResults = 3;  // besides D

struct EpilogueArguments {
  const void* operands[kMaxEpilogueOperands];
  void* results[kMaxEpilogueResults];
  int32_t m, n;  // of D
  // For the launch: which of them TMA moves; -1: none. They are of D's type and shape.
  int32_t staged_operand, staged_result;
};

}  // namespace bwgemm::dense
