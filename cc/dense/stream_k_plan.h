// How a stream-K launch divides tiles along K: plain host code.
//
// Where whole tiles would leave most CTAs idle in the last wave, CTAs share tiles: the tiles of the
// first waves are laid end to end along K and cut into equal units, one for each cluster; whole
// tiles follow. The division is that of jax_bwgemm/dense/stream_k.py, which the cost model reads.
#pragma once

#include <algorithm>
#include <cstdint>

#include "dense/problem.h"

namespace bwgemm::dense {

// In clusters: a cluster's CTAs have the same steps of neighbouring tiles.
struct StreamKPlan {
  int32_t tiles;             // all
  int32_t steps;             // along K of a tile
  int32_t splits = 1;        // equal parts of every tile that is not shared
  int32_t shared_tiles = 0;  // the first in order, laid end to end
  int32_t shared_units = 0;  // that these are cut into
  int32_t groups = 1;        // of units: unit u is in group u % groups, which has its own tiles
};

// No piece of a tile is shorter: its sums cost a round trip through L2.
inline constexpr int kMinPieceSteps = 8;
inline constexpr int kMaxUnitGroups = 8;

// The most groups that divide the units, and the tiles if any does, and leave long pieces.
inline int UnitGroups(int tiles, int units, int steps, int rows) {
  int found = 1;
  for (int groups = std::min(rows, kMaxUnitGroups); groups > 1; --groups) {
    if (units % groups != 0) continue;
    if (static_cast<int64_t>(tiles / groups) * steps / (units / groups) < kMinPieceSteps) continue;
    if (tiles % groups == 0) return groups;
    if (found == 1) found = groups;
  }
  return found;
}

// clusters: that run at the same time. rows: clusters along the dimension that the order of tiles
// runs along.
inline StreamKPlan PlanStreamK(const GemmProblem& p, int tiles, int clusters, int steps, int rows) {
  StreamKPlan plan{tiles, steps};
  if (p.splits > 1 || p.decomposition == Decomposition::kSplitK ||
      p.decomposition == Decomposition::kDataParallel) {
    plan.splits = std::min({p.splits, p.sm_count, steps});
    return plan;
  }
  const int last_wave = tiles % clusters;
  const bool by_itself = p.decomposition == Decomposition::kHeuristic;
  if (last_wave == 0 || steps <= kMinPieceSteps || (by_itself && 2 * last_wave >= clusters)) {
    return plan;
  }
  // One whole wave is shared together with the last one: alone, that is too little for all CTAs.
  const int shared = tiles - std::max(0, tiles / clusters - 1) * clusters;
  const int64_t most = static_cast<int64_t>(steps) * shared / kMinPieceSteps;
  const int units = static_cast<int>(std::min<int64_t>(clusters, most));
  if (units == 0) return plan;
  if (by_itself && shared < units && units % shared == 0) {
    plan.splits = units / shared;
    return plan;
  }
  plan.shared_tiles = shared;
  plan.shared_units = units;
  plan.groups = UnitGroups(shared, units, steps, rows);
  return plan;
}

}  // namespace bwgemm::dense
