// What tensor instructions keep in the machine: tensor memory in each SM, rendezvous of CTA pairs,
// and per warp the asynchronous accesses that have been issued but not yet waited for.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "emulator/machine/launch.h"
#include "emulator/tensor/mma_core.h"
#include "emulator/tensor/tmem.h"

namespace bwgemm::emulator {

// Memory that asynchronous operations own. A hold lasts from the issue until the kernel has
// *observed* completion (commit -> mbarrier, wait_group, wait::st ...), not merely until the data
// has moved: code that relies on luck is reported whatever the seed.
class Holds {
 public:
  // These fault through `origin` where the access is illegal or races with one in flight.
  void read_shared(Launch& launch, Cta& cta, const std::vector<ByteRange>& ranges,
                   const Origin& origin, const Stamp& stamp);
  // `accumulator`: D of an MMA.
  void access_tmem(Launch& launch, Cta& cta, const TmemRegion& region, bool writes, bool in_pipe,
                   const Origin& origin, const Stamp& stamp, bool accumulator = false);
  void take(Holds&& other);
  void release();
  bool empty() const { return shared_.empty() && tmem_.empty(); }

 private:
  struct Shared {
    Cta* cta;
    ByteRange range;
    int32_t line;
  };
  struct Tmem {
    TensorMemory* memory;
    TensorMemory::Ticket ticket;
  };
  std::vector<Shared> shared_;
  std::vector<Tmem> tmem_;
};

// Reports accesses of tensor memory of `cta` that are not over for certain when `warp` frees it.
void check_free(Warp& warp, Cta& cta, const TmemRegion& region);

// Holds of committed groups in the order of commits, so that "wait for all but n" can release them.
class GroupHolds {
 public:
  Holds& open() { return open_; }
  bool empty() const {
    return open_.empty() && std::all_of(committed_.begin(), committed_.end(),
                                        [](const Holds& group) { return group.empty(); });
  }
  void commit() {
    committed_.push_back(std::move(open_));
    open_ = Holds{};
  }
  void release_all_but(size_t n) {
    while (committed_.size() > n) {
      committed_.front().release();
      committed_.pop_front();
    }
  }

 private:
  Holds open_;
  std::deque<Holds> committed_;
};

struct SmTensor : Extension {
  TensorMemory memory;
};

struct CtaTensor : Extension {
  std::vector<std::unique_ptr<Extension>> warpgroups;  // of wgmma.cc
  bool relinquished = false;  // tcgen05.relinquish_alloc_permit was executed
};

// tcgen05.alloc.cta_group::2 of the two CTAs of a pair meet here.
struct PairAllocation {
  int columns[2] = {0, 0};    // wanted; 0: that CTA has not arrived
  int granted[2] = {-1, -1};  // first column, until that CTA has taken it
};

struct ClusterTensor : Extension {
  std::vector<PairAllocation> pairs;
};

struct LaunchTensor : Extension {
  int cta_group = 0;  // of the first tcgen05 instruction; all must agree
};

struct WarpTensor : Extension {
  std::vector<Holds> uncommitted;        // per lane: tcgen05 operations since the last commit
  std::vector<GroupHolds> bulk;          // per lane: sources of bulk stores
  std::vector<uint32_t> bulk_commits;    // per lane: bulk groups
  std::vector<uint32_t> tensor_commits;  // per lane: tcgen05.commit
  uint32_t wgmma_issued = 0;
  std::deque<uint32_t> wgmma_commits;  // wgmma_issued at each commit that has not been waited for
  bool wgmma_fenced = false;           // a wgmma.fence was executed
  // Registers of wgmma: of each operation that has not been waited for, by group as above.
  std::vector<const void*> wgmma_open_rows;
  std::deque<std::vector<const void*>> wgmma_committed_rows;
  // Operands of wgmma in shared memory, by committed group. The warps of a warpgroup share each.
  std::vector<std::shared_ptr<Holds>> wgmma_open;
  std::deque<std::vector<std::shared_ptr<Holds>>> wgmma_committed;
  Holds loads;   // tcgen05.ld since wait::ld
  Holds stores;  // tcgen05.st since wait::st
  uint32_t stores_in_flight = 0;
  bool refused = false;  // has seen that clusterlaunchcontrol.try_cancel found no cluster
};

TensorMemory& tmem_of(Cta& cta);
CtaTensor& tensor_of(Cta& cta);
ClusterTensor& tensor_of(Cluster& cluster);
WarpTensor& tensor_of(Warp& warp);

// Stamp of what the lane issues to the tensor core before its next commit.
Stamp tensor_reads(Warp& warp, int lane);

// Records the use of a cta_group and faults where the kernel has used the other one.
void use_cta_group(Warp& warp, int cta_group);

// The CTAs a tcgen05 instruction works on: the executing one, or the pair, even rank first.
struct CtaSet {
  Cta* ctas[2] = {nullptr, nullptr};
  int count = 1;
};
CtaSet cta_set(Warp& warp, int cta_group);

// Asynchronous tcgen05 operations with this queue run in the order of issue (PTX ISA 9.7.16.6.2).
uint64_t tensor_pipe(const CtaSet& set);

// The value of a warp-uniform 32-bit operand; faults where active lanes disagree.
uint32_t uniform(Warp& warp, Row row, uint32_t mask, const char* what);

// Keys on which waiting warps are parked.
constexpr uint64_t kBulkKey = 0x62756c6b;
constexpr uint64_t kWgmmaKey = 0x77676d6d;
constexpr uint64_t kTmemStoreKey = 0x746d7374;

}  // namespace bwgemm::emulator
