// Lanes of one warp: what they have told each other and others, alone and together.
#include <algorithm>

#include "emulator/machine/launch.h"
#include "emulator/machine/race.h"

namespace bwgemm::emulator {

void Races::told(Warp& warp) {
  if (!on_ || !launch_->watches(Rule::kLaneRelease)) return;
  WarpHistory& history = warp.history;
  std::vector<LaneReleases>& periods = told_[history.cluster - 1][history.actor];
  if (!periods.empty() && periods.back().until == 0 &&
      (periods.back().from < history.together || (warp.live() & ~warp.executing()) == 0)) {
    periods.back().until = history.clock;
  }
  if ((warp.live() & ~warp.executing()) == 0) {
    history.told = history.clock;
    return;
  }
  const uint32_t lanes = warp.executing();
  if (periods.empty() || periods.back().until != 0) {
    constexpr size_t kPeriods = 16;  // what was told before is taken for told by all
    if (periods.size() == kPeriods) periods.erase(periods.begin());
    periods.push_back({std::max(history.together, history.told + 1), 0, {}});
  }
  for (LaneReleases::Told& by : periods.back().told) {
    if (by.lanes != lanes) continue;
    by.clock = history.clock;
    return;
  }
  periods.back().told.push_back({lanes, history.clock, 0});
}

bool Races::told_by_lanes(const Stamp& stamp) const {
  if ((stamp.flags & (kOneLane | kRecord | kAsyncProxy)) != kOneLane || stamp.cluster == 0)
    return false;
  const auto& actors = told_[stamp.cluster - 1];
  return stamp.actor < actors.size() && !actors[stamp.actor].empty() &&
         stamp.clock >= actors[stamp.actor].front().from;
}

bool Races::untold(const Warp& issuer, const Stamp& stamp) const {
  const WarpHistory& history = issuer.history;
  if (stamp.actor == history.actor && stamp.cluster == history.cluster) return false;  // apart()
  if (!told_by_lanes(stamp)) return false;
  const std::vector<LaneReleases>& periods = told_[stamp.cluster - 1][stamp.actor];
  for (auto period = periods.rbegin(); period != periods.rend(); ++period) {
    if (stamp.clock < period->from) continue;
    if (period->until != 0 &&
        (stamp.clock > period->until ||
         history.knows.of(stamp.cluster, stamp.actor, View::kGeneric) >= period->until)) {
      return false;
    }
    for (const LaneReleases::Told& by : period->told) {
      if ((by.lanes >> lane_of(stamp) & 1) != 0 && by.clock >= stamp.clock) return false;
    }
    return true;
  }
  return false;
}

bool Races::apart(const Warp& issuer, const Stamp& before, const Stamp& now, bool handed) const {
  if (!own_since_meeting(issuer.history, before, now)) return false;
  const WarpHistory& history = issuer.history;
  const uint32_t lanes = issuer.executing();
  const bool alone = (lanes & (lanes - 1)) == 0;
  const int lane = (now.flags & kOneLane) != 0 ? lane_of(now) : alone ? first_lane(lanes) : -1;
  const int other = lane_of(before);
  // All lanes come together to an instruction that they execute together, and what it reads it has
  // read then: only what is handed from one to the other needs more order than that.
  if (by_all_lanes(before)) return handed && (by_all_lanes(now) || lane >= 0);
  if (other < 0) return false;
  if (by_all_lanes(now)) return handed;
  if (lane < 0) return false;
  if (lane == other) return (before.flags & kSeveralLanes) != 0 && met_nobody(issuer, before);
  if (heard(before, 1u << other)) return false;
  return history.met.empty() || before.clock >= history.met[static_cast<size_t>(lane * 32 + other)];
}

// Which other lanes have read is not known: only that this one has met none since.
bool Races::met_nobody(const Warp& issuer, const Stamp& stamp) const {
  if (heard(stamp, kFullMask)) return false;
  const WarpHistory& history = issuer.history;
  if (history.met.empty()) return true;
  const auto met = history.met.begin() + lane_of(stamp) * 32;
  return std::all_of(met, met + 32, [&](uint32_t clock) { return clock <= stamp.clock; });
}

void WarpHistory::meet(uint32_t some) {
  ++clock;
  lanes.meet(some);
  if (met.empty()) met.assign(32 * 32, 0);
  uint32_t all[32] = {};
  for (int i = 0; i < 32; ++i) {
    if ((some >> i & 1) == 0) continue;
    for (int j = 0; j < 32; ++j) all[j] = std::max(all[j], met[static_cast<size_t>(i * 32 + j)]);
    all[i] = clock;
  }
  for (int i = 0; i < 32; ++i) {
    if ((some >> i & 1) != 0) std::copy(all, all + 32, met.begin() + i * 32);
  }
}

void Races::learn(Warp& warp, const Knowledge& told, Tells tells) {
  WarpHistory& history = warp.history;
  const uint32_t lanes = warp.executing();
  if (((warp.live() & ~lanes) != 0 || !history.lanes.empty()) && launch_->watches(Rule::kLaneWait))
    history.lanes.learn(lanes, told, history.knows);
  switch (tells) {
    case Tells::kAll:
      history.knows.join(told);
      break;
    case Tells::kOrder:
      history.knows.join_order(told);
      break;
    case Tells::kTime:
      history.knows.join_time(told);
  }
}

void Races::learn(Warp& warp, uint32_t lanes, const Stamp& done) {
  WarpHistory& history = warp.history;
  if (((warp.live() & ~lanes) != 0 || !history.lanes.empty()) && launch_->watches(Rule::kLaneWait))
    history.lanes.learn(lanes, done.cluster, done.actor, done.clock, history.knows);
  history.knows.learn(done.cluster, done.actor, done.clock);
}

bool Races::unheard(const Warp& issuer, const Stamp& before, const Stamp& now, View view) const {
  const WarpHistory& history = issuer.history;
  if (history.lanes.empty()) return false;
  if (before.actor == history.actor && before.cluster == history.cluster &&
      (before.flags & kRecord) == 0)
    return false;  // apart()
  const int lane = lane_of(now);
  return !history.lanes.known(lane < 0 ? issuer.executing() : 1u << lane,
                              [&](const Knowledge& one) { return knows(one, before, view); });
}

bool Races::copied_apart(const Warp& issuer, const Stamp& write, const Stamp& now,
                         const Cta* memory, uint64_t at) const {
  constexpr uint16_t kCopy = kAsyncProxy | kUnfenced;
  const WarpHistory& own = issuer.history;
  if (own.copies.met_since(own.together) || memory != &issuer.cta() ||
      (write.flags & (kCopy | kRecord)) != kCopy || write.cluster != own.cluster ||
      (now.flags & kAsyncProxy) != 0) {
    return false;
  }
  const int lane = lane_of(now);
  const LaneCopies::Copy* copy =
      own.copies.find(write.actor, write.clock, static_cast<uint32_t>(at), lane);
  if (copy == nullptr) return false;
  if (lane < 0) return true;
  return lane != copy->lane &&
         (own.met.empty() ||
          !own.copies.met_since(own.met[static_cast<size_t>(lane * 32 + copy->lane)]));
}

bool Races::heard(const Stamp& stamp, uint32_t lanes) const {
  for (const LaneReleases& period : told_[stamp.cluster - 1][stamp.actor]) {
    for (const LaneReleases::Told& by : period.told) {
      if ((by.lanes & lanes) != 0 && by.heard >= stamp.clock) return true;
    }
  }
  return false;
}

void Races::meet_through(Warp& warp, const Knowledge& told) {
  WarpHistory& history = warp.history;
  uint32_t known = told.of(history.cluster, history.actor, View::kGeneric);
  // What one lane has told is of that lane alone.
  std::vector<LaneReleases>& periods = told_[history.cluster - 1][history.actor];
  for (auto period = periods.rbegin(); period != periods.rend(); ++period) {
    if (known < period->from || (period->until != 0 && known >= period->until)) continue;
    for (LaneReleases::Told& by : period->told)
      by.heard = std::max(by.heard, std::min(known, by.clock));
    known = period->from - 1;
  }
  if (known >= history.together) history.together = known + 1;
}

}  // namespace bwgemm::emulator
