// What the grouped kernels ask of a problem, and how many tiles they have.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>

#include "core/ceil_div.h"
#include "core/status.h"
#include "grouped/problem.h"

namespace bwgemm::grouped {

// How one kernel cuts a problem into tiles.
struct TileShape {
  Contraction contraction;
  int rows;     // m-grouped: rows of A; k-grouped: columns of A, of a whole cluster
  int columns;  // of B, of a whole cluster
};

// Most rows of tiles of one batch element. m-grouped: every group, and the rows of no group, may
// leave one tile partly empty; a group without rows has no tile.
inline int64_t MostRowTiles(const GroupedProblem& p, const TileShape& tile) {
  if (tile.contraction == Contraction::kKGrouped) return CeilDiv(p.k, tile.rows) * p.experts;
  return CeilDiv(p.m, tile.rows) + std::min<int64_t>(int64_t{p.groups} + 1, p.m);
}

inline int64_t MostTiles(const GroupedProblem& p, const TileShape& tile) {
  return MostRowTiles(p, tile) * CeilDiv(p.n, tile.columns) * p.batch;
}

// The device counts tiles, and steps of 32 groups, in 32 bits.
inline Status CheckCounts(const GroupedProblem& p, const TileShape& tile) {
  constexpr int64_t kMostTiles = int64_t{1} << 30;
  const int64_t columns = CeilDiv(p.n, tile.columns) * p.batch;  // below 2^62
  if (MostRowTiles(p, tile) > kMostTiles / columns) {
    return Status::InvalidArgument(p.ToString() + " has more than 2^30 tiles");
  }
  constexpr int64_t kMostSteps = std::numeric_limits<int32_t>::max() - 64;  // rounded up to 32
  if ((int64_t{p.groups} / 32 + 1) * p.batch > kMostSteps) {
    return Status::InvalidArgument(p.ToString() + " has more than 2^31 - 65 steps of 32 groups");
  }
  return Status::Ok();
}

// For operands of 16 bits and more. in: the narrower type, whose rows TMA must be able to read.
inline Status CheckLimits(const GroupedProblem& p, const TileShape& tile, DType in) {
  const int64_t elements = kAlignmentBytes / SizeOf(in);
  if (p.k % elements != 0 || p.n % elements != 0) {
    return Status::InvalidArgument("K and N of " + p.ToString() + " must be multiples of " +
                                   std::to_string(elements));
  }
  return CheckCounts(p, tile);
}

}  // namespace bwgemm::grouped
