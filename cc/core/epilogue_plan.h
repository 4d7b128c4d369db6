// What a kernel asks the function that is linked into it: see dense/linked.h and grouped/linked.h.
#pragma once

// What the kernel does for it; constants once it is inlined. -1: nothing.
extern "C" __device__ int bwgemm_epilogue_plan(int question);

namespace bwgemm {

// Questions: which operand the kernel loads; which result besides D it stores; from kFirstRow on,
// which operands are rows in shared memory: operand + 256 * bytes of an element, in their order;
// and from kFirstSum on, which result besides D takes the sums of `summed`, in their order. Of
// grouped kernels, which move two operands and results, the second ones too; they sum one, over
// columns.
inline constexpr int kMaxRows = 4, kMaxSums = 2;
enum EpiloguePlan : int {
  kStagedOperand,
  kStagedResult,
  kFirstRow,
  kFirstSum = kFirstRow + kMaxRows,
  kSecondStagedOperand = kFirstSum + kMaxSums,
  kSecondStagedResult
};

}  // namespace bwgemm
