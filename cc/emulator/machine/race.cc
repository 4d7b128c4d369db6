#include "emulator/machine/race.h"

#include <algorithm>
#include <cstring>

#include "emulator/machine/launch.h"

namespace bwgemm::emulator {

Races::Races(Launch& launch)
    : launch_(&launch), on_(launch.config().races), watches_global_(launch.config().threads == 1) {
  grids_.emplace_back();
  grids_.back().kernel = launch.kernel().name;
}

void Races::start(Cluster& cluster) {
  if (!on_) return;
  ClusterHistory& history = cluster.history;
  history.number = ++clusters_;
  uint16_t actor = 0;
  warps_per_cta_ = static_cast<uint32_t>(cluster.cta(0).warps().size());
  grids_.back().warps_per_cta = warps_per_cta_;
  for (uint32_t rank = 0; rank < cluster.size(); ++rank) {
    Cta& cta = cluster.cta(rank);
    cta.history.shadow.reset(cta.shared().size());
    for (auto& warp : cta.warps()) {
      warp->history.cluster = history.number;
      warp->history.actor = actor++;
      if (!at_start_.empty()) warp->history.knows.join(at_start_);
    }
  }
  history.actors = actor;
  told_.emplace_back(actor);
}

Stamp Races::queue(Cluster& cluster, Queue kind, uint32_t owner, uint32_t lane, uint32_t clock,
                   int32_t line) {
  ClusterHistory& history = cluster.history;
  const uint64_t key = uint64_t{owner} << 16 | uint64_t{lane} << 8 | static_cast<uint64_t>(kind);
  const auto [at, fresh] = history.queues.try_emplace(key, history.actors);
  if (fresh) ++history.actors;
  const uint16_t flags = kind == Queue::kCpAsync ? kAsyncProxy | kUnfenced : kAsyncProxy;
  return {clock, history.number, at->second, flags, line};
}

MbarrierHistory& Races::mbarrier(Cta& cta, uint32_t offset) {
  const auto [at, fresh] = cta.history.mbarriers.try_emplace(offset);
  if (fresh) at->second.actor = cta.cluster().history.actors++;
  return at->second;
}

Stamp Races::open(Warp& issuer, Cta& destination, Cta& barrier_cta, uint32_t barrier) {
  const Origin origin = issuer.origin();
  const int32_t line = origin.line;
  mbarrier_use(barrier_cta, barrier, origin, true);
  if (&destination != origin.cta) check_started(issuer, destination, origin);
  records_.push_back({});
  records_.back().issuer = std::make_unique<Knowledge>(issuer.history.knows);
  const uint32_t record = static_cast<uint32_t>(records_.size() - 1);
  destination.history.in_flight[record] = line;
  return {record, destination.cluster().history.number, 0, kRecord | kAsyncProxy, line};
}

void Races::close(const Stamp& record, Cta& destination, Cta& barrier_cta, uint32_t barrier) {
  if (!on_) return;
  MbarrierHistory& history = mbarrier(barrier_cta, barrier);
  Record& known = records_[record.clock];
  if (known.issuer != nullptr) history.arrived.join_time(*known.issuer);
  known = {history.phase + 1, history.actor, nullptr};
  destination.history.in_flight.erase(record.clock);
  destination.history.deliveries[history.actor] = {history.phase + 1, record.cluster, history.actor,
                                                   0, record.line};
}

bool Races::knows(const Knowledge& knowledge, const Stamp& stamp, View view) const {
  if (stamp.cluster < first_cluster_ && stamp.cluster != 0 && over(knowledge, stamp.cluster))
    return true;
  if ((stamp.flags & kRecord) == 0)
    return knowledge.of(stamp.cluster, stamp.actor, view) >= stamp.clock;
  const Record& record = records_[stamp.clock];
  return record.clock != 0 && knowledge.of(stamp.cluster, record.actor, view) >= record.clock;
}

bool Races::conflicts(const Warp& issuer, const Stamp& before, const Stamp& now, bool handed,
                      View view) const {
  if (before.cluster == 0) return false;
  const WarpHistory& history = issuer.history;
  if (own_since_meeting(issuer.history, before, now) && apart(issuer, before, now, handed) &&
      (handed || !both_volatile(before, now)))
    return true;
  if (!is_async(view) && before.actor == history.actor && before.cluster == history.cluster &&
      (before.flags & kRecord) == 0) {
    return false;  // program order
  }
  const bool mixed = mixed_ && ((before.flags | now.flags) & kAsyncProxy) == 0;
  if ((before.flags & now.flags & kStrong) != 0 && !mixed) {
    const Scope scope = std::max(scope_of(before.flags), scope_of(now.flags));
    const bool same_cluster = before.cluster == now.cluster;
    const bool same_cta =
        same_cluster && before.actor / warps_per_cta_ == now.actor / warps_per_cta_;
    if (scope == Scope::kDevice || (scope == Scope::kCluster ? same_cluster : same_cta))
      return false;
  }
  if ((before.flags & now.flags & kRecord) != 0 && before.clock == now.clock) return false;
  // A queue keeps its order, but for writes of bulk stores.
  if ((before.flags & now.flags & kAsyncProxy) != 0 && (now.flags & kRecord) == 0 &&
      (before.flags & now.flags & kBulkStore) == 0 && before.actor == now.actor &&
      before.cluster == now.cluster) {
    return false;
  }
  // Of a grid that is over, all that single lanes did is over too.
  const bool earlier = before.cluster < first_cluster_ && over(history.knows, before.cluster);
  return !knows(history.knows, before, view) || (!earlier && untold(issuer, before)) ||
         (!history.lanes.empty() && unheard(issuer, before, now, view));
}

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

inline bool Races::joins_readers(const Warp& issuer, const Stamp& before, const Stamp& now) {
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

std::string Races::describe(const Stamp& stamp) const {
  const GridHistory& grid = grids_[grid_of(stamp.cluster)];
  const std::string kernel = stamp.cluster < first_cluster_
                                 ? format(" of kernel '%s', launched before,", grid.kernel.c_str())
                                 : std::string();
  if ((stamp.flags & (kRecord | kAsyncProxy)) != 0)
    return format("the asynchronous operation of line %d%s", stamp.line, kernel.c_str());
  return format("line %d%s by warp %u of CTA rank %u of cluster %u", stamp.line, kernel.c_str(),
                stamp.actor % grid.warps_per_cta, stamp.actor / grid.warps_per_cta,
                stamp.cluster - grid.first);
}

void Races::report(Warp& issuer, const Stamp& before, bool before_writes, const Stamp& now,
                   bool now_writes, Cta* memory, uint64_t at, const Origin& origin, View view) {
  ++reports_;
  const std::string where = memory != nullptr
                                ? "shared memory " + launch_->shared_text(static_cast<uint32_t>(at))
                                : launch_->memory().describe(at);
  const char* kind = now_writes ? "write" : "read";
  const std::string other = describe(before);
  if (before.cluster < first_cluster_ && !over(issuer.history.knows, before.cluster)) {
    launch_->report(Rule::kGlobalRace, origin,
                    format("%s of %s races with the %s of %s, which may still run: no "
                           "griddepcontrol.wait comes first",
                           kind, where.c_str(), before_writes ? "write" : "read", other.c_str()));
    return;
  }
  const bool same_value = before_writes && now_writes && (now.flags & kSameValue) != 0;
  if (apart(issuer, before, now, before_writes && !now_writes) &&
      !(memory != nullptr && same_value)) {
    const int lane = lane_of(before);
    launch_->report(both_volatile(before, now) ? Rule::kLaneWait
                    : memory != nullptr        ? Rule::kSharedRace
                                               : Rule::kGlobalRace,
                    origin,
                    format("%s of %s races with the %s of %s of the same warp in line %d: no "
                           "bar.warp.sync orders them",
                           kind, where.c_str(), before_writes ? "write" : "read",
                           lane < 0 ? "all lanes" : format("lane %d", lane).c_str(), before.line));
    return;
  }
  if (before.cluster >= first_cluster_ && untold(issuer, before) &&
      knows(issuer.history.knows, before, view)) {
    launch_->report(
        Rule::kLaneRelease, origin,
        format("%s of %s after the %s of lane %d in %s, of which another lane of that warp has "
               "told without a bar.warp.sync",
               kind, where.c_str(), before_writes ? "write" : "read", lane_of(before),
               other.c_str()));
    return;
  }
  if (knows(issuer.history.knows, before, view) &&
      (unheard(issuer, before, now, view) || copied_apart(issuer, before, now, memory, at))) {
    launch_->report(Rule::kLaneWait, origin,
                    format("%s of %s after the %s of %s, %s", kind, where.c_str(),
                           before_writes ? "write" : "read", other.c_str(), kUnheard));
    return;
  }
  if (view == View::kWritten && knows(issuer.history.knows, before, View::kGeneric)) {
    launch_->report(
        Rule::kWaitScope, origin,
        format("%s of %s after the write of %s, a thread of another CTA: the wait for the "
               "mbarrier, or the arrival, has the scope of one CTA (.cta, the default), "
               "which does not make it visible",
               kind, where.c_str(), other.c_str()));
    return;
  }
  if (is_async(view) && (before.flags & kAsyncProxy) == 0 &&
      (before.actor == issuer.history.actor ||
       knows(issuer.history.knows, before, View::kGeneric))) {
    launch_->report(Rule::kProxyFence, origin,
                    format("the asynchronous proxy %s %s after the write of %s without a "
                           "fence.proxy.async in between",
                           now_writes ? "writes" : "reads", where.c_str(), other.c_str()));
    return;
  }
  constexpr uint16_t kBulk = kAsyncProxy | kBulkStore;
  const bool both_bulk = (before.flags & now.flags & kBulk) == kBulk;
  if (before_writes && now_writes && (both_bulk || (now.flags & kSameValue) != 0)) {
    if (memory != nullptr) return;  // warps that hold the same data store it: compilers do
    launch_->report(
        Rule::kSameValue, origin,
        format("%s of %s that nothing orders after the write of %s",
               both_bulk ? "bulk store" : "write of the same value", where.c_str(), other.c_str()));
    return;
  }
  if ((before.flags & kAsyncProxy) != 0) {
    launch_->report(Rule::kAsyncHazard, origin,
                    format("%s of %s, which %s %s: its completion has not been waited for", kind,
                           where.c_str(), other.c_str(), before_writes ? "writes" : "reads"));
    return;
  }
  // A loop around a compare-and-swap may begin with a plain read: a stale value only costs a turn.
  const uint16_t swap = now_writes ? now.flags : before.flags;
  const uint16_t read = now_writes ? before.flags : now.flags;
  const bool cas_read = before_writes != now_writes && (swap & kCompareAndSwap) != 0 &&
                        (read & (kStrong | kAsyncProxy)) == 0;
  launch_->report(
      cas_read                         ? Rule::kCasRead
      : (now.flags & kAsyncProxy) != 0 ? Rule::kAsyncHazard
      : memory != nullptr              ? Rule::kSharedRace
                                       : Rule::kGlobalRace,
      origin,
      format("%s of %s races with the %s of %s: no synchronisation orders them%s", kind,
             where.c_str(), before_writes ? "write" : "read", other.c_str(),
             (before.flags & now.flags & kStrong) != 0 && mixed_
                 ? ", and strong accesses of different sizes are not atomic to each other"
                 : ""));
}

// ---- Exits

void Races::exited(Warp& warp) {
  if (!on_) return;
  Cta& cta = warp.cta();
  CtaHistory& history = cta.history;
  warp.history.release();
  history.at_exit.join(warp.history.knows);
  if (!cta.exited()) return;
  const Origin origin = warp.origin();
  for (const auto& [record, line] : history.in_flight) {
    launch_->report(Rule::kCtaExit, origin,
                    format("the last warp of CTA %u exits while the asynchronous operation of line "
                           "%d writes its shared memory",
                           cta.linear(), line));
    break;
  }
  const auto check = [&](const Stamp& stamp, const char* what) {
    if (knows(history.at_exit, stamp, View::kTime)) return;
    launch_->report(Rule::kCtaExit, origin,
                    format("CTA %u may exit before %s %s: no synchronisation orders them",
                           cta.linear(), what, describe(stamp).c_str()));
  };
  for (const auto& [actor, stamp] : history.deliveries) {
    Stamp delivery = stamp;
    if (knows(history.at_exit, delivery, View::kTime)) continue;
    launch_->report(Rule::kCtaExit, origin,
                    format("CTA %u exits without having waited for the asynchronous operation of "
                           "line %d, which writes its shared memory",
                           cta.linear(), delivery.line));
  }
  for (const auto& [actor, stamp] : history.remote)
    check(stamp, "its shared memory is accessed in");
  for (const Stamp& stamp : history.copied) check(stamp, "its shared memory is read by");
}

}  // namespace bwgemm::emulator
