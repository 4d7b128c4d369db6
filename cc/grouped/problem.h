// The problem of a grouped product: plain enums and structs, no device code, CUTLASS or XLA.
//
// Group g of batch element b owns the rows [start, start + size) of A, start being the sum of the
// sizes before it. Sizes live on the device: a negative one counts as 0 and the running sum stops
// at M.
//
//   m-grouped  D[b, r, :] = A[b, r, :] x B[b, g - offset]
//              for each row r of group g; zero where g - offset is not in [0, E), and for the rows
//              of no group
//   k-grouped  D[b, e] = transpose(A[b, rows of g]) x B[b, rows of g]
//              with g = e + offset; zero where that group is empty or does not exist
//
// Letters are those of the forward product: a k-grouped one contracts M and keeps K. The names of
// kernels say `rows` for m-grouped and `contract` for k-grouped.
#pragma once

#include <cstdint>
#include <string>

#include "core/kernel.h"

namespace bwgemm::grouped {

// Raster orders. horizontal ("n"): group after group. vertical ("m"): a column of tiles over all
// groups, then the next.
enum class Order { kHeuristic, kHorizontal, kVertical };

struct GroupedProblem {
  const void* a = nullptr;          // [Ba, M, K]
  const void* b = nullptr;          // m-grouped: [Bb, E, K, N] or [Bb, E, N, K]; else [Bb, M, N]
  const int32_t* sizes = nullptr;   // [Bs, G]
  const int32_t* offset = nullptr;  // [Bo]
  void* d = nullptr;                // m-grouped: [B, M, N]; k-grouped: [B, E, K, N]
  int32_t m = 0, n = 0, k = 0;
  int32_t groups = 0;   // G
  int32_t experts = 0;  // E
  int32_t batch = 1;    // B
  // m-grouped, and only with an epilogue: B is two matrices side by side, N columns each.
  bool gated = false;
  // Also only with an epilogue: each row of D has a second result behind its N columns.
  bool halves = false;
  bool a_batched = false, b_batched = false, sizes_batched = false, offset_batched = false;
  Order order = Order::kHeuristic;
  int32_t swizzle = 1;  // height of a band, in tiles; 1: no bands
  int32_t sm_count = 0;

  std::string ToString() const {
    return "[B=" + std::to_string(batch) + ", G=" + std::to_string(groups) +
           ", E=" + std::to_string(experts) + ", M=" + std::to_string(m) +
           ", N=" + std::to_string(n) + ", K=" + std::to_string(k) + "]";
  }
};

using KernelOps = bwgemm::KernelOps<GroupedProblem>;
using KernelEntry = bwgemm::KernelEntry<GroupedProblem>;

}  // namespace bwgemm::grouped
