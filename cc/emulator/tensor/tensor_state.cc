#include "emulator/tensor/tensor_state.h"

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

}  // namespace

void Holds::read_shared(Launch& launch, Cta& cta, const std::vector<ByteRange>& ranges,
                        const Origin& origin) {
  for (const ByteRange& range : ranges) {
    if (!cta.shared().contains(range.begin, range.bytes)) {
      launch.fault(origin, format("operand outside the shared memory of CTA rank %u: offset 0x%x, "
                                  "%u bytes, size 0x%x",
                                  cta.rank(), range.begin, range.bytes, cta.shared().size()));
    }
    cta.shared().begin_async_read(launch, range.begin, range.bytes, origin);
    shared_.push_back({&cta, range, origin.line});
  }
}

void Holds::access_tmem(Launch& launch, Cta& cta, const TmemRegion& region, bool writes,
                        bool in_pipe, const Origin& origin) {
  TensorMemory& memory = tmem_of(cta);
  const std::string problem = memory.check(region, &cta);
  if (!problem.empty()) launch.fault(origin, problem);
  if (!launch.watches(Rule::kTensorHazard)) return;
  if (const TensorMemory::Pending* other = memory.conflict(region, writes, in_pipe)) {
    launch.report(Rule::kTensorHazard, origin,
                  std::string(writes ? "write to" : "read of") + " tensor memory (" +
                      region.text() + ") while " + other->text() + " " +
                      (other->writes ? "writes" : "reads") + " it (" + other->region.text() +
                      "): its completion has not been waited for");
  }
  tmem_.push_back(
      {&memory, memory.begin_access({region, writes, in_pipe, origin.name, origin.line, &cta})});
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
    warp.launch().lane_exit_hook = report_unwaited_stores;
  }
  return state;
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
