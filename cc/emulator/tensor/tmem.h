// Tensor memory: 128 lanes x 512 columns of 32-bit cells in every SM (PTX ISA 9.7.16.1), with the
// allocation rules of 9.7.16.7 and marks for asynchronous accesses that nobody has waited for yet.
#pragma once

#include <algorithm>
#include <cstdint>
#include <list>
#include <string>
#include <vector>

#include "emulator/machine/shadow.h"
#include "emulator/tensor/number_formats.h"

namespace bwgemm::emulator {

constexpr int kTmemLanes = 128;
constexpr int kTmemColumns = 512;
constexpr uint32_t kTmemPoison = 0xffbadbadu;  // a NaN as f32 and as two f16/bf16

// A tensor-memory address: lane in the upper half, column in the lower.
struct TmemAddress {
  int lane;
  int column;
  explicit TmemAddress(uint32_t bits)
      : lane(static_cast<int>(bits >> 16)), column(static_cast<int>(bits & 0xffffu)) {}
};

// A rectangle of cells.
struct TmemRegion {
  int lane = 0;
  int lanes = 0;
  int column = 0;
  int columns = 0;

  bool operator==(const TmemRegion& other) const {
    return lane == other.lane && lanes == other.lanes && column == other.column &&
           columns == other.columns;
  }
  bool covers(const TmemRegion& other) const {
    return lane <= other.lane && other.lane + other.lanes <= lane + lanes &&
           column <= other.column && other.column + other.columns <= column + columns;
  }
  bool overlaps(const TmemRegion& other) const {
    return lane < other.lane + other.lanes && other.lane < lane + lanes &&
           column < other.column + other.columns && other.column < column + columns;
  }
  std::string text() const;
};

// An element of A in tensor memory (PTX ISA 9.7.16.10.4). Elements of 4 and 6 bits of kind f8f6f4
// have a byte each: four bits in its middle, six at its low end. `tcgen05.cp` unpacks to the same.
constexpr int tmem_bits(NumberFormat format) {
  return format_bits(format) < 8 && format != NumberFormat::kE2M1Packed ? 8 : format_bits(format);
}
constexpr int tmem_shift(NumberFormat format) { return format == NumberFormat::kE2M1 ? 2 : 0; }

class TensorMemory {
 public:
  TensorMemory();

  uint32_t* cell(int lane, int column) { return &cells_[lane * kTmemColumns + column]; }

  // Allocation. `first_fit` returns the first column, or -1 when there is no room now.
  static bool valid_size(uint32_t columns);
  int first_fit(int columns) const;
  bool is_free(int column, int columns) const;
  void allocate(int column, int columns, const void* owner);
  // Empty where [column, columns) is exactly one live allocation of `owner`, which is then freed.
  std::string deallocate(int column, int columns, const void* owner);
  int allocated_columns(const void* owner) const;

  // Empty where every cell exists and is allocated by `owner`, else what is wrong.
  std::string check(const TmemRegion& region, const void* owner) const;

  // Asynchronous accesses from their issue until the kernel has waited for them.
  struct Pending {
    TmemRegion region;
    bool writes;
    bool in_pipe;      // issued to the tensor core, which keeps the order of such operations
    const char* name;  // of the instruction; static storage
    int line;
    const void* issuer;
    bool accumulator = false;  // D of an MMA: in order with those of the same place and shape alone
    std::string text() const;
  };
  using Ticket = std::list<Pending>::iterator;
  Ticket begin_access(const Pending& access) { return pending_.insert(pending_.end(), access); }
  void end_access(Ticket ticket) { pending_.erase(ticket); }
  // Accesses that a later one must be ordered after. A write makes those it covers forgotten.
  struct Past {
    TmemRegion region;
    bool writes;
    bool in_pipe;
    Stamp stamp;
    Stamp issued;  // by the warp, where in_pipe
  };
  std::vector<Past>& past() { return past_; }
  // tcgen05.wait: the loads or stores of a warp, whose clock was kInFlight, are over.
  static constexpr uint32_t kInFlight = ~uint32_t{0};
  void waited(bool writes, const Stamp& now) {
    for (Past& access : past_) {
      if (access.writes == writes && access.stamp.clock == kInFlight &&
          access.stamp.actor == now.actor && access.stamp.cluster == now.cluster)
        access.stamp.clock = now.clock;
    }
  }

  // Cells that something has written since their allocation.
  void mark_written(int lane, int column, int columns) {
    std::fill_n(&written_[lane * kTmemColumns + column], columns, uint8_t{1});
  }
  bool is_written(int lane, int column, int columns) const {
    const auto* from = &written_[lane * kTmemColumns + column];
    return std::all_of(from, from + columns, [](uint8_t w) { return w != 0; });
  }

  // The access in flight that a new access would race with, or null.
  const Pending* conflict(const TmemRegion& region, bool writes, bool in_pipe,
                          bool accumulator = false) const;

 private:
  struct Allocation {
    int column;
    int columns;
    const void* owner;
  };
  std::vector<uint32_t> cells_;
  std::vector<Allocation> allocations_;
  std::list<Pending> pending_;
  std::vector<Past> past_;
  std::vector<uint8_t> written_;
};

}  // namespace bwgemm::emulator
