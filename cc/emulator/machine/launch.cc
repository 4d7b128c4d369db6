#include "emulator/machine/launch.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace bwgemm::emulator {

Launch::Launch(GlobalMemory& memory, const Kernel& kernel, const LaunchConfig& config, Grid& grid,
               uint32_t worker)
    : memory_(memory),
      kernel_(kernel),
      config_(config),
      races_(*this),
      random_(config.seed + worker * uint64_t{0x9E3779B97F4A7C15}),
      clusters_(grid),
      worker_(worker) {}

Launch::~Launch() = default;

std::string Launch::report_text(const Origin& origin, const std::string& message,
                                const char* rule) const {
  std::string text;
  if (origin.line > 0) {
    text = format("line %d: %s: %s", origin.line, message.c_str(),
                  kernel_.module->quoted_line(origin.line).c_str());
    const std::string place = kernel_.module->source_text(origin.line);
    if (!place.empty()) text += " (" + place + ")";
  } else {
    text = message;
  }
  if (origin.cta != nullptr)
    text += format(" [CTA %s", to_string(origin.cta->id()).c_str()) +
            (origin.warp >= 0 ? format(", warp %d]", origin.warp) : "]");
  if (*rule != '\0') text += format(" [rule %s]", rule);
  return text;
}

void Launch::fault(const Origin& origin, const std::string& message) {
  throw Error(ErrorKind::kFault, origin.line, report_text(origin, message, ""));
}

void Launch::report(Rule rule, const Origin& origin, const std::string& message) {
  const char* name = info(rule).name;
  switch (config_.rules[rule]) {
    case Severity::kOff:
      return;
    case Severity::kError: {
      Error error(ErrorKind::kFault, origin.line, report_text(origin, message, name));
      error.rule = name;
      throw error;
    }
    case Severity::kWarning:
      break;
  }
  for (Warning& known : warnings_) {
    if (known.rule != rule || known.line != origin.line) continue;
    ++known.count;
    return;
  }
  warnings_.push_back({rule, origin.line, report_text(origin, message, name), 1});
}

std::string Launch::shared_text(uint32_t offset) const {
  for (const SharedSymbol& s : kernel_.shared_symbols) {
    if (offset < s.offset || offset - s.offset >= s.size) continue;
    if (offset == s.offset) return format("0x%x ('%s')", offset, s.name.c_str());
    return format("0x%x ('%s'+0x%x)", offset, s.name.c_str(), offset - s.offset);
  }
  return format("0x%x", offset);
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
      text += format("\n  CTA %s rank %u warp %u lanes 0x%08x line %d %s: %s",
                     to_string(warp->cta_->id_).c_str(), warp->cta_->rank_, warp->index_, g.mask,
                     in.line, in.name, what.c_str());
    }
  }
  if (hidden > 0) text += format("\n  and %d more", hidden);
  return text;
}

void Launch::deadlock(const char* what) {
  int line = 0;
  if (!warps_.empty() && !warps_.front()->groups_.empty())
    line = kernel_.code[warps_.front()->groups_.front().pc].line;
  std::string text = what;
  if (const uint64_t started = clusters_.next_cluster; started < total_clusters_) {
    text += format("; %llu of the grid's %llu clusters have not started, for want of room",
                   static_cast<unsigned long long>(total_clusters_ - started),
                   static_cast<unsigned long long>(total_clusters_));
  }
  throw Error(ErrorKind::kDeadlock, line, text + describe_waits());
}

void Launch::print(const std::string& text) {
  progress();
  std::lock_guard lock(clusters_.output);
  if (config_.print) {
    config_.print(text);
  } else {
    std::fwrite(text.data(), 1, text.size(), stdout);
  }
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
  // A timed wait counts as many polls: it takes as long.
  if (timed_out) {
    warp.polls_ += 128;
    warp.polled_ |= g.mask;
  }
  if (!warp.any_ready()) add_ready(warp);
  g.state = GroupState::kReady;
  g.timed_out = timed_out;
}

void Launch::wake(WaitKey key) {
  progress();
  for (Warp* warp : warps_) wake_groups(key, *warp);
}

void Launch::wake(WaitKey key, Cluster& cluster) {
  for (auto& cta : cluster.ctas_) wake(key, *cta);
}

void Launch::wake(WaitKey key, Cta& cta) {
  progress();
  for (auto& warp : cta.warps_) wake_groups(key, *warp);
}

void Launch::wake(WaitKey key, Warp& warp) {
  progress();
  wake_groups(key, warp);
}

void Launch::wake_groups(WaitKey key, Warp& warp) {
  for (LaneGroup& g : warp.groups_) {
    if (g.state == GroupState::kWaiting && g.key == key) make_ready(warp, g, false);
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

}  // namespace bwgemm::emulator
