// Which rule an access breaks that nothing orders after an earlier one, and how the report says so.
#include "emulator/machine/launch.h"
#include "emulator/machine/race.h"

namespace bwgemm::emulator {

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

}  // namespace bwgemm::emulator
