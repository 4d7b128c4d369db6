// A warp: registers, groups of lanes that share a program counter, and what instructions may do to
// it.
#pragma once

#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "emulator/machine/async.h"
#include "emulator/machine/barrier.h"
#include "emulator/machine/instr.h"
#include "emulator/machine/memory.h"
#include "emulator/machine/race.h"

namespace bwgemm::emulator {

class Cta;
class Launch;
class Random;
class Warp;
struct Kernel;

constexpr int kWarpSize = 32;
inline uint32_t warps_of(uint32_t threads) { return (threads + kWarpSize - 1) / kWarpSize; }

// What a parked group waits for: `describe` writes it for the deadlock report, e.g. "mbarrier
// [0x430] phase 1, 3 of 4 arrivals, 1024 bytes".
struct WaitInfo {
  std::string (*describe)(const Warp& warp, const WaitInfo& info) = nullptr;
  const char* name = "wait";  // trace name, static storage
  Cta* cta = nullptr;         // of the object waited for
  uint64_t a = 0, b = 0, c = 0;
};

// Identity of what a group waits for. Waking by key only makes the instruction run again, so a
// collision is harmless.
using WaitKey = uint64_t;
inline WaitKey wait_key(const void* object, uint64_t sub = 0) {
  return (reinterpret_cast<uintptr_t>(object) ^ (sub * 0x9E3779B97F4A7C15ull)) | 1;
}

enum class GroupState : uint8_t { kReady, kWaiting, kConverging };

// Lanes that execute together.
struct LaneGroup {
  uint32_t mask = 0;
  uint32_t pc = 0;
  GroupState state = GroupState::kReady;
  bool timed_out = false;
  WaitKey key = 0;
  uint64_t deadline = 0;  // 0: none
  uint64_t token = 0;     // kept over re-executions of a blocking instruction, 0 on the first
  uint64_t since = 0;     // tick at which it was parked
  WaitInfo wait;
};

// State that a family keeps per warp, CTA, SM or launch. Created on first use by extension<T>() of
// those classes.
class Extension {
 public:
  virtual ~Extension() = default;
};

// cp.async instructions of a warp: so many issued, so many at each commit that has not been waited
// for, so many known to be over.
struct CpAsyncHistory {
  uint32_t issued = 0, waited = 0;
  std::deque<uint32_t> committed;
};

class Warp {
 public:
  // --- Registers. The pointer is to 32 lanes.
  uint32_t* r32(Row row) { return regs_ + size_t{row} * kWarpSize; }
  uint64_t* r64(Row row) { return reinterpret_cast<uint64_t*>(regs_ + size_t{row} * kWarpSize); }
  float* f32(Row row) { return reinterpret_cast<float*>(r32(row)); }
  double* f64(Row row) { return reinterpret_cast<double*>(r32(row)); }
  uint64_t* r128_lo(Row row) { return r64(row); }
  uint64_t* r128_hi(Row row) { return r64(row + 2); }
  // Lane mask of a source predicate (honours kPredNot).
  uint32_t pred(Pred p) const { return (p & kPredNot) ? ~preds_[p & ~kPredNot] : preds_[p]; }
  void set_pred(Pred p, uint32_t mask, uint32_t value) {
    if (p != kNoRow) preds_[p] = (preds_[p] & ~mask) | (value & mask);
  }

  // Addresses of 32 bits wrap around.
  uint64_t address(const Address& a, int lane) {
    if (a.row == kNoRow) return static_cast<uint64_t>(a.offset);
    if (a.wide) return r64(a.row)[lane] + static_cast<uint64_t>(a.offset);
    return r32(a.row)[lane] + static_cast<uint32_t>(a.offset);
  }

  // --- Memory. All fault (throw) on a bad address; `align` is in bytes.
  // Resolves a shared address of this CTA (cluster: of any CTA of the cluster). A generic address
  // inside the window works too.
  struct SharedRef {
    Cta* cta = nullptr;
    uint32_t offset = 0;
  };
  SharedRef shared(uint64_t address, uint32_t bytes, uint32_t align, bool cluster);
  uint8_t* global(uint64_t address, uint64_t bytes, uint32_t align, bool write);
  uint8_t* local(uint64_t offset, int lane, uint32_t bytes, uint32_t align);
  // The same, of what is going to be stored.
  uint8_t* stored_local(uint64_t offset, int lane, uint32_t bytes, uint32_t align);
  const uint8_t* param(uint64_t offset, uint32_t bytes, uint32_t align);
  // Any generic address; does the shared-memory hazard checks of an ordinary load/store.
  // `flags` of races: StampFlags; `values`: what is going to be stored there.
  uint8_t* generic(uint64_t address, int lane, uint32_t bytes, uint32_t align, bool write,
                   uint16_t flags = 0, const void* values = nullptr);
  // Looks for races of an access of global memory that is known to be inside.
  void note_global(uint64_t address, uint64_t bytes, bool write, uint16_t flags);

