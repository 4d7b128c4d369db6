// Programmatic dependent launch: grids that may run side by side with those launched before.
#include "emulator/machine/launch.h"
#include "emulator/machine/race.h"

namespace bwgemm::emulator {

void Races::follow(Races&& before) {
  Launch* const launch = launch_;
  GridHistory grid = std::move(grids_.back());
  *this = std::move(before);
  launch_ = launch;
  last_ = {};
  last_shadow_ = nullptr;
  first_cluster_ = grid.first = clusters_ + 1;
  at_start_.clear();
  const size_t last = grids_.size() - 1;
  if (grids_[last].waited_first && last > 0) add_grid(&at_start_, last - 1);
  grids_.push_back(std::move(grid));
}

void Races::wait_for_grids(Warp& warp) {
  if (!on_) return;
  GridHistory& own = grids_.back();
  own.waited = true;
  own.waited_first |= (warp.executing() & ~warp.history.triggered) != 0;
  if (grids_.size() == 1) return;
  Knowledge told;
  add_grid(&told, grids_.size() - 2);
  learn(warp, told, Tells::kAll);
}

void Races::add_grid(Knowledge* told, size_t grid) const {
  told->learn(kGrids, static_cast<uint32_t>(grid), 1);
  while (grid > 0 && grids_[grid].waited) told->learn(kGrids, static_cast<uint32_t>(--grid), 1);
}

size_t Races::grid_of(uint32_t cluster) const {
  size_t grid = grids_.size() - 1;
  while (grids_[grid].first > cluster) --grid;
  return grid;
}

bool Races::over(const Knowledge& knowledge, uint32_t cluster) const {
  return knowledge.of(kGrids, static_cast<uint32_t>(grid_of(cluster)), View::kTime) != 0;
}

}  // namespace bwgemm::emulator
