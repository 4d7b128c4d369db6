#include "emulator/machine/race.h"

#include <algorithm>
#include <cstring>

#include "emulator/machine/launch.h"

namespace bwgemm::emulator {

Races::Races(Launch& launch)
    : launch_(launch), on_(launch.config().races), watches_global_(launch.config().threads == 1) {}

void Races::start(Cluster& cluster) {
  if (!on_) return;
  ClusterHistory& history = cluster.history;
  history.number = ++clusters_;
  uint16_t actor = 0;
  warps_per_cta_ = static_cast<uint32_t>(cluster.cta(0).warps().size());
  for (uint32_t rank = 0; rank < cluster.size(); ++rank) {
    Cta& cta = cluster.cta(rank);
    cta.history.shadow.reset(cta.shared().size());
    for (auto& warp : cta.warps()) {
      warp->history.cluster = history.number;
      warp->history.actor = actor++;
    }
  }
  history.actors = actor;
}

Stamp Races::queue(Cluster& cluster, Queue kind, uint32_t owner, uint32_t lane, uint32_t clock,
                   int32_t line) {
  ClusterHistory& history = cluster.history;
  const uint64_t key = uint64_t{owner} << 16 | uint64_t{lane} << 8 | static_cast<uint64_t>(kind);
  const auto [at, fresh] = history.queues.try_emplace(key, history.actors);
  if (fresh) ++history.actors;
  return {clock, history.number, at->second, kAsyncProxy, line};
}

MbarrierHistory& Races::mbarrier(Cta& cta, uint32_t offset) {
  const auto [at, fresh] = cta.history.mbarriers.try_emplace(offset);
  if (fresh) at->second.actor = cta.cluster().history.actors++;
  return at->second;
}

Stamp Races::open(Warp& issuer, Cta& destination, int32_t line) {
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
  if ((stamp.flags & kRecord) == 0)
    return knowledge.of(stamp.cluster, stamp.actor, view) >= stamp.clock;
  const Record& record = records_[stamp.clock];
  return record.clock != 0 && knowledge.of(stamp.cluster, record.actor, view) >= record.clock;
}

bool Races::conflicts(const Warp& issuer, const Stamp& before, const Stamp& now, View view) const {
  if (before.cluster == 0) return false;
  const WarpHistory& history = issuer.history;
  if (apart(issuer, before, now)) return true;
  if (view != View::kAsync && before.actor == history.actor && before.cluster == history.cluster &&
      (before.flags & kRecord) == 0) {
    return false;  // program order
  }
  if ((before.flags & now.flags & kStrong) != 0) {
    const bool narrow = ((before.flags | now.flags) & kCtaScope) != 0;
    const bool same_cta = before.cluster == now.cluster &&
                          before.actor / warps_per_cta_ == now.actor / warps_per_cta_;
    if (!narrow || same_cta) return false;
  }
  if ((before.flags & now.flags & kRecord) != 0 && before.clock == now.clock) return false;
  if ((before.flags & now.flags & kAsyncProxy) != 0 && (now.flags & kRecord) == 0 &&
      before.actor == now.actor && before.cluster == now.cluster) {
    return false;  // a queue keeps its order
  }
  return !knows(history.knows, before, view);
}

bool Races::apart(const Warp& issuer, const Stamp& before, const Stamp& now) const {
  const WarpHistory& history = issuer.history;
  if (before.actor != history.actor || before.cluster != history.cluster ||
      (before.flags & (kRecord | kOneLane)) != kOneLane || before.clock < history.together ||
      (before.flags & now.flags & kStrong) != 0) {
    return false;
  }
  const uint32_t lanes = issuer.executing();
  const bool alone = (lanes & (lanes - 1)) == 0;
  const int lane = (now.flags & kOneLane) != 0 ? lane_of(now) : alone ? first_lane(lanes) : -1;
  return lane >= 0 && lane != lane_of(before);
}

void Races::meet_through(Warp& warp, const Knowledge& told) const {
  WarpHistory& history = warp.history;
  const uint32_t known = told.of(history.cluster, history.actor, View::kGeneric);
  if (known >= history.together) history.together = known + 1;
}

void Races::access(Warp& issuer, Cta& memory, uint32_t offset, uint32_t bytes, const Stamp& stamp,
                   bool write, const Origin& origin) {
  if (!on_ || bytes == 0) return;
  if (&memory != origin.cta && (stamp.flags & kRecord) == 0)
    memory.history.remote[stamp.actor] = stamp;
  memory.history.shadow.visit(offset, bytes, write, [&](Cell& cell, uint32_t at) {
    visit_cell(issuer, cell, stamp, write, origin, &memory, at);
  });
}

void Races::access_global(Warp& issuer, uint64_t address, uint64_t bytes, const Stamp& stamp,
                          bool write, const Origin& origin) {
  if (!on_ || !watches_global_) return;
  for (uint64_t at = address; at < address + bytes;) {
    const uint64_t page = at / kPage, end = std::min(address + bytes, (page + 1) * kPage);
    if (page != last_page_ || last_shadow_ == nullptr) {
      last_shadow_ = &pages_[page];
      last_page_ = page;
      if (last_shadow_->empty()) last_shadow_->reset(kPage);
    }
    last_shadow_->visit(static_cast<uint32_t>(at % kPage), static_cast<uint32_t>(end - at), write,
                        [&](Cell& cell, uint32_t in_page) {
                          visit_cell(issuer, cell, stamp, write, origin, nullptr,
                                     page * kPage + in_page);
                        });
    at = end;
  }
}

void Races::visit_cell(Warp& issuer, Cell& cell, const Stamp& stamp, bool write,
                       const Origin& origin, Cta* memory, uint64_t at) {
  if (write == last_.write && std::memcmp(&stamp, &last_.stamp, sizeof stamp) == 0 &&
      std::memcmp(&cell, &last_.before, sizeof cell) == 0) {
    cell = last_.after;
    return;
  }
  if (write == last_.write && alike(stamp, last_.stamp) && alike(cell.write, last_.before.write) &&
      alike(cell.others[0], last_.before.others[0]) &&
      alike(cell.others[1], last_.before.others[1]) &&
      alike(cell.others[2], last_.before.others[2])) {
    update_cell(issuer, cell, stamp, write);
    return;
  }
  const Cell before = cell;
  const uint64_t reports = reports_;
  check_cell(issuer, cell, stamp, write, origin, memory, at);
  update_cell(issuer, cell, stamp, write);
  const WarpHistory& own = issuer.history;
  const auto recent = [&](const Stamp& s) {
    return s.actor == own.actor && s.cluster == own.cluster && s.clock >= own.together;
  };
  if (reports != reports_ || recent(before.write) || recent(before.others[0]) ||
      recent(before.others[1]) || recent(before.others[2])) {
    return;
  }
  last_.stamp = stamp;
  last_.write = write;
  last_.before = before;
  last_.after = cell;
}

void Races::check_cell(Warp& issuer, const Cell& cell, const Stamp& stamp, bool write,
                       const Origin& origin, Cta* memory, uint64_t at) {
  // The asynchronous proxy sees ordinary writes beyond a proxy fence only. Its own writes may
  // follow what has merely been observed.
  const View view = (stamp.flags & kAsyncProxy) != 0 && !write ? View::kAsync : View::kGeneric;
  // Which lane's store of one instruction stays is not defined, but one of them does.
  const bool at_once = write && cell.write.line == stamp.line && apart(issuer, cell.write, stamp);
  if (!at_once && conflicts(issuer, cell.write, stamp, view))
    report(issuer, cell.write, true, stamp, write, memory, at, origin, view);
  for (const Stamp& other : cell.others) {
    const bool updates = (other.flags & kUpdates) != 0;
    const View seen = updates ? view : View::kGeneric;
    if ((write || updates) && conflicts(issuer, other, stamp, seen))
      report(issuer, other, updates, stamp, write, memory, at, origin, seen);
  }
}

void Races::update_cell(const Warp& issuer, Cell& cell, const Stamp& stamp, bool write) const {
  if (write && (stamp.flags & kStrong) == 0) {
    cell = Cell{};
    cell.write = stamp;
    return;
  }
  Stamp* place = nullptr;
  for (Stamp& other : cell.others) {
    const bool same = other.actor == stamp.actor && other.cluster == stamp.cluster &&
                      ((other.flags | stamp.flags) & kRecord) == 0 &&
                      (write || (other.flags & kUpdates) == 0);
    if (other.cluster != 0 && !same) continue;
    place = &other;
    break;
  }
  for (Stamp& other : cell.others) {
    if (place == nullptr && knows(issuer.history.knows, other, View::kGeneric) &&
        (write || (other.flags & kUpdates) == 0)) {
      place = &other;
    }
  }
  if (place == nullptr) {
    cell.others[0] = cell.others[1];
    cell.others[1] = cell.others[2];
    place = &cell.others[2];
  }
  *place = stamp;
  if (write) place->flags |= kUpdates;
}

std::string Races::describe(const Stamp& stamp) const {
  if ((stamp.flags & (kRecord | kAsyncProxy)) != 0)
    return format("the asynchronous operation of line %d", stamp.line);
  return format("line %d by warp %u of CTA rank %u of cluster %u", stamp.line,
                stamp.actor % warps_per_cta_, stamp.actor / warps_per_cta_, stamp.cluster - 1);
}

void Races::report(Warp& issuer, const Stamp& before, bool before_writes, const Stamp& now,
                   bool now_writes, Cta* memory, uint64_t at, const Origin& origin, View view) {
  ++reports_;
  const std::string where = memory != nullptr
                                ? "shared memory " + launch_.shared_text(static_cast<uint32_t>(at))
                                : launch_.memory().describe(at);
  const char* kind = now_writes ? "write" : "read";
  const std::string other = describe(before);
  const bool same_value = before_writes && now_writes && (now.flags & kSameValue) != 0;
  if (apart(issuer, before, now) && !(memory != nullptr && same_value)) {
    launch_.report(memory != nullptr ? Rule::kSharedRace : Rule::kGlobalRace, origin,
                   format("%s of %s races with the %s of lane %d of the same warp in line %d: no "
                          "bar.warp.sync orders them",
                          kind, where.c_str(), before_writes ? "write" : "read", lane_of(before),
                          before.line));
    return;
  }
  if (view == View::kAsync && (before.flags & kAsyncProxy) == 0 &&
      (before.actor == issuer.history.actor ||
       knows(issuer.history.knows, before, View::kGeneric))) {
    launch_.report(Rule::kProxyFence, origin,
                   format("the asynchronous proxy reads %s after the write of %s without a "
                          "fence.proxy.async in between",
                          where.c_str(), other.c_str()));
    return;
  }
  const bool both_bulk = (before.flags & now.flags & kBulkStore) != 0;
  if (before_writes && now_writes && (both_bulk || (now.flags & kSameValue) != 0)) {
    if (memory != nullptr) return;  // warps that hold the same data store it: compilers do
    launch_.report(
        Rule::kSameValue, origin,
        format("%s of %s that nothing orders after the write of %s",
               both_bulk ? "bulk store" : "write of the same value", where.c_str(), other.c_str()));
    return;
  }
  if ((before.flags & kAsyncProxy) != 0) {
    launch_.report(Rule::kAsyncHazard, origin,
                   format("%s of %s, which %s %s: its completion has not been waited for", kind,
                          where.c_str(), other.c_str(), before_writes ? "writes" : "reads"));
    return;
  }
  // A loop around a compare-and-swap may begin with a plain read: a stale value only costs a turn.
  const uint16_t swap = now_writes ? now.flags : before.flags;
  const uint16_t read = now_writes ? before.flags : now.flags;
  const bool cas_read = before_writes != now_writes && (swap & kCompareAndSwap) != 0 &&
                        (read & (kStrong | kAsyncProxy)) == 0;
  launch_.report(cas_read                         ? Rule::kCasRead
                 : (now.flags & kAsyncProxy) != 0 ? Rule::kAsyncHazard
                 : memory != nullptr              ? Rule::kSharedRace
                                                  : Rule::kGlobalRace,
                 origin,
                 format("%s of %s races with the %s of %s: no synchronisation orders them", kind,
                        where.c_str(), before_writes ? "write" : "read", other.c_str()));
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
    launch_.report(Rule::kCtaExit, origin,
                   format("the last warp of CTA %u exits while the asynchronous operation of line "
                          "%d writes its shared memory",
                          cta.linear(), line));
    break;
  }
  const auto check = [&](const Stamp& stamp, const char* what) {
    if (knows(history.at_exit, stamp, View::kTime)) return;
    launch_.report(Rule::kCtaExit, origin,
                   format("CTA %u may exit before %s %s: no synchronisation orders them",
                          cta.linear(), what, describe(stamp).c_str()));
  };
  for (const auto& [actor, stamp] : history.deliveries) {
    Stamp delivery = stamp;
    if (knows(history.at_exit, delivery, View::kTime)) continue;
    launch_.report(Rule::kCtaExit, origin,
                   format("CTA %u exits without having waited for the asynchronous operation of "
                          "line %d, which writes its shared memory",
                          cta.linear(), delivery.line));
  }
  for (const auto& [actor, stamp] : history.remote)
    check(stamp, "its shared memory is accessed in");
}

}  // namespace bwgemm::emulator
