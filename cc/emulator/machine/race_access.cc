// Accesses: what the cells of their bytes remember, and what they are compared with.
#include <algorithm>

#include "emulator/machine/launch.h"
#include "emulator/machine/race.h"

namespace bwgemm::emulator {

inline void Races::put(Cell& cell, const Stamp& stamp, bool write, int place, const Stamp& set) {
  if (place == kNewWrite) {
    cell = Cell{stamp, {}};
    return;
  }
  if (place == kReaderSet) {
    cell.others[2] = set;
    return;
  }
  if (place == kOldest) {
    cell.others[0] = cell.others[1];
    place = 1;
    if (!ReaderSets::holds_set(cell)) cell.others[place++] = cell.others[2];
  }
  cell.others[place] = stamp;
  if (write) cell.others[place].flags |= kUpdates;
}

// A read of another lane than the last one, since all have met.
static bool joins_readers(const Warp& issuer, const Stamp& before, const Stamp& now) {
  return before.cluster == now.cluster && before.actor == now.actor &&
         before.clock >= issuer.history.together && (before.flags & now.flags & kOneLane) != 0 &&
         ((before.flags & kSeveralLanes) != 0 || lane_of(before) != lane_of(now));
}

inline void Races::put_again(const Warp& issuer, Cell& cell, const Stamp& stamp, bool write) {
  const int place = last_.place;
  const bool joins = !write && place < kOldest && joins_readers(issuer, cell.others[place], stamp);
  put(cell, stamp, write, place, last_.after.others[2]);
  if (joins) cell.others[place].flags |= kSeveralLanes;
}

inline void Races::visit_cell(Warp& issuer, Cell& cell, const Stamp& stamp, bool write,
                              const Origin& origin, Cta* memory, uint64_t at) {
  // Of cp.async's copies, which lane's it is does not show.
  if (write == last_.write && !mixed_ && issuer.history.copies.met_since(issuer.history.together)) {
    const Likeness access = likeness(stamp, last_.stamp), before = likeness(cell, last_.before);
    if (access == Likeness::kSame && before == Likeness::kSame) {
      cell = last_.after;
      return;
    }
    // Lanes that read one place: the first of them has left it like this.
    const auto read_already = [&] {
      return !write && last_.place != kOldest &&
             likeness(cell, last_.after) != Likeness::kDifferent;
    };
    if (access != Likeness::kDifferent && !last_.by_lanes &&
        (before != Likeness::kDifferent || read_already())) {
      put_again(issuer, cell, stamp, write);
      return;
    }
  }
  visit_new_cell(issuer, cell, stamp, write, origin, memory, at);
}

void Races::access(Warp& issuer, Cta& memory, uint32_t offset, uint32_t bytes, const Stamp& stamp,
                   bool write, const Origin& origin) {
  if (!on_ || bytes == 0) return;
  if (&memory != origin.cta) {
    check_started(issuer, memory, origin);
    if ((stamp.flags & kRecord) == 0) memory.history.remote[stamp.actor] = stamp;
  }
  memory.history.shadow.visit(offset, bytes, write, [&](Cell& cell, uint32_t at) {
    visit_cell(issuer, cell, stamp, write, origin, &memory, at);
  });
}

void Races::check_started(Warp& issuer, const Cta& cta, const Origin& origin) {
  WarpHistory& own = issuer.history;
  if ((own.started >> cta.rank() & 1) != 0) return;
  own.started |= 1u << cta.rank();
  const bool told = std::any_of(cta.warps().begin(), cta.warps().end(), [&](const auto& warp) {
    return own.knows.of(own.cluster, warp->history.actor, View::kTime) != 0;
  });
  if (told) return;
  launch_->report(Rule::kCtaStart, origin,
                  format("access of the shared memory of CTA rank %u, which may not have started: "
                         "nothing that it has done comes before",
                         cta.rank()));
}

void Races::access_global(Warp& issuer, uint64_t address, uint64_t bytes, const Stamp& stamp,
                          bool write, const Origin& origin) {
  if (!on_ || !watches_global_) return;
  for (uint64_t at = address; at < address + bytes;) {
    const uint64_t page = at / kPage, end = std::min(address + bytes, (page + 1) * kPage);
    page_shadow(page).visit(static_cast<uint32_t>(at % kPage), static_cast<uint32_t>(end - at),
                            write, [&](Cell& cell, uint32_t in_page) {
                              visit_cell(issuer, cell, stamp, write, origin, nullptr,
                                         page * kPage + in_page);
                            });
    at = end;
  }
}

Shadow& Races::page_shadow(uint64_t page) {
  if (page != last_page_ || last_shadow_ == nullptr) {
    last_shadow_ = &pages_[page];
    last_page_ = page;
    if (last_shadow_->empty()) last_shadow_->reset(kPage);
  }
  return *last_shadow_;
}

void Races::visit_new_cell(Warp& issuer, Cell& cell, const Stamp& stamp, bool write,
                           const Origin& origin, Cta* memory, uint64_t at) {
  const Cell before = cell;
  const uint64_t reports = reports_;
  check_cell(issuer, cell, stamp, write, origin, memory, at);
  const int place = place_of(issuer, cell, stamp, write);
  Stamp set;
  if (place == kReaderSet) {
    set = reader_sets_.with(cell, stamp, [&](const Stamp& read) {
      return knows(issuer.history.knows, read, View::kGeneric);
    });
  }
  put(cell, stamp, write, place, set);
  // The lanes of a warp share a place: that others have read, too, is not forgotten.
  if (!write && place < kOldest && joins_readers(issuer, before.others[place], stamp))
    cell.others[place].flags |= kSeveralLanes;
  const WarpHistory& own = issuer.history;
  // Plain reads do not conflict with others.
  const auto any = [&](const auto& holds) {
    const auto meets = [&](const Stamp& s) {
      return (write || (s.flags & kUpdates) != 0) && holds(s);
    };
    return holds(before.write) || meets(before.others[0]) || meets(before.others[1]) ||
           meets(before.others[2]);
  };
  if (reports != reports_ || any([&](const Stamp& s) {
        return s.actor == own.actor && s.cluster == own.cluster && s.clock >= own.together;
      }))
    return;
  last_.by_lanes = !own.lanes.empty() || any([&](const Stamp& s) { return told_by_lanes(s); });
  last_.stamp = stamp;
  last_.write = write;
  last_.place = place;
  last_.before = before;
  last_.after = cell;
}

void Races::check_cell(Warp& issuer, const Cell& cell, const Stamp& stamp, bool write,
                       const Origin& origin, Cta* memory, uint64_t at) {
  // The asynchronous proxy sees ordinary writes, and comes after them, beyond a proxy fence only.
  // Its writes may follow ordinary reads that have merely been observed.
  const bool unfenced = write && (cell.write.flags & (kOneLane | kUnfenced)) == kUnfenced;
  const bool asynchronous = (stamp.flags & (kAsyncProxy | kUnfenced)) == kAsyncProxy && !unfenced;
  const View view = !asynchronous       ? (write ? View::kGeneric : View::kWritten)
                    : memory != nullptr ? View::kAsync
                                        : View::kAsyncGlobal;
  // Which lane's store of one instruction stays is not defined, but one of them does.
  const bool at_once = write && cell.write.line == stamp.line &&
                       own_since_meeting(issuer.history, cell.write, stamp) &&
                       apart(issuer, cell.write, stamp, false);
  if (!at_once && conflicts(issuer, cell.write, stamp, !write, view))
    report(issuer, cell.write, true, stamp, write, memory, at, origin, view);
  if (copied_apart(issuer, cell.write, stamp, memory, at))
    report(issuer, cell.write, true, stamp, write, memory, at, origin, view);
  const auto check = [&](const Stamp& other) {
    const bool updates = (other.flags & kUpdates) != 0;
    const View seen = updates ? view : View::kGeneric;
    if ((write || updates) && conflicts(issuer, other, stamp, updates && !write, seen) &&
        !(updates && observed(issuer, other, stamp, memory, at)))
      report(issuer, other, updates, stamp, write, memory, at, origin, seen);
  };
  for (const Stamp& other : cell.others) check(other);
  if (ReaderSets::holds_set(cell)) {
    for (const Stamp& other : reader_sets_.of(cell)) check(other);
  }
}

int Races::place_of(const Warp& issuer, const Cell& cell, const Stamp& stamp, bool write) const {
  if (write && (stamp.flags & kStrong) == 0) return kNewWrite;
  const bool updates = write || (stamp.flags & kUpdates) != 0;  // or the read of an atomic
  for (int i = 0; i < 3; ++i) {
    const Stamp& other = cell.others[i];
    const bool same = other.actor == stamp.actor && other.cluster == stamp.cluster &&
                      ((other.flags | stamp.flags) & kRecord) == 0 &&
                      (updates || (other.flags & kUpdates) == 0);
    if ((other.cluster == 0 && other.line == 0) || same) return i;
  }
  for (int i = 0; i < 3; ++i) {
    const Stamp& other = cell.others[i];
    if (other.cluster != 0 && knows(issuer.history.knows, other, View::kGeneric) &&
        (write || (other.flags & kUpdates) == 0)) {
      return i;
    }
  }
  return write || (stamp.flags & kStrong) != 0 ? kOldest : kReaderSet;
}

}  // namespace bwgemm::emulator
