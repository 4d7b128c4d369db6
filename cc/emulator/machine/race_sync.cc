// What synchronisation tells whom: atomics and strong accesses, barriers, mbarriers.
#include <algorithm>

#include "emulator/machine/launch.h"
#include "emulator/machine/race.h"

namespace bwgemm::emulator {

// ---- By address and by barriers

uint64_t Races::sync_key(const Warp& warp, uint64_t address, bool shared) const {
  if ((address & kWindowMask) == kSharedWindow) {
    shared = true;
    address -= kSharedWindow;
  }
  return shared ? kSharedWindow | uint64_t{warp.history.cluster} << 32 | address : address;
}

// Who is told shares the cluster or the CTA: their numbers are above the bits of addresses.
uint64_t Races::published_key(const Warp& warp, uint64_t key, Scope scope) const {
  const uint64_t cta = warp.history.actor / warps_per_cta_;
  const uint64_t number = scope == Scope::kDevice    ? 0
                          : scope == Scope::kCluster ? warp.history.cluster
                                                     : uint64_t{warp.history.cluster} << 5 | cta;
  return key ^ number * 0x9E3779B97F4A7C15ull;
}

void WarpHistory::fence(Scope scope, FenceKind kind) {
  const bool sequential = kind == FenceKind::kSequential && scope == Scope::kDevice;
  for (size_t level = static_cast<size_t>(scope); level < kScopes; ++level) {
    if (kind == FenceKind::kRelease || observed[level].empty()) continue;
    learn(observed[level]);
    observed[level].clear();
  }
  if (sequential && !fences.observed.empty()) {
    learn(fences.observed);
    fences.observed.clear();
  }
  if (kind == FenceKind::kAcquire) return;
  for (size_t level = static_cast<size_t>(scope); level < kScopes; ++level) fenced[level].clear();
  release();
  fenced[static_cast<size_t>(scope)] = knows;
  if (sequential) fences.before.join(knows);
}

void Races::Published::release(uint64_t warp, const Knowledge& known) {
  told.join(known);
  if (by.size() < kMost && std::find(by.begin(), by.end(), warp) == by.end()) by.push_back(warp);
}

void Races::Published::store(uint64_t warp) {
  if (by.size() == kMost || std::find(by.begin(), by.end(), warp) != by.end()) return;
  told.clear();
  by.clear();
}

void Races::publish(Warp& warp, uint64_t key, Scope scope, bool release, bool replaces) {
  if (!on_) return;
  const WarpHistory& history = warp.history;
  const uint64_t self = uint64_t{history.cluster} << 16 | history.actor;
  // Narrower scopes hear of it too: an observer looks at what its own scope allows it to see.
  const Knowledge* fenced = nullptr;
  for (size_t level = 0; level < kScopes; ++level) {
    if (!history.fenced[level].empty()) fenced = &history.fenced[level];
    const uint64_t to = published_key(warp, key, static_cast<Scope>(level));
    if (replaces) {
      const auto at = published_[level].find(to);
      if (at != published_[level].end()) at->second.store(self);
    }
    if (level < static_cast<size_t>(scope)) continue;
    const Knowledge* told = release ? &history.knows : fenced;
    if (told != nullptr) published_[level][to].release(self, *told);
  }
  if (scope == Scope::kDevice && !history.fences.before.empty())
    fenced_before_[key].join(history.fences.before);
}

void Races::observe(Warp& warp, uint64_t key, Scope scope, bool acquire) {
  if (!on_) return;
  for (size_t level = static_cast<size_t>(scope); level < kScopes; ++level) {
    const auto at = published_[level].find(published_key(warp, key, static_cast<Scope>(level)));
    if (at == published_[level].end()) continue;
    const Knowledge& told = at->second.told;
    if (told.empty()) continue;
    if (acquire) {
      learn(warp, told, Tells::kAll);
    } else {
      warp.history.observed[level].join(told);
    }
    meet_through(warp, told);
  }
  if (scope != Scope::kDevice || fenced_before_.empty()) return;
  const auto at = fenced_before_.find(key);
  if (at != fenced_before_.end()) warp.history.fences.observed.join(at->second);
}

void Races::strong(Warp& warp, uint64_t key, uint32_t width, int count, int lane,
                   StrongAccesses::Kind kind) {
  if (!on_) return;
  const Stamp stamp = warp.history.stamp(warp.origin().line, lane_flags(lane));
  mixed_ = false;
  for (int i = 0; i < count; ++i)
    mixed_ |= strong_accesses_.note(key + static_cast<uint64_t>(i) * width, width, stamp, kind);
}

bool Races::observed(const Warp& issuer, const Stamp& write, const Stamp& now, const Cta* memory,
                     uint64_t at) const {
  if (((write.flags | now.flags) & (kAsyncProxy | kRecord)) != 0 || (now.flags & kStrong) != 0)
    return false;
  if (memory != nullptr) at |= uint64_t{memory->rank()} << kSharedRankShift;
  const uint64_t key = sync_key(issuer, at, memory != nullptr);
  const WarpHistory& history = issuer.history;
  const auto known = [&](const Stamp& read) {
    if (read.actor == history.actor && read.cluster == history.cluster)
      return !apart(issuer, read, now, true);
    return knows(history.knows, read, View::kGeneric) && !untold(issuer, read) &&
           !unheard(issuer, read, now, View::kGeneric);
  };
  return strong_accesses_.observed(key, write, [&](Stamp read, uint32_t lanes) {
    for (; lanes != 0; lanes &= lanes - 1) {
      read.flags = lane_flags(first_lane(lanes));
      if (known(read)) return true;
    }
    return false;
  });
}

// What a relaxed arrival tells threads that are together in this scope: what fences that reach them
// came after.
static void join_fenced(const WarpHistory& history, Scope scope, Knowledge* told) {
  for (size_t level = 0; level <= static_cast<size_t>(scope); ++level) {
    if (!history.fenced[level].empty()) told->join(history.fenced[level]);
  }
}

void Races::arrive(Warp& warp, BarrierHistory& barrier, bool relaxed) {
  if (!on_) return;
  WarpHistory& history = warp.history;
  // A barrier is no fence: what relaxed loads have seen of this CTA may be passed on, no more.
  const Knowledge& observed = history.observed[static_cast<size_t>(Scope::kCta)];
  if (!observed.empty()) history.learn(observed);
  if (!relaxed) barrier.fences_arrived.join(history.fences);
  const bool news = history.barrier != &barrier ||
                    history.barrier_generation != barrier.generation ||
                    history.barrier_changes != history.knows.changes();
  if (relaxed) {
    barrier.arrived.join_time(history.knows);
    join_fenced(history, Scope::kCluster, &barrier.arrived);
    history.barrier = nullptr;
    return;
  }
  if (news) {
    barrier.arrived.join(history.knows);
  } else {
    barrier.arrived.join(history.knows, history.cluster, history.actor);
  }
  history.barrier = &barrier;
  history.barrier_generation = barrier.generation;
  history.barrier_changes = history.knows.changes();
}

void Races::arrive_named(Warp& warp, BarrierHistory& barrier, uint32_t number, uint32_t lanes) {
  if (!on_) return;
  const WarpHistory& history = warp.history;
  Stamp now = history.stamp(warp.origin().line);
  --now.clock;  // the warp has released what it did before
  const Stamp* early = nullptr;
  for (const BarrierHistory::Arrival& arrival : barrier.arrivals) {
    if (arrival.by.actor == now.actor && (arrival.lanes & lanes) != 0) early = &arrival.by;
  }
  const bool waited =
      history.barrier == &barrier && history.barrier_generation == barrier.generation;
  if (!waited) {
    for (const BarrierHistory::Arrival& last : barrier.last_arrivals) {
      if (last.by.actor != now.actor && !knows(history.knows, last.by, View::kTime))
        early = &last.by;
    }
  }
  if (early != nullptr) {
    warp.report(Rule::kMbarrierOverrun,
                format("an arrival at barrier %u that may come before its last generation is "
                       "complete: nothing orders that after the arrival of %s",
                       number, describe(*early).c_str()));
  }
  barrier.arrivals.push_back({now, lanes});
  arrive(warp, barrier, false);
}

void Races::observe(Warp& warp, const BarrierHistory& barrier, bool relaxed) {
  if (!on_) return;
  WarpHistory& history = warp.history;
  history.meet();
  if (!relaxed) history.fences.join(barrier.fences_completed);
  if (relaxed) {
    history.knows.join_time(barrier.completed);
    history.barrier = nullptr;
    return;
  }
  // It has told the barrier all that it knew, and has learned nothing since.
  if (history.barrier == &barrier && history.barrier_generation < barrier.generation &&
      history.barrier_changes == history.knows.changes()) {
    history.knows.catch_up(barrier.completed, history.cluster, history.actor);
    history.barrier_generation = barrier.generation;
    history.barrier_changes = history.knows.changes();
    return;
  }
  history.knows.join(barrier.completed);
  history.barrier = nullptr;
}

// ---- mbarriers

Races::Order Races::tensor_order(const Warp& issuer, const Stamp& before) const {
  const WarpHistory& history = issuer.history;
  if (before.actor == history.actor && before.cluster == history.cluster) return Order::kYes;
  if (!knows(history.knows, before, View::kGeneric)) return Order::kNo;
  if (unheard(issuer, before, {}, View::kGeneric)) return Order::kUnheard;
  return knows(history.tensor, before, View::kTensor) ? Order::kYes : Order::kNoFence;
}

bool Races::issued_in_order(const Warp& issuer, const Stamp& before) const {
  const WarpHistory& history = issuer.history;
  return (before.actor == history.actor && before.cluster == history.cluster) ||
         knows(history.knows, before, View::kTime);
}

void Races::mbarrier_use(Cta& cta, uint32_t offset, const Origin& origin, bool asynchronous) {
  if (!on_ || !launch_->watches(Rule::kMbarrierInit)) return;
  MbarrierHistory& history = mbarrier(cta, offset);
  const Stamp& init = history.init;
  if (init.cluster == 0) return;
  const WarpHistory& user = origin.cta->warps()[origin.warp]->history;
  const WarpHistory& initialiser =
      cta.cluster().cta(init.actor / warps_per_cta_).warps()[init.actor % warps_per_cta_]->history;
  const bool fenced = init.clock <= initialiser.initialised;
  const bool self = user.actor == init.actor;
  const bool ordered = self || knows(user.knows, init, View::kGeneric) ||
                       (fenced && knows(user.knows, init, View::kTime));
  const bool visible = !asynchronous || fenced || knows(user.knows, init, View::kAsync);
  if (ordered && visible) return;
  launch_->report(
      Rule::kMbarrierInit, origin,
      format("mbarrier %s of CTA %u is used %s, but %s", launch_->shared_text(offset).c_str(),
             cta.linear(), asynchronous ? "by an asynchronous operation" : "here",
             ordered ? "no fence.mbarrier_init or fence.proxy.async follows its "
                       "initialisation"
                     : "nothing orders that after its initialisation"));
}

void Races::mbarrier_init(Cta& cta, uint32_t offset, const Origin& origin) {
  if (!on_) return;
  MbarrierHistory& history = mbarrier(cta, offset);
  if (history.init.cluster != 0) {
    launch_->report(
        Rule::kMbarrierInit, origin,
        format("mbarrier %s of CTA %u is initialised again, after %s: mbarrier.inval "
               "comes first",
               launch_->shared_text(offset).c_str(), cta.linear(), describe(history.init).c_str()));
  }
  const MbarrierHistory before = std::move(history);
  history = MbarrierHistory{};
  history.actor = before.actor;
  history.phase = before.phase;  // knowledge of earlier phases must not tell of later ones
  history.init = origin.cta->warps()[origin.warp]->history.stamp(origin.line);
}

void Races::mbarrier_inval(Cta& cta, uint32_t offset, const Origin& origin) {
  if (!on_) return;
  MbarrierHistory& history = mbarrier(cta, offset);
  const WarpHistory& own = origin.cta->warps()[origin.warp]->history;
  for (const Stamp& wait : history.waits) {
    const bool self = wait.actor == own.actor && wait.cluster == own.cluster;
    if (self || knows(own.knows, wait, View::kTime)) continue;
    launch_->report(
        Rule::kMbarrierInit, origin,
        format("mbarrier %s of CTA %u is invalidated: nothing orders that after the wait "
               "of %s",
               launch_->shared_text(offset).c_str(), cta.linear(), describe(wait).c_str()));
    break;
  }
  history.waits.clear();
  history.init = {};
}

void Races::mbarrier_arrive(Cta& cta, uint32_t offset, const Origin& origin, const Stamp& by,
                            const Knowledge& knows_now, Tells tells) {
  if (!on_) return;
  MbarrierHistory& history = mbarrier(cta, offset);
  if (&cta != origin.cta) cta.history.remote[by.actor] = by;
  // Not ordered after the last phase, it might have been counted in that one.
  if (!history.last_arrivals.empty() &&
      knows_now.of(by.cluster, history.actor, View::kTime) < history.phase) {
    for (const Stamp& last : history.last_arrivals) {
      if (knows(knows_now, last, View::kTime) || (last.actor == by.actor && last.clock <= by.clock))
        continue;
      launch_->report(
          Rule::kMbarrierOverrun, origin,
          format("an arrival on mbarrier %s of CTA %u that may come before the end of "
                 "the last phase: nothing orders it after the arrival of %s",
                 launch_->shared_text(offset).c_str(), cta.linear(), describe(last).c_str()));
      break;
    }
  }
  if (history.arrivals.empty() || history.arrivals.back().actor != by.actor ||
      history.arrivals.back().clock != by.clock) {
    history.arrivals.push_back(by);
    const bool peer = &cta != origin.cta && (by.flags & kAsyncProxy) == 0;
    Knowledge& arrived = peer ? history.arrived_peers : history.arrived;
    if (tells == Tells::kOrder) {
      arrived.join_order(knows_now);
    } else if (tells == Tells::kTime) {
      arrived.join_time(knows_now);
      const WarpHistory& history_of_warp = origin.cta->warps()[origin.warp]->history;
      join_fenced(history_of_warp, peer ? Scope::kCluster : Scope::kCta, &arrived);
    } else {
      arrived.join(knows_now);
    }
  }
}

void Races::mbarrier_complete(Cta& cta, uint32_t offset) {
  if (!on_) return;
  MbarrierHistory& history = mbarrier(cta, offset);
  ++history.phase;
  history.arrived.learn(cta.cluster().history.number, history.actor, history.phase);
  history.completed = history.arrived;
  history.completed_peers = history.arrived_peers;
  history.last_arrivals = std::move(history.arrivals);
  history.arrivals.clear();
}

bool Races::mbarrier_known(const Warp& warp, Cta& cta, uint32_t offset) {
  if (!on_) return true;
  const MbarrierHistory& history = mbarrier(cta, offset);
  if (warp.history.knows.of(cta.cluster().history.number, history.actor, View::kTime) >=
      history.phase)
    return true;
  // All of it was this warp's own doing.
  const auto delivery = cta.history.deliveries.find(history.actor);
  if (delivery != cta.history.deliveries.end() && delivery->second.clock == history.phase)
    return false;
  return std::all_of(history.last_arrivals.begin(), history.last_arrivals.end(),
                     [&](const Stamp& by) {
                       return by.actor == warp.history.actor && by.cluster == warp.history.cluster;
                     });
}

void Races::mbarrier_observe(Warp& warp, Cta& cta, uint32_t offset, bool relaxed, Tells peers) {
  if (!on_) return;
  MbarrierHistory& history = mbarrier(cta, offset);
  const Stamp wait = warp.history.stamp(warp.origin().line);
  const auto earlier =
      std::find_if(history.waits.begin(), history.waits.end(), [&](const Stamp& other) {
        return other.actor == wait.actor && other.cluster == wait.cluster;
      });
  if (earlier != history.waits.end()) {
    *earlier = wait;
  } else {
    history.waits.push_back(wait);
  }
  // What a relaxed wait has heard counts from the next fence on that reaches those who told it.
  const auto observe = [&](const Knowledge& told, Tells tells, Scope scope) {
    if (told.empty()) return;
    meet_through(warp, told);
    learn(warp, told, relaxed ? Tells::kTime : tells);
    if (relaxed) warp.history.observed[static_cast<size_t>(scope)].join(told);
  };
  observe(history.completed, Tells::kAll, Scope::kCta);
  observe(history.completed_peers, peers, Scope::kCluster);
}

}  // namespace bwgemm::emulator