  // --- Control
  // Parks the executing group until wake(key); the instruction then runs again. Return its result
  // from the ExecFn.
  Step block(WaitKey key, const WaitInfo& info);
  // The same, but the group may be woken without wake(key) after a while: for try_wait and
  // nanosleep. timed_out() is then true.
  Step block_timed(WaitKey key, const WaitInfo& info);
  bool timed_out() const { return group().timed_out; }
  uint64_t& token() {
    return group().token;
  }  // see LaneGroup::token; reset when the instruction completes
  // Splits the executing group: `taken` lanes go to `target`, the others fall through.
  Step branch(uint32_t taken, uint32_t target);
  // `taken` go to `target`, `stay` execute this instruction again, lanes of neither fall through.
  Step branch_and_stay(uint32_t taken, uint32_t target, uint32_t stay);
  Step exit_lanes(uint32_t mask);
  // For .sync instructions with a membermask, of executing lanes that name the same members:
  // whether all live members execute it now. Faults if a lane of `mask` is not in `members`.
  bool gathered(uint32_t members, uint32_t mask);
  // bar.warp.sync: the lanes may stand at different instructions of that kind; those elsewhere go
  // on if all are there.
  bool gathered_anywhere(uint32_t members, uint32_t mask, const Instr& in);
  // Lanes of `mask` that are `done` go on, the others wait here for those that they have named.
  Step leave(uint32_t done, uint32_t mask);

  LaneGroup& group() { return groups_[current_]; }
  const LaneGroup& group() const { return groups_[current_]; }
  uint32_t executing() const { return executing_; }  // lanes that execute the instruction
  uint32_t live() const { return live_; }            // lanes that exist and have not exited

  [[noreturn, gnu::format(printf, 2, 3)]] void fault(const char* fmt, ...);
  void report(Rule rule, const std::string& message);
  // An instruction that is for these lanes: have some of them exited?
  void report_exited(uint32_t members);

  // --- Registers that an asynchronous instruction reads or writes: using them otherwise is
  // reported until it has been waited for.
  enum RowUse : uint8_t {
    kLoaded = 1,        // by tcgen05.ld
    kAccumulator = 2,   // of wgmma
    kMultiplicand = 4,  // of wgmma: may be read
    kTouched = 8,       // of wgmma: written since the last wgmma.fence
  };
  void watch_row(Row row, RowUse use);
  void forget_rows(int uses);
  bool touched(Row row) const { return !row_uses_.empty() && (row_uses_[row] & kTouched) != 0; }

  // It has read a clock: being in a state again does not mean that it will be for ever.
  void reads_time() { read_time_ = true; }

  // The executing instruction gives these lanes of a register what is undefined, where it shuffles
  // or loads from local memory: a use is reported.
  void undefines(const Instr& in, Row row, uint32_t lanes, Rule rule);
  // Local variables: which bytes have been written.
  bool watches_local() const { return !local_written_.empty(); }
  void note_local(uint64_t offset, int lane, uint32_t bytes, bool written) {
    if (watches_local()) std::memset(local_written(offset, lane), written, bytes);
  }
  bool wrote_local(uint64_t offset, int lane, uint32_t bytes) {
    return std::memchr(local_written(offset, lane), 1, bytes) != nullptr;
  }

  // Whether the warp has not asked so of this instruction.
  bool first_time(const Instr& in);

  // --- Generic proxy bookkeeping (see SharedMemory): release() at every arrive-like operation,
  // proxy_fence() at fence.proxy.async.
  uint32_t proxy_stamp() const { return (cluster_warp_ + 1) << 20 | (proxy_epoch_ & 0xFFFFF); }
  void release() {
    proxy_released_ = proxy_epoch_++;
    tell();
  }
  // The executing lanes make known what they did.
  void tell();
  void proxy_fence(bool shared, bool global);
  bool proxy_fenced(uint32_t epoch) const {
    return static_cast<int32_t>((epoch - proxy_fenced_) << 12) <= 0;
  }

  Origin origin() const {
    return Origin{cta_, static_cast<int32_t>(index_), current_instr_ ? current_instr_->line : 0,
                  current_instr_ ? current_instr_->name : ""};
  }

