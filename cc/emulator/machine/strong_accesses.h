// Strong accesses by place: whose writes a strong read has seen (observation order, PTX ISA 8.9.5),
// and of which bytes at a time they are.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "emulator/machine/shadow.h"

namespace bwgemm::emulator {

class StrongAccesses {
 public:
  // `kReduces`: a read-modify-write that keeps what it reads to itself: it sees nothing.
  enum class Kind : uint8_t { kLoad, kStore, kAtomic, kReduces };
  // `key`: Races::sync_key; `by`: of one lane. Returns whether the last strong accesses of some of
  // these bytes were of others as well, or not of all of these.
  bool note(uint64_t key, uint32_t width, const Stamp& by, Kind kind) {
    const bool sees = kind == Kind::kLoad || kind == Kind::kAtomic;
    bool mixed = false;
    Location& here = location(key, width, &mixed);
    Actor& actor = actor_of(here, by);
    if (sees) {
      Seen& last = actor.seen[0];
      if (last.by.clock != by.clock || last.by.line != by.line || last.first != here.first) {
        actor.seen[1] = last;
        last = {by, 0, here.first, here.next};
      }
      last.lanes |= 1u << lane_of(by);
      last.end = here.next;
    }
    if (kind != Kind::kLoad) {
      if (kind == Kind::kStore) here.first = here.next;
      actor.clock = by.clock;
      actor.write = here.next++;
      actor.writes = true;
    }
    return mixed;
  }

  // Whether known(stamp, lanes) of a read that has seen this write, at the place of this byte.
  template <class Known>
  bool observed(uint64_t key, const Stamp& write, Known&& known) const {
    const Location* here = find(key);
    if (here == nullptr) return false;
    const auto writer =
        std::find_if(here->actors.begin(), here->actors.end(), [&](const Actor& actor) {
          return actor.actor == write.actor && actor.cluster == write.cluster && actor.writes;
        });
    uint32_t index;
    if (writer != here->actors.end()) {
      if (writer->clock != write.clock) return false;
      index = writer->write;
    } else if (here->forgotten != 0) {
      index = here->forgotten - 1;
    } else {
      return false;
    }
    for (const Actor& actor : here->actors) {
      for (const Seen& seen : actor.seen) {
        if (seen.by.cluster != 0 && seen.first <= index && index < seen.end &&
            known(seen.by, seen.lanes))
          return true;
      }
    }
    return false;
  }

 private:
  // Reads of one instruction by these lanes, which have seen the writes from `first` on to before
  // `end`.
  struct Seen {
    Stamp by;
    uint32_t lanes = 0;
    uint32_t first = 0, end = 0;
  };
  struct Actor {
    uint32_t cluster = 0, clock = 0;  // clock: of its last write
    uint16_t actor = 0;
    bool writes = false;
    uint32_t write = 0;  // the number of its last write
    Seen seen[2];        // its last reads
    uint32_t last() const { return std::max(writes ? write + 1 : 0, seen[0].end); }
  };
  struct Location {
    uint32_t offset = 0, width = 0;
    // Numbers of the writes that the present value comes from: the last store and the
    // read-modify-writes since.
    uint32_t first = 0, next = 0;
    uint32_t forgotten = 0;  // writes of actors that have made room for others are before this
    std::vector<Actor> actors;
  };
  using Granule = std::vector<Location>;  // of bytes that do not overlap
  static constexpr uint64_t kGranule = Shadow::kGranule;
  static constexpr size_t kMostActors = 8, kMostGranules = 1 << 15;

  Granule& granule(uint64_t key) {
    if (last_ != nullptr && key == last_key_) return *last_;
    last_key_ = key;
    const auto at = recent_.find(key);
    if (at != recent_.end()) return *(last_ = &at->second);
    if (recent_.size() >= kMostGranules) {
      older_ = std::move(recent_);
      recent_.clear();
    }
    Granule& fresh = recent_[key];
    const auto old = older_.find(key);
    if (old != older_.end()) fresh = std::move(old->second);
    return *(last_ = &fresh);
  }
  Location& location(uint64_t key, uint32_t width, bool* mixed) {
    Granule& all = granule(key / kGranule);
    const uint32_t offset = static_cast<uint32_t>(key % kGranule);
    for (size_t i = 0; i < all.size();) {
      if (all[i].offset == offset && all[i].width == width) return all[i];
      if (all[i].offset < offset + width && offset < all[i].offset + all[i].width) {
        *mixed = true;
        all[i] = std::move(all.back());
        all.pop_back();
      } else {
        ++i;
      }
    }
    all.emplace_back();
    all.back().offset = offset;
    all.back().width = width;
    return all.back();
  }
  const Location* find(uint64_t key) const {
    for (const auto* part : {&recent_, &older_}) {
      const auto at = part->find(key / kGranule);
      if (at == part->end()) continue;
      for (const Location& one : at->second) {
        if (key % kGranule - one.offset < one.width) return &one;
      }
      return nullptr;
    }
    return nullptr;
  }
  static Actor& actor_of(Location& here, const Stamp& by) {
    for (Actor& actor : here.actors) {
      if (actor.actor == by.actor && actor.cluster == by.cluster) return actor;
    }
    if (here.actors.size() == kMostActors) {
      const auto oldest =
          std::min_element(here.actors.begin(), here.actors.end(),
                           [](const Actor& a, const Actor& b) { return a.last() < b.last(); });
      if (oldest->writes) here.forgotten = std::max(here.forgotten, oldest->write + 1);
      *oldest = Actor{};
      oldest->cluster = by.cluster;
      oldest->actor = by.actor;
      return *oldest;
    }
    here.actors.emplace_back();
    here.actors.back().cluster = by.cluster;
    here.actors.back().actor = by.actor;
    return here.actors.back();
  }

  // Places that have not been accessed for long are forgotten.
  std::unordered_map<uint64_t, Granule> recent_, older_;
  uint64_t last_key_ = 0;
  Granule* last_ = nullptr;  // of last_key_, in recent_
};

}  // namespace bwgemm::emulator
