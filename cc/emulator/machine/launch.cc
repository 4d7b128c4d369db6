#include "emulator/machine/launch.h"

#include <algorithm>
#include <cstring>

namespace bwgemm::emulator {
namespace {

constexpr uint32_t kMaxThreadsPerSm = 2048;
constexpr uint32_t kMaxCtasPerSm = 32;
// After this many wake-ups without any visible effect, and nothing else to run, waiting in a loop counts as a deadlock.
constexpr uint64_t kStaleWakeups = 4096;
// Instructions that a warp executes in a row without all its lanes before its groups take turns.
constexpr uint32_t kPatience = 1024;

uint32_t warps_of(uint32_t threads) { return (threads + kWarpSize - 1) / kWarpSize; }

std::string dims(Dim3 d) { return format("(%u,%u,%u)", d.x, d.y, d.z); }

}  // namespace

Launch::Launch(GlobalMemory& memory, const Kernel& kernel, const LaunchConfig& config)
    : memory_(memory), kernel_(kernel), config_(config), random_(config.seed) {}

Launch::~Launch() = default;

// ---- Errors

void Launch::fault(const Origin& origin, const std::string& message) {
  std::string text;
  if (origin.line > 0) {
    std::string_view source = kernel_.module->line_text(origin.line);
    while (!source.empty() && (source.front() == ' ' || source.front() == '\t')) source.remove_prefix(1);
    text = format("line %d: %s: %s", origin.line, message.c_str(), std::string(source.substr(0, 160)).c_str());
  } else {
    text = message;
  }
  if (origin.cta != nullptr) text += format(" [CTA %s", dims(origin.cta->id()).c_str()) + (origin.warp >= 0 ? format(", warp %d]", origin.warp) : "]");
  throw Error(ErrorKind::kFault, origin.line, text);
}

std::string Launch::describe_waits() const {
  std::string text;
  int shown = 0, hidden = 0;
  for (const Warp* warp : warps_) {
    for (const LaneGroup& g : warp->groups_) {
      if (shown == 48) {
        ++hidden;
        continue;
      }
      ++shown;
      const Instr& in = kernel_.code[g.pc];
      std::string what;
      if (g.state == GroupState::kConverging) {
        what = format("waits for lanes 0x%08x to arrive", warp->live_ & ~g.mask);
      } else if (g.state == GroupState::kWaiting) {
        what = g.wait.describe != nullptr ? "waits for " + g.wait.describe(*warp, g.wait) : "waits";
      } else {
        what = "runs";
      }
      text += format("\n  CTA %s rank %u warp %u lanes 0x%08x line %d %s: %s", dims(warp->cta_->id_).c_str(), warp->cta_->rank_, warp->index_,
                     g.mask, in.line, in.name, what.c_str());
    }
  }
  if (hidden > 0) text += format("\n  and %d more", hidden);
  return text;
}

void Launch::deadlock() {
  int line = 0;
  if (!warps_.empty() && !warps_.front()->groups_.empty()) line = kernel_.code[warps_.front()->groups_.front().pc].line;
  throw Error(ErrorKind::kDeadlock, line, "deadlock: no warp can continue and no asynchronous operation is in flight" + describe_waits());
}

TraceEvent Launch::trace_event(TraceEvent::Kind kind, const Origin& origin) const {
  TraceEvent e;
  e.kind = kind;
  e.name = origin.name;
  e.line = origin.line;
  e.warp = origin.warp;
  if (origin.cta != nullptr) {
    e.cta = origin.cta->linear_;
    e.sm = origin.cta->sm_->index;
  }
  e.begin = e.end = now_;
  return e;
}

// ---- Asynchronous operations

void Launch::submit(Warp& warp, std::unique_ptr<AsyncOp> op, uint64_t queue) {
  const Origin origin = warp.origin();
  op->origin = origin;
  op->submitted = now_;
  ++warp.cta_->cluster_->pending_async_;
  ++stats_.async_operations;
  progress();
  if (queue == 0) {
    free_ops_.push_back({std::move(op), 0});
    return;
  }
  for (auto& known : queues_) {
    if (known->id == queue) {
      known->ops.push_back(std::move(op));
      return;
    }
  }
  queues_.push_back(std::make_unique<Queue>());
  queues_.back()->id = queue;
  queues_.back()->ops.push_back(std::move(op));
}

void Launch::step_async() {
  const uint32_t choices = static_cast<uint32_t>(free_ops_.size() + queues_.size());
  const uint32_t pick = random_.below(choices);
  const bool free = pick < free_ops_.size();
  const size_t slot = free ? pick : pick - free_ops_.size();
  AsyncOp& op = free ? *free_ops_[slot].op : *queues_[slot]->ops.front();
  now_ += 2;
  progress();
  if (!op.step(*this)) return;
  if (config_.trace != nullptr) {
    TraceEvent event = trace_event(TraceEvent::Kind::kAsync, op.origin);
    event.begin = op.submitted;
    event.arg0 = op.trace_arg;
    trace(event);
  }
  // step() may have woken warps, which cannot submit here, so the slots are still right.
  Cta& cta = *op.origin.cta;
  if (free) {
    free_ops_[slot] = std::move(free_ops_.back());
    free_ops_.pop_back();
  } else {
    queues_[slot]->ops.pop_front();
    if (queues_[slot]->ops.empty()) {
      queues_[slot] = std::move(queues_.back());
      queues_.pop_back();
    }
  }
  operation_done(cta);
}

void Launch::operation_done(Cta& cta) {
  Cluster& cluster = *cta.cluster_;
  if (--cluster.pending_async_ == 0 && cluster.live_ctas_ == 0) retire(cluster);
}

// ---- Waiting and waking

void Launch::make_ready(Warp& warp, LaneGroup& g, bool timed_out) {
  stats_.warps[warp.index_].wait_ticks += now_ - g.since;
  if (config_.trace != nullptr && now_ > g.since) {
    Origin origin = warp.origin();
    const Instr& in = kernel_.code[g.pc];
    origin.line = in.line;
    origin.name = g.wait.name;
    TraceEvent event = trace_event(TraceEvent::Kind::kWait, origin);
    event.begin = g.since;
    event.arg0 = g.wait.a;
    event.arg1 = g.wait.b;
    trace(event);
  }
  if (!warp.any_ready()) ready_.push_back(&warp);
  g.state = GroupState::kReady;
  g.timed_out = timed_out;
}

void Launch::wake(WaitKey key) {
  progress();
  for (Warp* warp : warps_) {
    for (LaneGroup& g : warp->groups_) {
      if (g.state == GroupState::kWaiting && g.key == key) make_ready(*warp, g, false);
    }
  }
}

void Launch::wake_expired() {
  next_deadline_ = ~uint64_t{0};
  for (Warp* warp : warps_) {
    for (LaneGroup& g : warp->groups_) {
      if (g.state != GroupState::kWaiting || g.deadline == 0) continue;
      if (g.deadline <= now_) {
        make_ready(*warp, g, true);
      } else {
        note_deadline(g.deadline);
      }
    }
  }
}

bool Launch::wake_earliest() {
  Warp* chosen = nullptr;
  size_t chosen_group = 0;
  uint64_t earliest = ~uint64_t{0};
  for (Warp* warp : warps_) {
    for (size_t i = 0; i < warp->groups_.size(); ++i) {
      const LaneGroup& g = warp->groups_[i];
      if (g.state != GroupState::kWaiting || g.deadline == 0 || g.deadline >= earliest) continue;
      earliest = g.deadline;
      chosen = warp;
      chosen_group = i;
    }
  }
  if (chosen == nullptr) return false;
  now_ = std::max(now_, earliest);
  make_ready(*chosen, chosen->groups_[chosen_group], true);
  return true;
}

// ---- Starting and finishing CTAs

bool Launch::cancel_cluster(Dim3* first_cta) {
  if (next_cluster_ >= total_clusters_) return false;
  const uint64_t index = next_cluster_++;
  const uint64_t nx = grid_.x / cluster_dim_.x, ny = grid_.y / cluster_dim_.y;
  *first_cta = {static_cast<uint32_t>(index % nx) * cluster_dim_.x, static_cast<uint32_t>(index / nx % ny) * cluster_dim_.y,
                static_cast<uint32_t>(index / nx / ny) * cluster_dim_.z};
  ++stats_.clusters_cancelled;
  ++finished_clusters_;
  return true;
}

void Launch::start_clusters() {
  const uint32_t size = static_cast<uint32_t>(cluster_dim_.count());
  while (next_cluster_ < total_clusters_) {
    uint32_t free = 0;
    for (const Sm& sm : sms_) free += sm.free_slots > 0;
    if (free < size) return;
    start_cluster(next_cluster_++);
  }
}

void Launch::start_cluster(uint64_t index) {
  auto owned = std::make_unique<Cluster>();
  Cluster& cluster = *owned;
  const uint64_t nx = grid_.x / cluster_dim_.x, ny = grid_.y / cluster_dim_.y;
  cluster.id_ = {static_cast<uint32_t>(index % nx), static_cast<uint32_t>(index / nx % ny), static_cast<uint32_t>(index / nx / ny)};
  cluster.first_cta_ = {cluster.id_.x * cluster_dim_.x, cluster.id_.y * cluster_dim_.y, cluster.id_.z * cluster_dim_.z};
  resident_.push_back(std::move(owned));
  const uint32_t size = static_cast<uint32_t>(cluster_dim_.count());
  // Distinct SMs, starting at a random one.
  uint32_t sm = random_.below(static_cast<uint32_t>(sms_.size()));
  for (uint32_t rank = 0; rank < size; ++rank) {
    auto cta = std::make_unique<Cta>();
    while (sms_[sm].free_slots == 0) sm = (sm + 1) % static_cast<uint32_t>(sms_.size());
    --sms_[sm].free_slots;
    cta->launch_ = this;
    cta->cluster_ = &cluster;
    cta->sm_ = &sms_[sm];
    sm = (sm + 1) % static_cast<uint32_t>(sms_.size());
    cta->rank_ = rank;
    const uint32_t x = rank % cluster_dim_.x, y = rank / cluster_dim_.x % cluster_dim_.y, z = rank / cluster_dim_.x / cluster_dim_.y;
    cta->id_ = {cluster.first_cta_.x + x, cluster.first_cta_.y + y, cluster.first_cta_.z + z};
    cta->linear_ = cta->id_.x + grid_.x * (cta->id_.y + grid_.y * cta->id_.z);
    cta->threads_ = static_cast<uint32_t>(block_.count());
    cta->shared_.reset(shared_bytes_, config_.checks);
    cluster.ctas_.push_back(std::move(cta));
  }
  cluster.live_ctas_ = size;
  stats_.ctas += size;
  for (uint32_t rank = 0; rank < size; ++rank) {
    Cta& cta = *cluster.ctas_[rank];
    const uint32_t warps = warps_of(cta.threads_);
    cta.live_warps_ = warps;
    for (uint32_t i = 0; i < warps; ++i) start_warp(cta, i);
  }
  progress();
}

void Launch::start_warp(Cta& cta, uint32_t index) {
  cta.warps_.push_back(std::make_unique<Warp>());
  Warp& w = *cta.warps_.back();
  w.launch_ = this;
  w.cta_ = &cta;
  w.kernel_ = &kernel_;
  w.index_ = index;
  w.cluster_warp_ = cta.rank_ * warps_of(cta.threads_) + index;
  const uint32_t first = index * kWarpSize;
  const uint32_t lanes = std::min<uint32_t>(kWarpSize, cta.threads_ - first);
  w.existing_ = w.live_ = lanes == kWarpSize ? kFullMask : (1u << lanes) - 1;
  const size_t words = size_t{kernel_.rows} * kWarpSize;
  if (!register_files_.empty()) {
    w.storage_ = std::move(register_files_.back());
    register_files_.pop_back();
  } else {
    w.storage_.reset(new uint32_t[words + kernel_.preds]);
  }
  w.regs_ = w.storage_.get();
  w.preds_ = w.regs_ + words;
  // Uninitialised registers hold a pattern, the same in every run.
  std::memset(w.regs_, 0xCD, words * sizeof(uint32_t));
  std::memset(w.preds_, 0, kernel_.preds * sizeof(uint32_t));
  if (kernel_.local_bytes > 0) {
    w.local_.reset(new uint8_t[size_t{kernel_.local_bytes} * kWarpSize]);
    std::memset(w.local_.get(), 0xCD, size_t{kernel_.local_bytes} * kWarpSize);
  }

  const Dim3 c = cta.id_, n = grid_, b = block_, k = cluster_dim_;
  const uint32_t size = static_cast<uint32_t>(k.count());
  const Dim3 in_cluster{c.x % k.x, c.y % k.y, c.z % k.z};
  for (const WarpInit& init : kernel_.inits) {
    for (int lane = 0; lane < kWarpSize; ++lane) {
      const uint32_t thread = first + static_cast<uint32_t>(lane);
      uint64_t value = init.value;
      switch (init.what) {
        case WarpValue::kConstant: break;
        case WarpValue::kSharedAddress: value += uint64_t{cta.rank_} << kSharedRankShift; break;
        case WarpValue::kGenericShared: value += kSharedWindow + (uint64_t{cta.rank_} << kSharedRankShift); break;
        case WarpValue::kTidX: value = thread % b.x; break;
        case WarpValue::kTidY: value = thread / b.x % b.y; break;
        case WarpValue::kTidZ: value = thread / b.x / b.y; break;
        case WarpValue::kNtidX: value = b.x; break;
        case WarpValue::kNtidY: value = b.y; break;
        case WarpValue::kNtidZ: value = b.z; break;
        case WarpValue::kCtaidX: value = c.x; break;
        case WarpValue::kCtaidY: value = c.y; break;
        case WarpValue::kCtaidZ: value = c.z; break;
        case WarpValue::kNctaidX: value = n.x; break;
        case WarpValue::kNctaidY: value = n.y; break;
        case WarpValue::kNctaidZ: value = n.z; break;
        case WarpValue::kLaneid: value = static_cast<uint64_t>(lane); break;
        case WarpValue::kWarpid: value = index; break;
        case WarpValue::kNwarpid: value = warps_of(cta.threads_); break;
        case WarpValue::kSmid: value = cta.sm_->index; break;
        case WarpValue::kNsmid: value = sms_.size(); break;
        case WarpValue::kGridid: value = 1; break;
        case WarpValue::kClusteridX: value = cta.cluster_->id_.x; break;
        case WarpValue::kClusteridY: value = cta.cluster_->id_.y; break;
        case WarpValue::kClusteridZ: value = cta.cluster_->id_.z; break;
        case WarpValue::kNclusteridX: value = n.x / k.x; break;
        case WarpValue::kNclusteridY: value = n.y / k.y; break;
        case WarpValue::kNclusteridZ: value = n.z / k.z; break;
        case WarpValue::kClusterCtaidX: value = in_cluster.x; break;
        case WarpValue::kClusterCtaidY: value = in_cluster.y; break;
        case WarpValue::kClusterCtaidZ: value = in_cluster.z; break;
        case WarpValue::kClusterNctaidX: value = k.x; break;
        case WarpValue::kClusterNctaidY: value = k.y; break;
        case WarpValue::kClusterNctaidZ: value = k.z; break;
        case WarpValue::kClusterCtarank: value = cta.rank_; break;
        case WarpValue::kClusterNctarank: value = size; break;
        case WarpValue::kIsExplicitCluster: value = size > 1; break;
        case WarpValue::kLanemaskEq: value = 1u << lane; break;
        case WarpValue::kLanemaskLe: value = (2u << lane) - 1; break;
        case WarpValue::kLanemaskLt: value = (1u << lane) - 1; break;
        case WarpValue::kLanemaskGe: value = ~((1u << lane) - 1); break;
        case WarpValue::kLanemaskGt: value = ~((2u << lane) - 1); break;
        case WarpValue::kDynamicSmemSize: value = dynamic_shared_; break;
        case WarpValue::kTotalSmemSize:
        case WarpValue::kAggrSmemSize: value = shared_bytes_; break;
      }
      if (init.bits == 64) {
        w.r64(init.row)[lane] = value;
      } else {
        w.r32(init.row)[lane] = static_cast<uint32_t>(value);
      }
    }
  }
  LaneGroup all;
  all.mask = w.live_;
  w.groups_.push_back(all);
  warps_.push_back(&w);
  ready_.push_back(&w);
}

void Launch::warp_exited(Warp& w) {
  warps_.erase(std::find(warps_.begin(), warps_.end(), &w));
  register_files_.push_back(std::move(w.storage_));
  w.regs_ = nullptr;
  Cta& cta = *w.cta_;
  progress();
  --cta.live_warps_;
  // An arrival at the cluster barrier without a wait: exited threads are no longer expected, so they must not be counted either.
  Cluster& group = *cta.cluster_;
  if (w.cluster_arrived_ != 0 && w.cluster_generation_ == group.barrier_generation) {
    group.barrier_arrived -= std::min<uint32_t>(group.barrier_arrived, kWarpSize);
  }
  // A barrier of all threads may now be complete: its waiters look again.
  for (uint32_t id = 0; id < 16; ++id) wake(wait_key(&cta.barriers_[id]));
  wake(wait_key(cta.cluster_));
  if (cta.live_warps_ > 0) return;
  if (cta_exit_hook != nullptr) cta_exit_hook(cta);
  Cluster& cluster = *cta.cluster_;
  if (--cluster.live_ctas_ == 0 && cluster.pending_async_ == 0) retire(cluster);
}

void Launch::retire(Cluster& cluster) {
  for (auto& cta : cluster.ctas_) ++cta->sm_->free_slots;
  ++finished_clusters_;
  resident_.erase(std::find_if(resident_.begin(), resident_.end(), [&](const auto& c) { return c.get() == &cluster; }));
  if (config_.progress && !config_.progress(finished_clusters_, total_clusters_)) {
    throw Error(ErrorKind::kLaunch, 0, "launch stopped by its progress callback");
  }
}

// ---- Running

void Launch::run_warp(size_t slot) {
  Warp& w = *ready_[slot];
  uint32_t quantum = min_quantum_ + random_.below(spread_quantum_);
  const Instr* const code = kernel_.code.data();
  // The lanes that are behind run first, so that groups meet again. When that has kept others waiting for long, any group runs for a
  // while: the one that is behind may be spinning on what another has to do.
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
      ++now_;
      ++executed;
      lanes += static_cast<uint64_t>(__builtin_popcount(mask));
      if (mask == 0) {
        ++g.pc;
        g.token = 0;
      } else {
        w.current_instr_ = &in;
        switch (in.exec(w, in, mask)) {
          case Step::kNext: {
            LaneGroup& after = w.groups_[w.current_];
            ++after.pc;
            after.token = 0;
            after.timed_out = false;
            break;
          }
          case Step::kJump: break;
          case Step::kBlock: reselect = true; break;
          case Step::kYield: {
            LaneGroup& after = w.groups_[w.current_];
            ++after.pc;
            after.token = 0;
            after.timed_out = false;
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
    // `slot` may have moved: waking others appends to ready_ only.
    ready_[slot] = ready_.back();
    ready_.pop_back();
  }
  if (!alive) warp_exited(w);
}

void Launch::run(Dim3 grid, Dim3 block, Dim3 cluster, size_t dynamic_shared, std::vector<uint8_t> params) {
  grid_ = grid;
  block_ = block;
  cluster_dim_ = cluster;
  dynamic_shared_ = dynamic_shared;
  params_ = std::move(params);
  const uint64_t threads = block.count();
  const auto reject = [](const std::string& message) { throw Error(ErrorKind::kLaunch, 0, message); };
  if (grid.count() == 0 || threads == 0 || cluster.count() == 0) reject("grid, block and cluster dimensions must be positive");
  if (threads > 1024 || block.x > 1024 || block.y > 1024 || block.z > 64) reject(format("a block of %s has more than 1024 threads", dims(block).c_str()));
  if (grid.x > 0x7FFFFFFF || grid.y > 65535 || grid.z > 65535) reject(format("grid %s is too large", dims(grid).c_str()));
  if (kernel_.max_threads > 0 && threads > static_cast<uint64_t>(kernel_.max_threads)) {
    reject(format("a block of %llu threads, but the kernel allows %d (.maxntid)", static_cast<unsigned long long>(threads), kernel_.max_threads));
  }
  if (kernel_.required_ntid[0] > 0 && (block.x != static_cast<uint32_t>(kernel_.required_ntid[0]) ||
                                       block.y != static_cast<uint32_t>(kernel_.required_ntid[1]) ||
                                       block.z != static_cast<uint32_t>(kernel_.required_ntid[2]))) {
    reject(format("block %s, but the kernel requires (%d,%d,%d) (.reqntid)", dims(block).c_str(), kernel_.required_ntid[0],
                  kernel_.required_ntid[1], kernel_.required_ntid[2]));
  }
  if (kernel_.required_cluster[0] > 0 && (cluster.x != static_cast<uint32_t>(kernel_.required_cluster[0]) ||
                                          cluster.y != static_cast<uint32_t>(kernel_.required_cluster[1]) ||
                                          cluster.z != static_cast<uint32_t>(kernel_.required_cluster[2]))) {
    reject(format("cluster %s, but the kernel requires (%d,%d,%d) (.reqnctapercluster)", dims(cluster).c_str(), kernel_.required_cluster[0],
                  kernel_.required_cluster[1], kernel_.required_cluster[2]));
  }
  if (cluster.count() > 16) reject(format("cluster %s has more than 16 CTAs", dims(cluster).c_str()));
  if (grid.x % cluster.x != 0 || grid.y % cluster.y != 0 || grid.z % cluster.z != 0) {
    reject(format("grid %s is not a multiple of the cluster %s", dims(grid).c_str(), dims(cluster).c_str()));
  }
  if (params_.size() != kernel_.param_bytes) reject(format("%zu bytes of parameters, the kernel takes %u", params_.size(), kernel_.param_bytes));
  if (config_.sm_count < 1 || config_.sm_count > 4096) reject(format("sm_count %d is not between 1 and 4096", config_.sm_count));
  if (cluster.count() > static_cast<uint64_t>(config_.sm_count)) {
    reject(format("a cluster of %llu CTAs does not fit on %d SMs", static_cast<unsigned long long>(cluster.count()), config_.sm_count));
  }
  const size_t used = kernel_.static_shared_bytes - kSharedReserved + dynamic_shared;
  if (dynamic_shared > config_.shared_per_cta || used > config_.shared_per_cta) {
    reject(format("%zu bytes of shared memory per CTA, at most %zu allowed", used, config_.shared_per_cta));
  }
  shared_bytes_ = static_cast<uint32_t>(kernel_.static_shared_bytes + dynamic_shared);
  const uint32_t rounded = (shared_bytes_ + 127) / 128 * 128;
  const uint32_t threads_rounded = warps_of(static_cast<uint32_t>(threads)) * kWarpSize;
  const uint32_t slots = std::max<uint32_t>(
      1, std::min({static_cast<uint32_t>(config_.shared_per_sm / rounded), kMaxThreadsPerSm / threads_rounded, kMaxCtasPerSm}));
  sms_.resize(static_cast<size_t>(config_.sm_count));
  for (uint32_t i = 0; i < sms_.size(); ++i) {
    sms_[i].index = i;
    sms_[i].free_slots = slots;
  }
  stats_.warps.resize(warps_of(static_cast<uint32_t>(threads)));
  total_clusters_ = grid.count() / cluster.count();

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
      idle_progress = progress_;
      if (stale > kStaleWakeups || !wake_earliest()) deadlock();
    } else if (in_flight && random_.below(odds) == 0) {
      step_async();
    } else {
      run_warp(random_.below(static_cast<uint32_t>(ready_.size())));
      if (stats_.instructions > config_.step_limit) {
        throw Error(ErrorKind::kStepLimit, 0,
                    format("step limit: the kernel has not finished after %llu warp instructions", static_cast<unsigned long long>(config_.step_limit)) +
                        describe_waits());
      }
    }
  }
  stats_.ticks = now_;
}

}  // namespace bwgemm::emulator
