// Who accessed a byte last: for memory of any kind, in granules of 16 bytes that are split into
// words, halves of words or bytes where accesses are smaller.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

namespace bwgemm::emulator {

enum StampFlags : uint16_t {
  kStrong = 1,    // an atomic or strong access: does not race with another one
  kCtaScope = 2,  // a strong access whose scope is the CTA
  kRecord = 4,    // `clock` is a record of an asynchronous operation (Races::open)
  kAsyncProxy = 8,
  kSameValue = 128,  // a write that changes nothing
  kBulkStore = 256,  // with kAsyncProxy
  kVolatile = 256,   // with kStrong, in shared memory: of several lanes at once
  kCompareAndSwap = 512,
  kUpdates = 64,     // of Cell::others: a strong write
  kSplitWords = 16,  // of Cell::write: `clock` is an index into the parts
  kSplitBytes = 32,
  kSplitHalves = kSplitWords | kSplitBytes,  // of words
  kSeveralLanes = 32,  // of Cell::others: other lanes than the named one have read, too
  kClusterScope = 16,  // as kCtaScope: strong accesses are never in Cell::write
  kOneLane = 1024,     // an access of one lane: bits 11 to 15 say which
  kAllLanes = 2048,    // without kOneLane: of all lanes together
  // Without kOneLane. With kAsyncProxy: asynchronous, but of the generic proxy. Without it: a write
  // that asynchronous ones may follow without a proxy fence (tcgen05.alloc).
  kUnfenced = 4096,
};
constexpr uint16_t kLaneBits = 0xFC00;

// Of strong accesses and fences: whom they synchronise with. In the order of width.
enum class Scope : uint8_t { kDevice, kCluster, kCta };
constexpr size_t kScopes = 3;

constexpr Scope scope_named(std::string_view name) {
  return name == "cta" ? Scope::kCta : name == "cluster" ? Scope::kCluster : Scope::kDevice;
}
constexpr uint16_t strong_flags(Scope scope) {
  return scope == Scope::kCta       ? kStrong | kCtaScope
         : scope == Scope::kCluster ? kStrong | kClusterScope
                                    : kStrong;
}
constexpr Scope scope_of(uint16_t flags) {
  return (flags & kCtaScope) != 0       ? Scope::kCta
         : (flags & kClusterScope) != 0 ? Scope::kCluster
                                        : Scope::kDevice;
}

constexpr uint16_t lane_flags(int lane) { return static_cast<uint16_t>(kOneLane | lane << 11); }

// An access: when its actor made it.
struct Stamp {
  uint32_t clock = 0;
  uint32_t cluster = 0;  // 0: no access
  uint16_t actor = 0;
  uint16_t flags = 0;
  int32_t line = 0;
};

inline bool both_volatile(const Stamp& a, const Stamp& b) {
  constexpr uint16_t kBoth = kStrong | kVolatile;
  return (a.flags & b.flags & kBoth) == kBoth;
}

// No padding, and the flags in the second lowest 16 bits of the upper half: likeness().
static_assert(sizeof(Stamp) == 16 && offsetof(Stamp, flags) == 10);

// -1: not of one lane.
inline int lane_of(const Stamp& stamp) {
  return (stamp.flags & kOneLane) != 0 ? stamp.flags >> 11 : -1;
}

inline bool by_all_lanes(const Stamp& stamp) {
  return (stamp.flags & (kOneLane | kAllLanes)) == kAllLanes;
}

struct Cell {
  Stamp write;  // the last one that is not strong
  // Reads and strong writes since, of different actors. The oldest make room, but for further
  // plain reads, which a set in the last place holds (ReaderSets).
  Stamp others[3];
};

// How two stamps, or two cells of stamps, differ.
enum class Likeness : uint8_t { kSame, kOtherLanes, kDifferent };
template <class T>
Likeness likeness(const T& a, const T& b) {
  static_assert(sizeof(T) % sizeof(Stamp) == 0);
  constexpr uint64_t kLanes = uint64_t{kLaneBits | kSeveralLanes} << 16;
  uint64_t x[sizeof(T) / 8], y[sizeof(T) / 8];
  std::memcpy(x, &a, sizeof(T));
  std::memcpy(y, &b, sizeof(T));
  uint64_t whole = 0, lanes = 0;  // differences in the first halves of stamps, in the second
  for (size_t i = 0; i < sizeof(T) / 8; i += 2) {
    whole |= x[i] ^ y[i];
    lanes |= x[i + 1] ^ y[i + 1];
  }
  whole |= lanes & ~kLanes;
  return whole != 0 ? Likeness::kDifferent : lanes != 0 ? Likeness::kOtherLanes : Likeness::kSame;
}

class Shadow {
 public:
  static constexpr uint32_t kGranule = 16;

