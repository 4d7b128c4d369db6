// The scheduler: which warp runs, for how long, and when asynchronous operations finish; all drawn
// from the seed.
#include <algorithm>
#include <chrono>
#include <thread>

#include "emulator/machine/launch.h"

namespace bwgemm::emulator {
namespace {

// After this many wake-ups without any visible effect, and nothing else to run, waiting in a loop
// counts as a deadlock.
constexpr uint64_t kStaleWakeups = 4096;
// Instructions that a warp executes in a row without all its lanes before its groups take turns.
constexpr uint32_t kPatience = 1024;
// Ticks for which a cluster's warps run before another cluster's do.
constexpr uint64_t kNearTicks = 8192;
// Ticks without any visible effect before warps that run are looked at.
constexpr uint64_t kQuietTicks = uint64_t{1} << 18;
constexpr uint64_t kLookTicks = 1024;  // between two looks at one warp
// Times that a worker looks again when no other has had any effect either.
constexpr int kLooks = 3;

constexpr const char* kDeadlock =
    "deadlock: no warp can continue and no asynchronous operation is in flight";
constexpr const char* kLivelock =
    "deadlock: every warp is blocked, or repeats a loop in which nothing changes any more "
    "(livelock)";

}  // namespace

// Warps of one cluster run for a while before others do: what they use stays in this machine's
// caches.
Cluster& Launch::choose_cluster() {
  if (ready_.size() == 1) return *ready_[0];
  if (near_ == nullptr || now_ >= near_until_) {
    near_ = ready_[random_.below(static_cast<uint32_t>(ready_.size()))];
    near_until_ = now_ + kNearTicks;
  }
  return *near_;
}

void Launch::add_ready(Warp& warp) {
  Cluster& cluster = *warp.cta_->cluster_;
  if (cluster.ready_.empty()) ready_.push_back(&cluster);
  cluster.ready_.push_back(&warp);
}

void Launch::run_warp(Cluster& cluster, size_t slot) {
  Warp& w = *cluster.ready_[slot];
  uint32_t quantum = min_quantum_ + random_.below(spread_quantum_);
  const Instr* const code = kernel_.code.data();
  // The lanes that are behind run first, so that groups meet again. When that has kept others
  // waiting for long, any group runs for a while: the one that is behind may be spinning on what
  // another has to do.
  const bool fair = w.diverged_ > kPatience;
  if (fair) w.diverged_ = 0;
  w.select(fair, random_);
  uint64_t executed = 0, lanes = 0;
  bool alive = true;
  while (quantum-- > 0) {
    LaneGroup& g = w.groups_[w.current_];
    const Instr& in = code[g.pc];
    uint32_t mask = g.mask;
    bool reselect = false;
    if ((in.flags & kConverge) != 0 && mask != w.live_) {
      g.state = GroupState::kConverging;
      g.since = now_;
      reselect = true;
    } else {
      if (in.guarded) mask &= w.pred(in.guard);
      if ((in.flags & kTracked) != 0 && !w.undefined_.empty()) {
        w.current_instr_ = &in;
        w.track(in, g.mask, mask);
      }
      ++now_;
      ++executed;
      w.ran_ |= g.mask;
      lanes += mask == kFullMask ? kWarpSize : static_cast<uint64_t>(__builtin_popcount(mask));
      if (mask == 0) {
        ++g.pc;
        g.token = 0;
      } else {
        w.current_instr_ = &in;
        w.executing_ = mask;
        if ((in.flags & kWholeWarp) != 0 && w.live_ != w.existing_) w.report_exited(w.existing_);
        if (!w.watched_rows_.empty() || (in.flags & kTouches) != 0) w.check_rows(in);
        switch (in.exec(w, in, mask)) {
          case Step::kNext: {
            LaneGroup& after = w.groups_[w.current_];
            ++after.pc;
            after.token = 0;
            after.timed_out = false;
            break;
          }
          case Step::kJump:
            break;
          case Step::kBlock:
            reselect = true;
            break;
          case Step::kYield: {
            LaneGroup& after = w.groups_[w.current_];
            ++after.pc;
            after.token = 0;
            after.timed_out = false;
            ++w.polls_;
            w.polled_ |= mask;
            quantum = 0;
            break;
          }
          case Step::kExit: {
            if (w.live_ == 0) {
              alive = false;
            } else if (w.groups_[w.current_].mask == 0) {
              w.remove_group(w.current_);
              w.current_ = 0;
              reselect = true;
            } else {
              ++w.groups_[w.current_].pc;  // the lanes whose guard was false
            }
            break;
          }
        }
        if (!alive) break;
      }
    }
    if (w.groups_.size() > 1) {
      ++w.diverged_;
      if (!reselect) w.merge();
      if (reselect || !fair) {
        if (!w.select(fair, random_)) break;
        w.merge();
      }
    } else if (w.diverged_ = 0; reselect && w.groups_[0].state != GroupState::kReady) {
      if (w.groups_[0].state == GroupState::kConverging && w.groups_[0].mask == w.live_) {
        w.groups_[0].state = GroupState::kReady;  // the others have exited
        continue;
      }
      break;
    } else if (reselect) {
      w.current_ = 0;
    }
  }
  stats_.instructions += executed;
  stats_.thread_instructions += lanes;
  stats_.warps[w.index_].instructions += executed;
  if (!alive || !w.any_ready()) {
    // `slot` is still right: waking others appends only.
    cluster.ready_[slot] = cluster.ready_.back();
    cluster.ready_.pop_back();
    if (cluster.ready_.empty()) {
      ready_.erase(std::find(ready_.begin(), ready_.end(), &cluster));
      near_ = nullptr;
    }
  }
  if (!alive) warp_exited(w);
}

void Launch::run(Dim3 grid, Dim3 block, Dim3 cluster, size_t dynamic_shared,
                 std::vector<uint8_t> params) {
  grid_ = grid;
  block_ = block;
  cluster_dim_ = cluster;
  dynamic_shared_ = dynamic_shared;
  params_ = std::move(params);
  validate();
  prepare();

  // The seed also decides how bursty this machine is.
  static constexpr uint32_t kQuanta[][2] = {{1, 8}, {16, 240}, {64, 1024}};
  static constexpr uint32_t kAsyncOdds[] = {2, 4, 16};
  const uint32_t* quantum = kQuanta[random_.below(3)];
  min_quantum_ = quantum[0];
  spread_quantum_ = quantum[1];
  const uint32_t odds = kAsyncOdds[random_.below(3)];

  uint64_t idle_progress = 0, stale = 0;
  for (;;) {
    start_clusters();
    const bool in_flight = !free_ops_.empty() || !queues_.empty();
    if (resident_.empty() && !in_flight) break;
    if (now_ >= next_deadline_) wake_expired();
    if (ready_.empty()) {
      if (in_flight) {
        step_async();
        continue;
      }
      stale = progress_ == idle_progress ? stale + 1 : 0;
      if (stale == 0) no_longer_stale();
      idle_progress = progress_;
      if (stale > kStaleWakeups) {
        await_others(kDeadlock);
        stale = 0;
      }
      if (!wake_earliest()) deadlock(kDeadlock);
    } else if (in_flight && random_.below(odds) == 0) {
      step_async();
    } else {
      Cluster& cluster = choose_cluster();
      const uint32_t slot = random_.below(static_cast<uint32_t>(cluster.ready_.size()));
      Warp& warp = *cluster.ready_[slot];
      const uint64_t progress = progress_, polls = warp.polls_;
      run_warp(cluster, slot);
      // It polls: perhaps for another cluster.
      if (progress_ == progress && warp.polls_ != polls) near_ = nullptr;
      if (progress_ != seen_progress_) {
        seen_progress_ = progress_;
        quiet_since_ = now_;
      } else if (now_ - quiet_since_ > kQuietTicks && nothing_happens(warp)) {
        await_others(ready_.empty() ? kDeadlock : kLivelock);
      }
      if (clusters_.stopped.load(std::memory_order_relaxed)) throw Stopped{};
      if (now_ >= next_report_) report_progress();
      if (stats_.instructions > config_.step_limit) {
        throw Error(ErrorKind::kStepLimit, 0,
                    format("step limit: the kernel has not finished after %llu warp instructions",
                           static_cast<unsigned long long>(config_.step_limit)) +
                        describe_waits());
      }
    }
  }
  no_longer_stale();
  stats_.ticks = now_;
}

// Whether nothing ever will, as far as this worker can tell. `warp`, which has run without a
// visible effect, still exists: an exit is one.
bool Launch::nothing_happens(Warp& warp) {
  if (watched_progress_ != progress_) {
    watched_progress_ = progress_;
    livelock_.reset();
    no_longer_stale();
  }
  // Looking may cost more than the few instructions of a turn; one that ends in a wait comes
  // seldom.
  if (now_ < next_look_ && warp.any_ready()) return false;
  next_look_ = now_ + kLookTicks / warps_.size();
  if (!livelock_.hopeless(warp, warps_)) return false;
  livelock_.reset();
  return true;
}

// Nothing has happened to this worker's warps for long, and they poll: perhaps for another worker.
// Once all workers say so, each has looked again, and none has done anything, none will.
void Launch::await_others(const char* what) {
  if (!clusters_.shared()) deadlock(what);
  if (!stale_) ++clusters_.stale;
  stale_ = true;
  looks_ = clusters_.stale >= clusters_.running ? looks_ + 1 : 0;
  if (looks_ > kLooks) deadlock(what);
  if (clusters_.stopped) throw Stopped{};
  std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

void Launch::no_longer_stale() {
  if (stale_) --clusters_.stale;
  stale_ = false;
  looks_ = 0;
}

}  // namespace bwgemm::emulator
