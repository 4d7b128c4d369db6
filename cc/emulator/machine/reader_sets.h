// Readers of a byte beyond those that its cell has room for. A set never changes: a cell with one
// more reader has another set, so that cells that look alike have alike readers.
#pragma once

#include <cstdint>
#include <cstring>
#include <unordered_map>
#include <vector>

#include "emulator/machine/shadow.h"

namespace bwgemm::emulator {

class ReaderSets {
 public:
  // The last place of Cell::others stands for a set: no access, and a line.
  static bool holds_set(const Cell& cell) {
    return cell.others[2].cluster == 0 && cell.others[2].line != 0;
  }
  const std::vector<Stamp>& of(const Cell& cell) const {
    const Stamp& place = cell.others[2];
    return holds_set(cell) && place.line == epoch_ ? sets_[place.clock] : sets_[0];
  }
  // What the last place becomes with one more reader, without those that are `over`. Which of a
  // warp's lanes read is not remembered.
  template <class Over>
  Stamp with(const Cell& cell, Stamp reader, Over&& over) {
    reader.flags &= static_cast<uint16_t>(~kLaneBits);
    std::vector<Stamp>& readers = next_;
    readers.clear();
    bool placed = false;
    const auto add = [&](const Stamp& one) {
      if (one.actor == reader.actor && one.cluster == reader.cluster) {
        if (!placed) readers.push_back(reader);
        placed = true;
      } else if (!over(one)) {
        readers.push_back(one);
      }
    };
    if (holds_set(cell)) {
      Step& step = steps_[(cell.others[2].clock * 31 + reader.actor) % kSteps];
      if (likeness(step.from, cell.others[2]) == Likeness::kSame &&
          likeness(step.reader, reader) == Likeness::kSame)
        return step.to;
      for (const Stamp& one : of(cell)) add(one);
      if (!placed) readers.push_back(reader);
      if (readers.size() > kMost) readers.erase(readers.begin());
      step = {cell.others[2], reader, place_of_next()};
      return step.to;
    }
    Stamp last = cell.others[2];
    last.flags &= static_cast<uint16_t>(~kLaneBits);
    add(last);
    if (!placed) readers.push_back(reader);
    return place_of_next();
  }

 private:
  static constexpr size_t kMost = 32;
  static constexpr size_t kMostStamps = 1 << 21;  // of all sets: then they are forgotten
  static constexpr size_t kSteps = 64;

  Stamp place_of_next() {
    if (stamps_ > kMostStamps) {
      ++epoch_;
      stamps_ = 0;
      sets_.assign(1, {});
      numbers_.clear();
    }
    const size_t bytes = next_.size() * sizeof(Stamp);
    uint64_t hash = bytes;
    for (const Stamp& one : next_) {
      uint64_t halves[2];
      std::memcpy(halves, &one, sizeof one);
      hash = (hash ^ halves[0]) * 0x9E3779B97F4A7C15ull;
      hash = (hash ^ hash >> 29 ^ halves[1]) * 0xD1B54A32D192ED03ull;
    }
    uint32_t& number = numbers_[hash];
    if (sets_[number].size() != next_.size() ||
        std::memcmp(sets_[number].data(), next_.data(), bytes) != 0) {
      number = static_cast<uint32_t>(sets_.size());
      sets_.push_back(next_);
      stamps_ += next_.size();
    }
    return {number, 0, 0, 0, epoch_};
  }

  // The last sets that were made of others.
  struct Step {
    Stamp from, reader, to;
  };
  Step steps_[kSteps] = {};
  std::vector<std::vector<Stamp>> sets_{{}};
  std::unordered_map<uint64_t, uint32_t> numbers_;  // by hash; 0: none
  std::vector<Stamp> next_;
  size_t stamps_ = 0;
  int32_t epoch_ = 1;
};

}  // namespace bwgemm::emulator