  void reset(uint32_t bytes) {
    cells_.assign((size_t{bytes} + kGranule - 1) / kGranule, Cell{});
    for (Parts& parts : parts_) parts = {};
  }
  bool empty() const { return cells_.empty(); }

  // Calls visit(cell, first byte of the cell) for cells that cover exactly the bytes. A write
  // leaves the same stamps in all of them.
  template <class Visit>
  void visit(uint32_t offset, uint32_t bytes, bool write, Visit&& visit) {
    for (uint32_t at = offset; at < offset + bytes;) {
      const uint32_t granule = at / kGranule, start = granule * kGranule;
      const uint32_t first = at - start;
      const uint32_t end = offset + bytes - start < kGranule ? offset + bytes - start : kGranule;
      at = start + end;
      Cell& cell = cells_[granule];
      const bool whole = first == 0 && end == kGranule;
      if ((cell.write.flags & kSplit) == 0 && whole) {
        visit(cell, start);
        continue;
      }
      split(&cell, first | end);
      const uint32_t level = level_of(cell), width = 4 >> level;
      Cell* parts = parts_[level].at(cell.write.clock, width);
      for (uint32_t i = first; i < end; i += width) visit(parts[i / width], start + i);
      if (whole && write) {
        parts_[level].free.push_back(cell.write.clock);
        cell = Cell(parts[0]);
      }
    }
  }

 private:
  static constexpr uint16_t kSplit = kSplitWords | kSplitBytes;
  // How far a granule is split: into words, halves of them, or bytes.
  static constexpr uint16_t kLevels[] = {kSplitWords, kSplitHalves, kSplitBytes};
  static uint32_t level_of(const Cell& cell) {
    const int split = cell.write.flags & kSplit;
    return split == kSplitWords ? 0 : split == kSplitHalves ? 1 : 2;
  }

  struct Parts {
    std::vector<Cell> cells;
    std::vector<uint32_t> free;  // granules' worth of them
    Cell* at(uint32_t index, uint32_t width) { return &cells[size_t{index} * (kGranule / width)]; }
    uint32_t take(uint32_t width) {
      if (!free.empty()) {
        const uint32_t index = free.back();
        free.pop_back();
        return index;
      }
      const size_t count = kGranule / width;
      cells.resize(cells.size() + count);
      return static_cast<uint32_t>(cells.size() / count - 1);
    }
  };
  // Far enough that parts begin or end at these offsets.
  void split(Cell* cell, uint32_t offsets) {
    const uint32_t level = offsets % 4 == 0 ? 0 : offsets % 2 == 0 ? 1 : 2;
    const bool whole = (cell->write.flags & kSplit) == 0;
    const uint32_t old = whole ? 0 : level_of(*cell);
    if (!whole && old >= level) return;
    const uint32_t width = 4 >> level, index = parts_[level].take(width);
    Cell* parts = parts_[level].at(index, width);
    const Cell* from = whole ? cell : parts_[old].at(cell->write.clock, 4 >> old);
    const uint32_t from_width = whole ? kGranule : 4 >> old;
    for (uint32_t i = 0; i < kGranule; i += width) parts[i / width] = from[i / from_width];
    if (!whole) parts_[old].free.push_back(cell->write.clock);
    cell->write = Stamp{index, 0, 0, kLevels[level], 0};
  }

  std::vector<Cell> cells_;
  Parts parts_[3];
};

}  // namespace bwgemm::emulator
