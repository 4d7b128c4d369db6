// What some lanes of a warp have learned from others, through an mbarrier or a flag, while the rest
// has not. Knowledge of the warp is the sum of all.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "emulator/machine/knowledge.h"

namespace bwgemm::emulator {

class LaneKnowledge {
 public:
  // All lanes know the same.
  bool empty() const { return !apart_; }
  void meet() {
    if (!apart_) return;
    apart_ = false;
    some_.clear();
  }
  // These lanes have met, not all.
  void meet(uint32_t lanes) {
    for (Told& told : some_) {
      if ((told.lanes & lanes) != 0) told.lanes |= lanes;
    }
  }
  // These lanes have been told. `before`: what the warp knew.
  void learn(uint32_t lanes, const Knowledge& told, const Knowledge& before) {
    of(lanes, before).join(told);
  }
  void learn(uint32_t lanes, uint32_t cluster, uint32_t actor, uint32_t clock,
             const Knowledge& before) {
    of(lanes, before).learn(cluster, actor, clock);
  }
  void fence_proxy(View view) {
    if (!apart_) return;
    all_.fence_proxy(view);
    for (Told& told : some_) told.knows.fence_proxy(view);
  }
  // Does each of these lanes know what `known` asks for?
  template <class Known>
  bool known(uint32_t lanes, Known&& known) const {
    if (known(all_)) return true;
    for (const Told& told : some_) {
      if ((lanes & told.lanes) != 0 && known(told.knows)) lanes &= ~told.lanes;
    }
    return lanes == 0;
  }

 private:
  struct Told {
    uint32_t lanes;
    Knowledge knows;
  };
  Knowledge& of(uint32_t lanes, const Knowledge& before) {
    if (!apart_) {
      apart_ = true;
      all_ = before;
    }
    for (Told& told : some_) {
      if (told.lanes == lanes) return told.knows;
    }
    some_.push_back({lanes, {}});
    return some_.back().knows;
  }

  bool apart_ = false;
  Knowledge all_;  // when the first of them learned something alone
  std::vector<Told> some_;
};

// Copies of cp.async of one warp, numbered by instruction. A lane that waits for them waits for its
// own: those of others are over for it when the lanes have met since.
class LaneCopies {
 public:
  struct Copy {
    uint32_t number, offset;
    uint8_t bytes, lane;
  };
  void add(uint16_t actor, const Copy& copy) {
    actor_ = actor;
    if (copies_.size() == kMost) copies_.erase(copies_.begin(), copies_.begin() + kMost / 2);
    copies_.push_back(copy);
  }
  // They wait for those up to this one, at this clock of the warp.
  void wait(uint32_t number, uint32_t clock, uint32_t together) {
    if (met_since(together)) met_ = waited_;
    waited_ = number;
    at_ = clock;
    copies_.erase(std::remove_if(copies_.begin(), copies_.end(),
                                 [&](const Copy& copy) { return copy.number <= met_; }),
                  copies_.end());
  }
  // All lanes, which have met at this clock, or two of them.
  bool met_since(uint32_t together) const { return at_ < together; }
  // The one that has written this byte, if its lane alone has waited for it: of several that have
  // written the same, this lane's.
  const Copy* find(uint16_t actor, uint32_t number, uint32_t byte, int lane) const {
    if (actor != actor_ || number <= met_ || number > waited_) return nullptr;
    const Copy* found = nullptr;
    for (const Copy& copy : copies_) {
      if (copy.number != number || byte - copy.offset >= copy.bytes) continue;
      if (copy.lane == lane) return &copy;
      if (found == nullptr) found = &copy;
    }
    return found;
  }

 private:
  static constexpr size_t kMost = 2048;  // older ones are taken for known
  std::vector<Copy> copies_;             // those after met_
  uint32_t met_ = 0, waited_ = 0;        // up to which the lanes have met since a wait; have waited
  uint32_t at_ = 0;                      // the clock of the last wait
  uint16_t actor_ = 0;                   // of the copies
};

}  // namespace bwgemm::emulator
