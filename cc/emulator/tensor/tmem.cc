#include "emulator/tensor/tmem.h"

#include <algorithm>

namespace bwgemm::emulator {

std::string TmemRegion::text() const {
  return "lanes " + std::to_string(lane) + "-" + std::to_string(lane + lanes - 1) + ", columns " +
         std::to_string(column) + "-" + std::to_string(column + columns - 1);
}

TensorMemory::TensorMemory()
    : cells_(size_t{kTmemLanes} * kTmemColumns, kTmemPoison),
      written_(size_t{kTmemLanes} * kTmemColumns, 0) {}

bool TensorMemory::valid_size(uint32_t columns) {
  return columns >= 32 && columns <= kTmemColumns && (columns & (columns - 1)) == 0;
}

std::string TensorMemory::Pending::text() const {
  return std::string(name) + " of line " + std::to_string(line);
}

bool TensorMemory::is_free(int column, int columns) const {
  return std::none_of(allocations_.begin(), allocations_.end(), [&](const auto& a) {
    return column < a.column + a.columns && a.column < column + columns;
  });
}

int TensorMemory::first_fit(int columns) const {
  // Blocks are aligned to their size, so that powers of two never fragment each other.
  for (int start = 0; start + columns <= kTmemColumns; start += columns) {
    if (is_free(start, columns)) return start;
  }
  return -1;
}

void TensorMemory::allocate(int column, int columns, const void* owner) {
  allocations_.push_back({column, columns, owner});
  for (int lane = 0; lane < kTmemLanes; ++lane) {
    std::fill_n(cell(lane, column), columns, kTmemPoison);
    std::fill_n(&written_[lane * kTmemColumns + column], columns, uint8_t{0});
  }
  // What was before is over: its columns were freed.
  const TmemRegion fresh{0, kTmemLanes, column, columns};
  past_.erase(std::remove_if(past_.begin(), past_.end(),
                             [&](const Past& p) { return p.region.overlaps(fresh); }),
              past_.end());
}

std::string TensorMemory::deallocate(int column, int columns, const void* owner) {
  const auto found = std::find_if(allocations_.begin(), allocations_.end(), [&](const auto& a) {
    return a.column == column && a.columns == columns && a.owner == owner;
  });
  if (found == allocations_.end()) {
    return "columns " + std::to_string(column) + "-" + std::to_string(column + columns - 1) +
           " are not one live allocation of this CTA";
  }
  if (const Pending* access = conflict({0, kTmemLanes, column, columns}, true, false)) {
    return "tensor memory is still in use by " + access->text();
  }
  allocations_.erase(found);
  for (int lane = 0; lane < kTmemLanes; ++lane) {
    std::fill_n(cell(lane, column), columns, kTmemPoison);
  }
  return "";
}

int TensorMemory::allocated_columns(const void* owner) const {
  int total = 0;
  for (const Allocation& a : allocations_) total += a.owner == owner ? a.columns : 0;
  return total;
}

std::string TensorMemory::check(const TmemRegion& region, const void* owner) const {
  if (region.lane < 0 || region.lane + region.lanes > kTmemLanes || region.column < 0 ||
      region.column + region.columns > kTmemColumns) {
    return "tensor memory access outside 128 lanes x 512 columns: " + region.text();
  }
  // Neighbouring allocations may be used as one range.
  int column = region.column;
  const int end = region.column + region.columns;
  bool moved = true;
  while (column < end && moved) {
    moved = false;
    for (const Allocation& a : allocations_) {
      if (a.owner == owner && column >= a.column && column < a.column + a.columns) {
        column = a.column + a.columns;
        moved = true;
        break;
      }
    }
  }
  if (column >= end) return "";
  return "access to unallocated tensor memory: " + region.text() + " (column " +
         std::to_string(column) + " is not allocated)";
}

const TensorMemory::Pending* TensorMemory::conflict(const TmemRegion& region, bool writes,
                                                    bool in_pipe, bool accumulator) const {
  for (const Pending& access : pending_) {
    if (in_pipe && access.in_pipe &&
        !(accumulator && access.accumulator && !(access.region == region)))
      continue;
    if ((writes || access.writes) && access.region.overlaps(region)) return &access;
  }
  return nullptr;
}

}  // namespace bwgemm::emulator
