// One kernel launch: grid, clusters, CTAs resident on SMs, the seeded scheduler and the
// asynchronous operations in flight.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "emulator/machine/async.h"
#include "emulator/machine/barrier.h"
#include "emulator/machine/config.h"
#include "emulator/machine/grid.h"
#include "emulator/machine/kernel.h"
#include "emulator/machine/livelock.h"
#include "emulator/machine/memory.h"
#include "emulator/machine/race.h"
#include "emulator/machine/warp.h"

namespace bwgemm::emulator {

class Cluster;
class Launch;

// xorshift64*: reproducible on every platform.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15ull + 0xD1B54A32D192ED03ull) {
    if (state_ == 0) state_ = 1;
    for (int i = 0; i < 4; ++i) next();
  }
  uint64_t next() {
    state_ ^= state_ >> 12;
    state_ ^= state_ << 25;
    state_ ^= state_ >> 27;
    return state_ * 0x2545F4914F6CDD1Dull;
  }
  uint32_t below(uint32_t n) { return static_cast<uint32_t>(((next() >> 32) * n) >> 32); }

 private:
  uint64_t state_;
};

// One streaming multiprocessor: what co-resident CTAs share.
struct Sm {
  uint32_t index = 0;
  uint32_t free_slots = 0;
  std::unique_ptr<Extension> tensor;  // for cc/emulator/tensor (tensor memory belongs to the SM)
};

constexpr uint32_t kNamedBarriers = 16;

class Cta {
 public:
  Launch& launch() { return *launch_; }
  Cluster& cluster() { return *cluster_; }
  Sm& sm() { return *sm_; }
  Dim3 id() const { return id_; }
  uint32_t linear() const { return linear_; }  // in the grid
  uint32_t rank() const { return rank_; }      // in the cluster
  SharedMemory& shared() { return shared_; }
  NamedBarrier& barrier(uint32_t id) { return barriers_[id]; }
  uint32_t barrier_id(const NamedBarrier& b) const { return static_cast<uint32_t>(&b - barriers_); }
  std::vector<std::unique_ptr<Warp>>& warps() { return warps_; }
  const std::vector<std::unique_ptr<Warp>>& warps() const { return warps_; }
  uint32_t live_warps() const { return live_warps_; }
  bool exited() const { return live_warps_ == 0; }
  // Bookkeeping of operations in flight that name this CTA; it stays allocated until all are done.
  // Launch::submit does this for the issuing CTA; other CTAs of the cluster live as long as the
  // cluster does.

  std::unique_ptr<Extension> tensor;  // for cc/emulator/tensor
  CtaHistory history;
  // Of each thread at the launch, as far as setmaxnreg has told; most 0: it has not been executed.
  uint32_t least_registers = 0, most_registers = 0;

 private:
  friend class Launch;
  friend class Warp;
  Launch* launch_ = nullptr;
  Cluster* cluster_ = nullptr;
  Sm* sm_ = nullptr;
  Dim3 id_{0, 0, 0};
  uint32_t linear_ = 0, rank_ = 0, threads_ = 0, live_warps_ = 0;
  SharedMemory shared_;
  NamedBarrier barriers_[kNamedBarriers];
  std::vector<std::unique_ptr<Warp>> warps_;
};

class Cluster {
 public:
  uint32_t size() const { return static_cast<uint32_t>(ctas_.size()); }
  Cta& cta(uint32_t rank) { return *ctas_[rank]; }
  Dim3 id() const { return id_; }  // %clusterid
  Dim3 first_cta() const { return first_cta_; }

  ClusterBarrier barrier;
  std::unique_ptr<Extension> tensor;  // for cc/emulator/tensor
  ClusterHistory history;

 private:
  friend class Launch;
  Dim3 id_{0, 0, 0}, first_cta_{0, 0, 0};
  std::vector<std::unique_ptr<Cta>> ctas_;
  std::vector<Warp*> ready_;  // those with a ready group
  uint32_t live_ctas_ = 0;
  uint32_t pending_async_ = 0;
};

// Called when a CTA's last warp has exited, e.g. to report tensor memory that was not deallocated.
using CtaExitHook = void (*)(Cta& cta);
// Called before these lanes exit.
using LaneExitHook = void (*)(Warp& warp, uint32_t mask);

class Launch {
 public:
  // `worker`: which of the grid's this is.
  Launch(GlobalMemory& memory, const Kernel& kernel, const LaunchConfig& config, Grid& grid,
         uint32_t worker);
  ~Launch();

  // --- For instructions
  GlobalMemory& memory() { return memory_; }
  const LaunchConfig& config() const { return config_; }
  const Kernel& kernel() const { return kernel_; }
  Stats& stats() { return stats_; }
  WarpStats& warp_stats(const Origin& origin) {
    return stats_.warps[origin.warp < 0 ? 0 : origin.warp];
  }
  Random& random() { return random_; }
  uint64_t now() const { return now_; }
  Dim3 grid() const { return grid_; }
  Dim3 block() const { return block_; }
  const std::vector<uint8_t>& params() const { return params_; }

  // Hands over an operation that finishes later. Operations with the same non-zero queue finish in
  // the order of submission, others in any order. origin is the warp's running instruction.
  void submit(Warp& warp, std::unique_ptr<AsyncOp> op, uint64_t queue = 0);

