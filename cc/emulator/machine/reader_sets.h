// Readers of a byte beyond those that its cell has room for. A set never changes: a cell with one
// more reader has another set, so that cells that look alike have alike readers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "emulator/machine/shadow.h"

namespace bwgemm::emulator {

class ReaderSets {
 public:
  // The last place of Cell::others stands for a set: no access, and a line.
  static bool holds_set(const Cell& cell) {
    return cell.others[2].cluster == 0 && cell.others[2].line != 0;
  }
  struct Readers {
    const Stamp *first, *last;
    const Stamp* begin() const { return first; }
    const Stamp* end() const { return last; }
  };
  Readers of(const Cell& cell) const {
    const Stamp& place = cell.others[2];
    const Set set = holds_set(cell) && place.line == epoch_ ? sets_[place.clock] : Set{};
    return {stamps_.data() + set.first, stamps_.data() + set.first + set.count};
  }
  // What the last place becomes with one more reader, without those that are `over`. Which of a
  // warp's lanes read is not remembered.
  template <class Over>
  Stamp with(const Cell& cell, Stamp reader, Over&& over) {
    reader.flags &= static_cast<uint16_t>(~kLaneBits);
    uint32_t count = 0;
    bool placed = false;
    const auto add = [&](const Stamp& one) {
      if (one.actor == reader.actor && one.cluster == reader.cluster) {
        if (!placed) next_[count++] = reader;
        placed = true;
      } else if (!over(one)) {
        next_[count++] = one;
      }
    };
    if (holds_set(cell)) {
      Step& step = steps_[(cell.others[2].clock * 31 + reader.actor) % kSteps];
      if (likeness(step.from, cell.others[2]) == Likeness::kSame &&
          likeness(step.reader, reader) == Likeness::kSame)
        return step.to;
      for (const Stamp& one : of(cell)) add(one);
      if (!placed) next_[count++] = reader;
      const uint32_t oldest = count > kMost ? 1 : 0;
      step = {cell.others[2], reader, place_of(next_ + oldest, count - oldest)};
      return step.to;
    }
    Stamp last = cell.others[2];
    last.flags &= static_cast<uint16_t>(~kLaneBits);
    add(last);
    if (!placed) next_[count++] = reader;
    return place_of(next_, count);
  }

 private:
  static constexpr uint32_t kMost = 32;
  static constexpr size_t kMostStamps = 1 << 21;  // of all sets: then they are forgotten
  static constexpr size_t kSteps = 64;

  struct Set {
    uint32_t first = 0, count = 0;  // in stamps_
    uint64_t hash = 0;
  };
  // The set of these readers, an old one if there is one.
  Stamp place_of(const Stamp* readers, uint32_t count) {
    if (stamps_.size() > kMostStamps) {
      ++epoch_;
      stamps_.clear();
      sets_.clear();
      std::fill(numbers_.begin(), numbers_.end(), 0);
      std::fill(steps_, steps_ + kSteps, Step{});
    }
    // Sums, so that no term waits for the one before.
    uint64_t hash = count;
    for (uint32_t i = 0; i < count; ++i) {
      uint64_t halves[2];
      std::memcpy(halves, &readers[i], sizeof halves);
      hash += (halves[0] ^ i) * 0x9E3779B97F4A7C15ull;
      hash += ((halves[1] ^ halves[0] << 32) + i) * 0xD1B54A32D192ED03ull;
    }
    hash = (hash ^ hash >> 32) * 0x9E3779B97F4A7C15ull;
    if (sets_.size() * 2 >= numbers_.size()) grow();
    size_t at = slot(hash);
    for (; numbers_[at] != 0; at = (at + 1) & (numbers_.size() - 1)) {
      const Set& set = sets_[numbers_[at] - 1];
      if (set.hash == hash && set.count == count &&
          std::memcmp(&stamps_[set.first], readers, count * sizeof(Stamp)) == 0)
        return {numbers_[at] - 1, 0, 0, 0, epoch_};
    }
    sets_.push_back({static_cast<uint32_t>(stamps_.size()), count, hash});
    stamps_.insert(stamps_.end(), readers, readers + count);
    numbers_[at] = static_cast<uint32_t>(sets_.size());
    return {numbers_[at] - 1, 0, 0, 0, epoch_};
  }
  size_t slot(uint64_t hash) const { return (hash >> 32) & (numbers_.size() - 1); }
  void grow() {
    numbers_.assign(std::max<size_t>(256, numbers_.size() * 2), 0);
    for (size_t i = 0; i < sets_.size(); ++i) {
      size_t at = slot(sets_[i].hash);
      while (numbers_[at] != 0) at = (at + 1) & (numbers_.size() - 1);
      numbers_[at] = static_cast<uint32_t>(i + 1);
    }
  }

  // The last sets that were made of others.
  struct Step {
    Stamp from, reader, to;
  };
  Step steps_[kSteps] = {};
  std::vector<Set> sets_;
  std::vector<Stamp> stamps_;
  std::vector<uint32_t> numbers_;  // one more than that of a set, near the place of its hash
  Stamp next_[kMost + 1];
  int32_t epoch_ = 1;
};

}  // namespace bwgemm::emulator
