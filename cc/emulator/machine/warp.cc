#include "emulator/machine/warp.h"

#include <cstdarg>
#include <cstdio>
#include <memory>
#include <utility>

#include "emulator/machine/kernel.h"
#include "emulator/machine/launch.h"

namespace bwgemm::emulator {

void Warp::fault(const char* fmt, ...) {
  char text[1024];
  va_list args;
  va_start(args, fmt);
  std::vsnprintf(text, sizeof text, fmt, args);
  va_end(args);
  launch_->fault(origin(), text);
}

void Warp::report(Rule rule, const std::string& message) {
  launch_->report(rule, origin(), message);
}

void Warp::report_exited(uint32_t members) {
  const uint32_t exited = members & existing_ & ~live_;
  if (exited == 0) return;
  report(Rule::kExitedLanes,
         format("this is for lanes 0x%08x, of which 0x%08x have exited", members, exited));
}

void Warp::tell() {
  launch_->races().told(*this);
  history.release();
}

// ---- Control

Step Warp::block(WaitKey key, const WaitInfo& info) {
  LaneGroup& g = group();
  g.state = GroupState::kWaiting;
  g.key = key;
  g.deadline = 0;
  g.wait = info;
  g.since = launch_->now();
  ++launch_->stats().warps[index_].waits;
  return Step::kBlock;
}

Step Warp::block_timed(WaitKey key, const WaitInfo& info) {
  block(key, info);
  group().deadline = launch_->now() + 256 + launch_->random().below(4096);
  launch_->note_deadline(group().deadline);
  return Step::kBlock;
}

Step Warp::branch(uint32_t taken, uint32_t target) {
  LaneGroup& g = group();
  if (taken == g.mask) {
    g.pc = target;
    return Step::kJump;
  }
  LaneGroup other;
  other.mask = g.mask & ~taken;
  other.pc = g.pc + 1;
  g.mask = taken;
  g.pc = target;
  groups_.push_back(other);
  return Step::kJump;
}

Step Warp::branch_and_stay(uint32_t taken, uint32_t target, uint32_t stay) {
  const uint32_t pc = group().pc;
  const uint32_t fall = group().mask & ~taken & ~stay;
  group().mask = taken;
  group().pc = target;
  for (const auto& [mask, at] : {std::pair<uint32_t, uint32_t>{stay, pc}, {fall, pc + 1}}) {
    if (mask == 0) continue;
    LaneGroup other;
    other.mask = mask;
    other.pc = at;
    groups_.push_back(other);
  }
  return Step::kJump;
}

Step Warp::exit_lanes(uint32_t mask) {
  if (launch_->lane_exit_hook != nullptr) launch_->lane_exit_hook(*this, mask);
  LaneGroup& g = group();
  cluster_arrivals.count_exit(*this, live_ & ~mask);
  live_ &= ~mask;
  g.mask &= ~mask;
  for (uint32_t id = 0; id < kNamedBarriers; ++id) cta_->barrier(id).count_exited(*this);
  // Those that wait for all live lanes may now be complete.
  for (LaneGroup& other : groups_) {
    if (other.state == GroupState::kConverging) other.state = GroupState::kReady;
  }
  return Step::kExit;
}

bool Warp::gathered(uint32_t members, uint32_t mask) {
  if ((mask & ~members) != 0)
    fault("lanes 0x%08x execute this without being in its membermask 0x%08x", mask, members);
  const uint32_t missing = members & live_ & ~mask;
  if (missing == 0) return true;
  // Lanes of other members may execute it beside these.
  const uint32_t idle = missing & group().mask & ~executing_;
  if (idle != 0) {
    fault(
        "the membermask 0x%08x names lanes 0x%08x that reach the instruction but do not execute it",
        members, idle);
  }
  return false;
}

bool Warp::gathered_anywhere(uint32_t members, uint32_t mask, const Instr& in) {
  if ((mask & ~members) != 0)
    fault("lanes 0x%08x execute this without being in its membermask 0x%08x", mask, members);
  const auto elsewhere = [&](const LaneGroup& g) {
    uint32_t lanes = 0;
    if (&g == &group() || g.state != GroupState::kConverging) return lanes;
    const Instr& there = kernel_->code[g.pc];
    if (there.exec != in.exec) return lanes;
    const uint32_t* named = r32(there.op[0]);
    for_lanes(g.mask,
              [&](int lane) { lanes |= static_cast<uint32_t>(named[lane] == members) << lane; });
    return lanes;
  };
  uint32_t here = mask;
  for (const LaneGroup& g : groups_) here |= elsewhere(g);
  if ((members & live_ & ~here) != 0) return false;
  for (size_t i = 0, n = groups_.size(); i < n; ++i) {
    const uint32_t lanes = elsewhere(groups_[i]);
    if (lanes == 0) continue;
    LaneGroup on = groups_[i];
    on.mask = lanes;
    ++on.pc;
    on.state = GroupState::kReady;
    if (lanes == groups_[i].mask) {
      groups_[i] = on;
    } else {
      groups_[i].mask &= ~lanes;
      groups_.push_back(on);
    }
  }
  return true;
}

Step Warp::leave(uint32_t done, uint32_t mask) {
  if (done == mask) return Step::kNext;
  if (done != 0) return branch_and_stay(done, group().pc + 1, mask & ~done);
  if (mask == live_) fault("no membermask names only lanes that name the same members");
  group().state = GroupState::kConverging;
  group().since = launch_->now();
  return Step::kBlock;
}

void Warp::proxy_fence(bool shared, bool global) {
  history.fence_proxy(shared, global);
  if (!shared) return;
  // Covers this warp's writes, and those of others that were released (arrived somewhere) before:
  // the fence may come after the barrier (PTX ISA 8.11, causality order with a proxy fence along
  // the way). That the release was observed is not checked.
  Cluster& cluster = cta_->cluster();
  for (uint32_t rank = 0; rank < cluster.size(); ++rank) {
    for (auto& warp : cluster.cta(rank).warps()) {
      if (static_cast<int32_t>((warp->proxy_released_ - warp->proxy_fenced_) << 12) > 0)
        warp->proxy_fenced_ = warp->proxy_released_;
    }
  }
  proxy_fenced_ = proxy_epoch_++;
}

AsyncGroups& Warp::cp_async_groups(int lane) {
  if (!cp_async_) cp_async_ = std::make_unique<AsyncGroups[]>(kWarpSize);
  return cp_async_[lane];
}

AsyncGroups& Warp::bulk_groups(int lane) {
  if (!bulk_) bulk_ = std::make_unique<AsyncGroups[]>(kWarpSize);
  return bulk_[lane];
}

AsyncGroups& Warp::wgmma_groups() {
  if (!wgmma_) wgmma_ = std::make_unique<AsyncGroups>();
  return *wgmma_;
}

// ---- Group selection

bool Warp::any_ready() const {
  for (const LaneGroup& g : groups_) {
    if (g.state == GroupState::kReady) return true;
  }
  return false;
}

bool Warp::select(bool random, Random& source) {
  size_t best = groups_.size();
  uint32_t seen = 0;
  for (size_t i = 0; i < groups_.size(); ++i) {
    if (groups_[i].state != GroupState::kReady) continue;
    ++seen;
    const bool better = best == groups_.size() ||
                        (random ? source.below(seen) == 0 : groups_[i].pc < groups_[best].pc);
    if (better) best = i;
  }
  if (best == groups_.size()) return false;
  current_ = best;
  return true;
}

void Warp::merge() {
  for (size_t i = 0; i < groups_.size();) {
    LaneGroup& g = group();
    LaneGroup& other = groups_[i];
    if (i == current_ || other.pc != g.pc || other.token != 0 || g.token != 0) {
      ++i;
      continue;
    }
    g.mask |= other.mask;
    g.state = GroupState::kReady;
    remove_group(i);
  }
}

void Warp::remove_group(size_t i) {
  const size_t last = groups_.size() - 1;
  if (current_ == last) {
    current_ = i;  // the last one moves to i
  }
  if (i != last) groups_[i] = groups_[last];
  groups_.pop_back();
}

}  // namespace bwgemm::emulator
