// What some lanes of a warp have learned from others, through an mbarrier or a flag, while the rest
// has not. Knowledge of the warp is the sum of all.
#pragma once

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

}  // namespace bwgemm::emulator