  // Lets every group parked on `key` run its instruction again: of all warps, or of those that may
  // wait for it.
  void wake(WaitKey key);
  void wake(WaitKey key, Cluster& cluster);
  void wake(WaitKey key, Cta& cta);
  void wake(WaitKey key, Warp& warp);

  void note_deadline(uint64_t deadline) {
    next_deadline_ = deadline < next_deadline_ ? deadline : next_deadline_;
  }

  // Anything that another thread can observe happened (a store, an arrival, ...): the deadlock
  // detector starts afresh.
  void progress() { ++progress_; }

  // Cluster launch control: takes the next cluster that has not started out of the grid, false if
  // none is left.
  bool cancel_cluster(Dim3* first_cta);

  // Throws Error{kFault} with "line N: text", CTA, warp and message.
  [[noreturn]] void fault(const Origin& origin, const std::string& message);
  // A breach of a rule: a fault, a warning or nothing, as the settings say.
  void report(Rule rule, const Origin& origin, const std::string& message);
  bool watches(Rule rule) const { return config_.rules.on(rule); }
  std::vector<Warning>& warnings() { return warnings_; }
  Races& races() { return races_; }
  // "0x430" with the variable that lies there, if one does: "0x430 ('buf'+0x30)".
  std::string shared_text(uint32_t offset) const;

  // Held by read-modify-writes of global memory, whose other accesses hardware orders as well.
  std::unique_lock<std::mutex> lock_memory() {
    return clusters_.shared() ? std::unique_lock(clusters_.memory) : std::unique_lock<std::mutex>();
  }
  // A strong access: as this machine orders its own.
  void fence_memory() {
    if (clusters_.shared()) std::atomic_thread_fence(std::memory_order_seq_cst);
  }
  void print(const std::string& text);

  bool tracing() const { return config_.trace != nullptr; }
  void trace(const TraceEvent& event) {
    if (config_.trace != nullptr) config_.trace->event(event);
  }
  // Fills cta, sm, warp, line and name from the origin.
  TraceEvent trace_event(TraceEvent::Kind kind, const Origin& origin) const;

  // --- For launch()
  void run(Dim3 grid, Dim3 block, Dim3 cluster, size_t dynamic_shared, std::vector<uint8_t> params);

  std::unique_ptr<Extension> tensor;  // for cc/emulator/tensor
  // Set by cc/emulator/tensor when it creates state.
  CtaExitHook cta_exit_hook = nullptr;
  LaneExitHook lane_exit_hook = nullptr;

 private:
  friend class Warp;
  struct Pending {
    std::unique_ptr<AsyncOp> op;
    uint64_t queue;
  };

  void validate();
  void prepare();
  void start_clusters();
  void start_cluster(uint64_t index);
  void start_warp(Cta& cta, uint32_t index);
  void retire(Cluster& cluster);
  void report_progress();
  Cluster& choose_cluster();
  void add_ready(Warp& warp);
  void run_warp(Cluster& cluster, size_t slot);
  void step_async();
  void wake_expired();
  bool wake_earliest();
  void wake_groups(WaitKey key, Warp& warp);
  void make_ready(Warp& warp, LaneGroup& group, bool timed_out);
  void warp_exited(Warp& warp);
  void operation_done(Cta& cta);
  [[noreturn]] void deadlock(const char* what);
  void await_others(const char* what);
  bool nothing_happens(Warp& warp);
  void no_longer_stale();
  std::string describe_waits() const;
  std::string report_text(const Origin& origin, const std::string& message, const char* rule) const;

  GlobalMemory& memory_;
  const Kernel& kernel_;
  LaunchConfig config_;
  Stats stats_;
  std::vector<Warning> warnings_;
  Races races_;
  Random random_;
  Dim3 grid_, block_, cluster_dim_;
  std::vector<uint8_t> params_;
  size_t dynamic_shared_ = 0;
  uint32_t shared_bytes_ = 0;

  uint64_t now_ = 0;
  uint64_t progress_ = 0;
  uint64_t seen_progress_ = 0, quiet_since_ = 0;  // progress_ has been so since then
  LivelockWatch livelock_;
  uint64_t watched_progress_ = 0;  // when livelock_ began
  uint64_t next_look_ = 0;         // by livelock_
  uint64_t next_deadline_ = ~uint64_t{0};
  // Long between reports, so that a kernel which never ends can be interrupted at little cost.
  static constexpr uint64_t kReportTicks = uint64_t{1} << 20;
  uint64_t next_report_ = 0;
  std::vector<Sm> sms_;
  uint32_t min_quantum_ = 16,
           spread_quantum_ = 240;  // warp instructions before another warp may run
  Grid& clusters_;
  uint32_t worker_;
  bool stale_ = false;  // counted in clusters_.stale
  int looks_ = 0;       // again, while all are
  uint64_t total_clusters_ = 0;
  std::vector<std::unique_ptr<Cluster>> resident_;
  std::vector<Warp*> warps_;     // all live ones
  std::vector<Cluster*> ready_;  // those with ready warps
  Cluster* near_ = nullptr;      // the one whose warps run, until near_until_
  uint64_t near_until_ = 0;
  std::vector<Pending> free_ops_;  // queue 0
  struct Queue {
    uint64_t id;
    std::deque<std::unique_ptr<AsyncOp>> ops;
  };
  std::vector<std::unique_ptr<Queue>> queues_;               // ordered ones, never empty
  std::vector<std::unique_ptr<uint32_t[]>> register_files_;  // for reuse
};

}  // namespace bwgemm::emulator