  Launch& launch() { return *launch_; }
  Cta& cta() { return *cta_; }
  const Cta& cta() const { return *cta_; }
  uint32_t index() const { return index_; }  // in the CTA
  const Kernel& kernel() const { return *kernel_; }

  // Groups of asynchronous copies of each lane: cp.async and bulk (cp.async.bulk.commit_group).
  AsyncGroups& cp_async_groups(int lane);
  CpAsyncHistory& cp_async_history() { return cp_async_history_; }
  AsyncGroups& bulk_groups(int lane);
  AsyncGroups& wgmma_groups();  // wgmma.commit_group is warp-wide

  ClusterArrivals cluster_arrivals;

  // Calls of recursive functions: what each lane has saved, and lanes that come from a return.
  struct CallStack {
    std::vector<uint32_t> saved[kWarpSize];
    uint32_t returned = 0;
  };
  CallStack& call_stack() {
    if (call_stack_ == nullptr) call_stack_ = std::make_unique<CallStack>();
    return *call_stack_;
  }

  std::unique_ptr<Extension> tensor;  // for cc/emulator/tensor
  WarpHistory history;
  uint32_t max_registers = 0;  // of each thread, by setmaxnreg; 0: as at the launch

 private:
  friend class Launch;
  friend class Cta;
  friend class LivelockWatch;

  bool any_ready() const;
  bool select(
      bool random,
      Random& source);  // makes the ready group with the lowest pc (or a random one) current
  void merge();         // joins groups that stand at the current group's instruction
  void remove_group(size_t i);

  void check_rows(const Instr& in);
  uint8_t* local_written(uint64_t offset, int lane);
  void start_tracking();
  // Follows undefined registers through an instruction that is flagged kTracked; `group` are the
  // lanes that come to it, `mask` those that execute it.
  void track(const Instr& in, uint32_t group, uint32_t mask);
  // Lanes in which a prmt takes bytes of its first or of its second operand.
  uint32_t bytes_taken(const Instr& in, uint32_t mask, bool second);

  uint32_t* regs_ = nullptr;
  uint32_t* preds_ = nullptr;
  Launch* launch_ = nullptr;
  Cta* cta_ = nullptr;
  const Kernel* kernel_ = nullptr;
  const Instr* current_instr_ = nullptr;
  std::vector<LaneGroup> groups_;
  size_t current_ = 0;
  uint32_t index_ = 0;
  uint32_t cluster_warp_ = 0;  // index among all warps of the cluster
  uint32_t live_ = 0, existing_ = 0;
  uint32_t executing_ = 0;
  uint32_t diverged_ = 0;  // instructions executed since all lanes were last together
  // For the search for livelocks: lanes that have run or polled, by strong loads and atomics.
  uint32_t ran_ = 0, polled_ = 0;
  uint64_t polls_ = 0;
  bool read_time_ = false;
  uint32_t proxy_epoch_ = 1, proxy_released_ = 0, proxy_fenced_ = 0;
  std::vector<uint8_t> row_uses_;  // RowUse; empty: none so far
  std::vector<Row> watched_rows_;  // those that are not 0
  // Lanes, by slot of Kernel::tracking: in which some bits are undefined, in which all are. Empty:
  // not watched for.
  std::vector<uint32_t> undefined_, wholly_;
  std::vector<bool> shuffled_;    // of these, what comes from a lane that did not execute a shuffle
  int32_t shuffle_line_ = 0;      // the last such shuffle
  uint32_t undefined_slots_ = 0;  // that have such lanes
  int32_t undefined_line_ = 0;    // that read such a register
  std::vector<const Instr*> seen_;  // first_time
  std::unique_ptr<uint32_t[]> storage_;
  std::unique_ptr<CallStack> call_stack_;
  std::unique_ptr<uint8_t[]> local_;
  std::vector<uint8_t> local_written_;  // as local_; empty: not watched for
  std::unique_ptr<AsyncGroups[]> cp_async_, bulk_;
  CpAsyncHistory cp_async_history_;
  std::unique_ptr<AsyncGroups> wgmma_;
};

// Calls body(lane) for every lane of the mask.
template <typename Body>
inline void for_lanes(uint32_t mask, Body&& body) {
  if (mask == kFullMask) {
    for (int lane = 0; lane < kWarpSize; ++lane) body(lane);
  } else {
    for (; mask != 0; mask &= mask - 1) body(__builtin_ctz(mask));
  }
}

inline int first_lane(uint32_t mask) { return __builtin_ctz(mask); }

}  // namespace bwgemm::emulator
