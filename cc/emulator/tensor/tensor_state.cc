#include "emulator/tensor/tensor_state.h"

#include "emulator/tensor/bulk_group.h"

namespace bwgemm::emulator {
namespace {

template <class T>
T& extension(std::unique_ptr<Extension>& slot) {
  if (!slot) slot = std::make_unique<T>();
  return static_cast<T&>(*slot);
}

// A bulk store reads shared memory until its thread has waited for its group.
void report_unwaited_stores(Warp& warp, uint32_t mask) {
  if (!warp.tensor || !warp.launch().watches(Rule::kBulkExit)) return;
  for_lanes(mask, [&](int lane) {
    if (!tensor_of(warp).bulk[lane].empty()) {
      warp.report(Rule::kBulkExit,
                  "exits while bulk stores that it has issued may still read shared memory "
                  "(cp.async.bulk.wait_group is missing)");
    }
  });
}

// PTX ISA 9.7.16.7: all allocated tensor memory must be deallocated before the kernel exits.
void report_leak(Cta& cta) {
  const int columns = tmem_of(cta).allocated_columns(&cta);
  if (columns == 0) return;
  cta.launch().fault({&cta, -1, 0, ""},
                     "CTA exited with " + std::to_string(columns) +
                         " columns of tensor memory still allocated (tcgen05.dealloc is missing)");
}

// Reports an access of tensor memory that is not ordered after earlier ones, and remembers it.
void check_order(Launch& launch, TensorMemory& memory, const TensorMemory::Past& now,
                 const Origin& origin) {
  const Warp& issuer = *origin.cta->warps()[origin.warp];
  std::vector<TensorMemory::Past>& past = memory.past();
  for (const TensorMemory::Past& before : past) {
    if (!(now.writes || before.writes) || !before.region.overlaps(now.region)) continue;
    // The tensor core keeps the order of what threads issue that are in order themselves.
    if (now.in_pipe && before.in_pipe && launch.races().issued_in_order(issuer, before.issued))
      continue;
    const Races::Order order = launch.races().tensor_order(issuer, before.stamp);
    if (order == Races::Order::kYes) continue;
    const std::string what =
        format("%s tensor memory (%s) and the %s of %s", now.writes ? "write of" : "read of",
               now.region.text().c_str(), before.writes ? "write" : "read",
               launch.races().describe(before.stamp).c_str());
    if (order == Races::Order::kNo) {
      launch.report(Rule::kTensorRace, origin, what + ": no synchronisation orders them");
    } else if (order == Races::Order::kUnheard) {
      launch.report(Rule::kLaneWait, origin, what + ", " + Races::kUnheard);
    } else {
      launch.report(Rule::kTensorFence, origin,
                    what +
                        ": tcgen05.fence::before_thread_sync there or ::after_thread_sync here "
                        "is missing");
    }
  }
  past.erase(std::remove_if(past.begin(), past.end(),
                            [&](const TensorMemory::Past& before) {
                              const bool same = before.stamp.actor == now.stamp.actor &&
                                                before.stamp.cluster == now.stamp.cluster &&
                                                before.writes == now.writes;
                              return (same || now.writes) && now.region.covers(before.region);
                            }),
             past.end());
  past.push_back(now);
}

}  // namespace

void Holds::read_shared(Launch& launch, Cta& cta, const std::vector<ByteRange>& ranges,
                        const Origin& origin, const Stamp& stamp) {
  for (const ByteRange& range : ranges) {
    if (!cta.shared().contains(range.begin, range.bytes)) {
      launch.fault(origin, format("operand outside the shared memory of CTA rank %u: offset 0x%x, "
                                  "%u bytes, size 0x%x",
                                  cta.rank(), range.begin, range.bytes, cta.shared().size()));
    }
    cta.shared().begin_async_read(launch, range.begin, range.bytes, origin, stamp);
    shared_.push_back({&cta, range, origin.line});
  }
}

void Holds::access_tmem(Launch& launch, Cta& cta, const TmemRegion& region, bool writes,
                        bool in_pipe, const Origin& origin, const Stamp& stamp, bool accumulator) {
  TensorMemory& memory = tmem_of(cta);
  const std::string problem = memory.check(region, &cta);
  if (!problem.empty()) launch.fault(origin, problem);
  const TensorMemory::Pending* other = memory.conflict(region, writes, in_pipe, accumulator);
  // Of two warps that nothing orders, the wait is not what is missing.
  if (launch.races().on() && (other == nullptr || !other->in_pipe || in_pipe))
    check_order(launch, memory,
                {region, writes, in_pipe, stamp,
                 origin.cta->warps()[origin.warp]->history.stamp(origin.line)},
                origin);
  if (other != nullptr) {
    launch.report(Rule::kTensorHazard, origin,
                  std::string(writes ? "write to" : "read of") + " tensor memory (" +
                      region.text() + ") while " + other->text() + " " +
                      (other->writes ? "writes" : "reads") + " it (" + other->region.text() +
                      "): its completion has not been waited for");
  }
  if (!launch.watches(Rule::kTensorHazard)) return;
  tmem_.push_back({&memory, memory.begin_access({region, writes, in_pipe, origin.name, origin.line,
                                                 &cta, accumulator})});
}

void check_free(Warp& warp, Cta& cta, const TmemRegion& region) {
  Races& races = warp.launch().races();
  if (!races.on()) return;
  for (const TensorMemory::Past& before : tmem_of(cta).past()) {
    if (!before.region.overlaps(region) ||
        races.tensor_order(warp, before.stamp) != Races::Order::kNo)
      continue;
    warp.report(Rule::kTensorRace,
                format("frees tensor memory (%s) and the %s of %s: no synchronisation orders them",
                       region.text().c_str(), before.writes ? "write" : "read",
                       races.describe(before.stamp).c_str()));
    return;
  }
}

void Holds::take(Holds&& other) {
  shared_.insert(shared_.end(), other.shared_.begin(), other.shared_.end());
  tmem_.insert(tmem_.end(), other.tmem_.begin(), other.tmem_.end());
  other.shared_.clear();
  other.tmem_.clear();
}

void Holds::release() {
  for (const Shared& s : shared_)
    s.cta->shared().end_async_read(s.range.begin, s.range.bytes, s.line);
  for (const Tmem& t : tmem_) t.memory->end_access(t.ticket);
  shared_.clear();
  tmem_.clear();
}

TensorMemory& tmem_of(Cta& cta) {
  cta.launch().cta_exit_hook = report_leak;
  return extension<SmTensor>(cta.sm().tensor).memory;
}

CtaTensor& tensor_of(Cta& cta) { return extension<CtaTensor>(cta.tensor); }

ClusterTensor& tensor_of(Cluster& cluster) {
  auto& state = extension<ClusterTensor>(cluster.tensor);
  if (state.pairs.empty()) state.pairs.resize((cluster.size() + 1) / 2);
  return state;
}

WarpTensor& tensor_of(Warp& warp) {
  auto& state = extension<WarpTensor>(warp.tensor);
  if (state.uncommitted.empty()) {
    state.uncommitted.resize(kWarpSize);
    state.bulk.resize(kWarpSize);
    state.bulk_commits.resize(kWarpSize);
    state.tensor_commits.resize(kWarpSize);
    warp.launch().lane_exit_hook = report_unwaited_stores;
  }
  return state;
}

namespace {

Stamp lane_queue(Warp& warp, int lane, Races::Queue kind, uint32_t clock) {
  Races& races = warp.launch().races();
  if (!races.on()) return {};
  return races.queue(warp.cta().cluster(), kind, warp.history.actor, static_cast<uint32_t>(lane),
                     clock, warp.origin().line);
}

}  // namespace

Stamp tensor_reads(Warp& warp, int lane) {
  return lane_queue(warp, lane, Races::Queue::kTensorPipe,
                    tensor_of(warp).tensor_commits[lane] + 1);
}

Stamp bulk_reads(Warp& warp, int lane) {
  return lane_queue(warp, lane, Races::Queue::kBulkRead, tensor_of(warp).bulk_commits[lane] + 1);
}

Stamp bulk_writes(Warp& warp, int lane, bool reduces) {
  Stamp stamp =
      lane_queue(warp, lane, Races::Queue::kBulkWrite, tensor_of(warp).bulk_commits[lane] + 1);
  stamp.flags |= reduces ? kStrong : kBulkStore;
  return stamp;
}

void learn_bulk(Warp& warp, int lane, uint32_t allowed, bool reads_only) {
  const uint32_t commits = tensor_of(warp).bulk_commits[lane];
  if (!warp.launch().races().on() || commits <= allowed) return;
  for (const Races::Queue kind : {Races::Queue::kBulkRead, Races::Queue::kBulkWrite}) {
    if (reads_only && kind == Races::Queue::kBulkWrite) continue;
    const Stamp done = lane_queue(warp, lane, kind, commits - allowed);
    warp.launch().races().learn(warp, 1u << lane, done);
  }
}

void use_cta_group(Warp& warp, int cta_group) {
  int& used = extension<LaunchTensor>(warp.launch().tensor).cta_group;
  if (used == 0) used = cta_group;
  if (used != cta_group) {
    warp.fault(
        "cta_group::%d in a kernel that has used cta_group::%d: all tcgen05 instructions "
        "must agree",
        cta_group, used);
  }
}

CtaSet cta_set(Warp& warp, int cta_group) {
  use_cta_group(warp, cta_group);
  CtaSet set;
  Cta& own = warp.cta();
  set.ctas[0] = &own;
  if (cta_group == 1) return set;
  Cluster& cluster = own.cluster();
  const uint32_t even = own.rank() & ~1u;
  if (even + 1 >= cluster.size()) {
    warp.fault("cta_group::2 needs a CTA pair, but CTA rank %u of a cluster of %u has no peer",
               own.rank(), cluster.size());
  }
  set.ctas[0] = &cluster.cta(even);
  set.ctas[1] = &cluster.cta(even + 1);
  set.count = 2;
  if (&set.ctas[0]->sm() == &set.ctas[1]->sm()) {
    warp.fault("the CTAs of a pair run on the same SM: the launch needs more SMs");
  }
  return set;
}

uint64_t tensor_pipe(const CtaSet& set) {
  return reinterpret_cast<uintptr_t>(&tmem_of(*set.ctas[0]));
}

uint32_t uniform(Warp& warp, Row row, uint32_t mask, const char* what) {
  const uint32_t* values = warp.r32(row);
  const uint32_t value = values[first_lane(mask)];
  for_lanes(mask, [&](int lane) {
    if (values[lane] != value) {
      warp.fault("%s differs between lanes (0x%x and 0x%x)", what, value, values[lane]);
    }
  });
  return value;
}

}  // namespace bwgemm::emulator
