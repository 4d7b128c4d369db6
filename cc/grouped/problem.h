// The grouped-GEMM vocabulary: plain enums and structs, no CUDA, CUTLASS or XLA.
//
// Group g of batch element b owns the rows [start, start + size) of lhs, start being the sum of the
// sizes before it. Sizes live on the device: a negative one counts as 0 and the running sum stops
// at M.
//
//   rows      D[b, r, :] = lhs[b, r, :] x rhs[b, g - offset]
//             for each row r of group g; zero where g - offset is not in [0, E), and for the rows
//             of no group
//   contract  D[b, e] = transpose(lhs[b, rows of g]) x rhs[b, rows of g]
//             with g = e + offset; zero where that group is empty or does not exist
#pragma once

#include <cstdint>
#include <string>

#include "dense/problem.h"

namespace bwgemm::grouped {

enum class Kind { kRows, kContract };
enum class Order { kHeuristic, kHorizontal, kVertical };

struct GroupedProblem {
  const void* lhs = nullptr;        // [Ba, M, K]
  const void* rhs = nullptr;        // rows: [Bb, E, K, N] or [Bb, E, N, K]; contract: [Bb, M, N]
  const int32_t* sizes = nullptr;   // [Bs, G]
  const int32_t* offset = nullptr;  // [Bo]
  void* d = nullptr;                // rows: [B, M, N]; contract: [B, E, K, N]
  int32_t m = 0, n = 0, k = 0;
  int32_t groups = 0;   // G
  int32_t experts = 0;  // E
  int32_t batch = 1;    // B
  bool lhs_batched = false, rhs_batched = false, sizes_batched = false, offset_batched = false;
  Order order = Order::kHeuristic;
  int32_t swizzle = 1;  // row tiles per band; 1 = none
  int32_t sm_count = 0;

  std::string ToString() const {
    return "[B=" + std::to_string(batch) + ", G=" + std::to_string(groups) +
           ", E=" + std::to_string(experts) + ", M=" + std::to_string(m) +
           ", N=" + std::to_string(n) + ", K=" + std::to_string(k) + "]";
  }
};

inline const char* Name(Kind v) { return v == Kind::kRows ? "rows" : "contract"; }

}  // namespace bwgemm::grouped
