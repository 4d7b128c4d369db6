// What a kernel asks the function that is linked into it: see dense/linked.h and grouped/linked.h.
#pragma once

// Answers one of the questions below with the index of an operand or result, or -1 for none. A
// constant once it is inlined.
extern "C" __device__ int bwgemm_epilogue_plan(int question);

namespace bwgemm {

// Questions:
//   kStagedOperand   which operand the kernel loads
//   kStagedResult    which result besides D it stores
//   kFirstRow + i    which operand is the i-th row in shared memory: operand + 256 * bytes of an
//                    element, + kRowOfMatrix if every matrix of a batch has its own
//   kFirstSum + i    which result besides D takes the i-th sum of `summed`
//   kSecond...       the second operand that grouped kernels and dense ping-pong ones move, and the
//                    second result of grouped ones; these sum one result, over columns
//   kF16Result       not negative if D is f16
inline constexpr int kMaxRows = 4, kMaxSums = 2;
inline constexpr int kRowOfMatrix = 1 << 16;
enum EpiloguePlan : int {
  kStagedOperand,
  kStagedResult,
  kFirstRow,
  kFirstSum = kFirstRow + kMaxRows,
  kSecondStagedOperand = kFirstSum + kMaxSums,
  kSecondStagedResult,
  kF16Result
};

}  // namespace bwgemm
