#include "emulator/machine/race.h"

#include <algorithm>

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
