#include "emulator/tensor/tmem.h"

#include <algorithm>

namespace bwgemm::emulator {

std::string TmemRegion::text() const {
  return "lanes " + std::to_string(lane) + "-" + std::to_string(lane + lanes - 1) + ", columns " +
         std::to_string(column) + "-" + std::to_string(column + columns - 1);
}

TensorMemory::TensorMemory() : cells_(size_t{kTmemLanes} * kTmemColumns, kTmemPoison) {}

bool TensorMemory::valid_size(uint32_t columns) {
  return columns >= 32 && columns <= kTmemColumns && (columns & (columns - 1)) == 0;
}

int TensorMemory::first_fit(int columns) const {
  // Blocks are aligned to their size, so that powers of two never fragment each other.
  for (int start = 0; start + columns <= kTmemColumns; start += columns) {
    const bool taken = std::any_of(allocations_.begin(), allocations_.end(), [&](const auto& a) {
      return start < a.column + a.columns && a.column < start + columns;
    });
    if (!taken) return start;
  }
  return -1;
}

void TensorMemory::allocate(int column, int columns) {
  allocations_.push_back({column, columns});
  for (int lane = 0; lane < kTmemLanes; ++lane) {
    std::fill_n(cell(lane, column), columns, kTmemPoison);
  }
}

std::string TensorMemory::deallocate(int column, int columns) {
  const auto found = std::find_if(allocations_.begin(), allocations_.end(), [&](const auto& a) {
    return a.column == column && a.columns == columns;
  });
  const TmemRegion region{0, kTmemLanes, column, columns};
  if (found == allocations_.end()) {
    return "dealloc of columns " + std::to_string(column) + "-" +
           std::to_string(column + columns - 1) + ", which are not one live allocation";
  }
  if (const Pending* access = conflict(region, true)) {
    return "dealloc of tensor memory still in use by " + access->what;
  }
  allocations_.erase(found);
  for (int lane = 0; lane < kTmemLanes; ++lane) {
    std::fill_n(cell(lane, column), columns, kTmemPoison);
  }
  return "";
}

int TensorMemory::allocated_columns() const {
  int total = 0;
  for (const Allocation& a : allocations_) total += a.columns;
  return total;
}

std::string TensorMemory::check(const TmemRegion& region) const {
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
      if (column >= a.column && column < a.column + a.columns) {
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

const TensorMemory::Pending* TensorMemory::conflict(const TmemRegion& region, bool writes) const {
  for (const Pending& access : pending_) {
    if ((writes || access.writes) && access.region.overlaps(region)) return &access;
  }
  return nullptr;
}

}  // namespace bwgemm::emulator
