// Races: accesses that no synchronisation orders, whatever the schedule of this run was.
//
// Every byte remembers its last accesses (shadow.h); every warp knows what happened before it
// (knowledge.h), which it hands on through barriers, mbarriers and atomics. An access that its
// warp does not know to be over races with a later one to the same byte, if one of them writes.
// Lanes of one warp have no order of their own either: their accesses are ordered when the lanes
// have met at bar.warp.sync or a barrier since.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "emulator/machine/knowledge.h"
#include "emulator/machine/lane_knowledge.h"
#include "emulator/machine/reader_sets.h"
#include "emulator/machine/rules.h"
#include "emulator/machine/shadow.h"
#include "emulator/machine/strong_accesses.h"

namespace bwgemm::emulator {

class Cluster;
class Cta;
class Launch;
class Warp;
struct Origin;

// What an arrival at an mbarrier, or a wait for it, tells: all that came before; the same, but not
// that writes can be read (the scope by default is too narrow for that); the time alone (relaxed).
enum class Tells : uint8_t { kAll, kOrder, kTime };

enum class FenceKind : uint8_t { kSequential, kBoth, kAcquire, kRelease };

// What fences of kind kSequential and the scope of the device order beyond the threads that execute
// them. All such fences have one order: a thread that has met one behind its fence, with a relaxed
// access to a flag that one behind another fence's thread has set, knows that the other fence came
// first (PTX ISA 8.9). `__threadfence(); __syncthreads(); if (tid == 0) atomicAdd(...)`.
struct FenceOrder {
  Knowledge before;    // what fences have published that came before this moment
  Knowledge observed;  // by relaxed accesses: known from the next such fence on
  void join(const FenceOrder& other) {
    if (!other.before.empty()) before.join(other.before);
    if (!other.observed.empty()) observed.join(other.observed);
  }
};

// A barrier of a CTA or cluster.
struct BarrierHistory {
  Knowledge arrived;    // of all arrivals so far
  Knowledge completed;  // the same at the end of the last generation
  FenceOrder fences_arrived, fences_completed;
  uint64_t generation = 0;
  // Of a named barrier, in this generation and in the last one.
  struct Arrival {
    Stamp by;
    uint32_t lanes;
  };
  std::vector<Arrival> arrivals, last_arrivals;
};

// What single lanes have told others since the lanes of the warp last met.
struct LaneReleases {
  uint32_t from = 0, until = 0;  // accesses of these clocks; told by all from `until` on, if not 0
  struct Told {
    uint32_t lanes, clock;
    uint32_t heard = 0;  // the other lanes have been told so far
  };
  std::vector<Told> told;
};

// A grid of a history, which begins with the last launch that has waited for all before it.
struct GridHistory {
  uint32_t first = 1;  // of its clusters
  uint32_t warps_per_cta = 1;
  std::string kernel;
  // Threads have executed griddepcontrol.wait: the grid before is over when this one is. Some did
  // before griddepcontrol.launch_dependents: it is over when the next one starts.
  bool waited = false, waited_first = false;
};

// What a warp knows, and its own clock, which advances whenever it tells others.
struct WarpHistory {
  Knowledge knows;
  uint32_t clock = 1;
  uint32_t cluster = 0;
  uint16_t actor = 0;
  // At the last fence of a scope, empty if one of a wider scope came later: what relaxed stores
  // publish.
  Knowledge fenced[kScopes];
  // By relaxed loads, from threads that are together in such a scope: known from the next fence of
  // the scope on.
  Knowledge observed[kScopes];
  FenceOrder fences;
  LaneKnowledge lanes;  // of others
  LaneCopies copies;
  Knowledge tensor;       // at the last tcgen05.fence::after_thread_sync
  uint32_t together = 1;  // the lanes have met since all accesses before this clock
  // The same of pairs of lanes that have met without the others, by 32 times one lane plus the
  // other; empty: none have.
  std::vector<uint32_t> met;
  uint32_t told = 0;         // all lanes have told others of all up to this clock
  uint32_t started = 0;      // CTAs of the cluster, by rank, that are known to have started
  uint32_t initialised = 0;  // mbarriers: up to this clock they are visible beyond the CTA
  uint32_t triggered = 0;    // lanes that have executed griddepcontrol.launch_dependents
  // The barrier that it has arrived at or waited for last, that one's completed generations then,
  // and Knowledge::changes: as long as they are the same, so is what both know of others.
  const BarrierHistory* barrier = nullptr;
  uint64_t barrier_generation = 0, barrier_changes = 0;

  Stamp stamp(int32_t line, uint16_t flags = 0) const {
    return {clock, cluster, actor, flags, line};
  }
  // Its accesses so far become known to whom it tells what it knows.
  void release() {
    knows.learn_own(cluster, actor, clock, View::kGeneric);
    knows.learn_own(cluster, actor, clock, View::kTime);
    ++clock;
  }
  // bar.warp.sync: what the lanes did before it comes before what they do after it.
  void meet() {
    together = ++clock;
    lanes.meet();
  }
  void meet(uint32_t some);  // not all of them
  void fence(Scope scope, FenceKind kind);
  void tensor_fence_before() {
    release();
    knows.learn_own(cluster, actor, clock - 1, View::kTensor);
  }
  void fence_mbarrier_init() {
    initialised = clock;
    release();
  }
  void fence_proxy(View view) {
    knows.fence_proxy(view);
    lanes.fence_proxy(view);
  }
  // All lanes learn it.
  void learn(const Knowledge& told) {
    if (!lanes.empty()) lanes.learn(~0u, told, knows);
    knows.join(told);
  }
  void learn(const Stamp& done, View view) {
    if (!lanes.empty()) lanes.learn(~0u, done.cluster, done.actor, done.clock, knows);
    knows.learn(done.cluster, done.actor, done.clock, view);
  }
  void fence_proxy(bool shared, bool global) {
    release();
    if (shared) fence_proxy(View::kAsync);
    if (global) fence_proxy(View::kAsyncGlobal);
  }
};

// Accesses of one warp whose lanes have not all met in between: hardly any are.
inline bool own_since_meeting(const WarpHistory& history, const Stamp& before, const Stamp& now) {
  return before.actor == history.actor && before.cluster == history.cluster &&
         (before.flags & (kRecord | kAsyncProxy)) == 0 && before.clock >= history.together &&
         ((before.flags & now.flags & kStrong) == 0 || both_volatile(before, now));
}

// An mbarrier. Its actor's clock counts completed phases.
struct MbarrierHistory {
  uint16_t actor = 0;
  Stamp init;
  uint32_t phase = 0;                        // completed ones
  Knowledge arrived;                         // of all arrivals so far
  Knowledge completed;                       // the same at the end of the last phase
  Knowledge arrived_peers, completed_peers;  // the same of threads of other CTAs
  // Arrivals of this phase and of the last one: actor and clock.
  std::vector<Stamp> arrivals, last_arrivals;
  std::vector<Stamp> waits;  // the last one of each warp
};

struct ClusterHistory {
  uint32_t number = 0;  // from 1
  uint16_t actors = 0;  // given so far
  std::unordered_map<uint64_t, uint16_t> queues;
};

// What a CTA is accessed by that must be over when it exits.
struct CtaHistory {
  Shadow shadow;
  std::unordered_map<uint32_t, MbarrierHistory> mbarriers;  // by offset
  std::unordered_map<uint16_t, Stamp> remote;               // last access by actor of another CTA
  std::unordered_map<uint16_t, Stamp> deliveries;           // last one by the mbarrier's actor
  std::unordered_map<uint32_t, int32_t> in_flight;          // lines of records not closed
  std::vector<Stamp> copied;                                // records that read its shared memory
  Knowledge at_exit;                                        // of its warps that have exited
  std::unordered_map<uint64_t, std::vector<Stamp>> maps;  // tensor maps: writes that it has fenced
};

class Races {
 public:
  // Ends a report of kLaneWait.
  static constexpr const char* kUnheard =
      "for which another lane of this warp has waited: no bar.warp.sync follows the wait";

  explicit Races(Launch& launch);
  bool on() const { return on_; }

  // --- Programmatic dependent launch. A grid that may start before the one before is over goes on
  // with the history of that one, whose accesses come before its own where griddepcontrol.wait, or
  // something else, orders them.
  void follow(Races&& before);
  void wait_for_grids(Warp& warp);

  // --- Actors. Those of a cluster's warps come first.
  void start(Cluster& cluster);
  // The queue of this kind of a warp's lane; made when it is first used.
  enum class Queue : uint8_t { kBulkRead, kBulkWrite, kTensorPipe, kWarpgroup, kCpAsync };
  Stamp queue(Cluster& cluster, Queue kind, uint32_t owner, uint32_t lane, uint32_t clock,
              int32_t line);

  // --- Asynchronous operations that an mbarrier counts: a record each. The barrier must be visible
  // to the asynchronous proxy when they are issued.
  Stamp open(Warp& issuer, Cta& destination, Cta& barrier_cta, uint32_t barrier);
  // The operation tells `barrier` that it is over: known with the end of the barrier's phase. In
  // time, that also comes after what its issuer knew.
  void close(const Stamp& record, Cta& destination, Cta& barrier_cta, uint32_t barrier);

  // --- Accesses of shared memory. `issuer` executes or has issued it.
  void access(Warp& issuer, Cta& memory, uint32_t offset, uint32_t bytes, const Stamp& stamp,
              bool write, const Origin& origin);

  // Is an access of tensor memory ordered after this earlier one? kTensorRace, kTensorFence: not
  // because of that rule. kUnheard: kLaneWait.
  enum class Order : uint8_t { kYes, kNoFence, kUnheard, kNo };
  Order tensor_order(const Warp& issuer, const Stamp& before) const;
  // Whether the warp comes after the instruction of this stamp, in mere time.
  bool issued_in_order(const Warp& issuer, const Stamp& before) const;
  std::string describe(const Stamp& stamp) const;

  // The same in global memory.
  void access_global(Warp& issuer, uint64_t address, uint64_t bytes, const Stamp& stamp, bool write,
                     const Origin& origin);

  // ld.global.nc: is reported where the launch has written.
  void read_cached(Warp& issuer, uint64_t address, uint64_t bytes, const Origin& origin);

  // A tensor map in global memory is read by the tensor map proxy, which sees what a warp of the
  // CTA has made visible to it, of the writes that the warp came after.
  void fence_tensor_map(Warp& warp, uint64_t address);
  // What the warp came after, for the acquiring fences of others.
  void release_tensor_maps(Warp& warp);
  void read_tensor_map(Warp& issuer, uint64_t address, const Origin& origin);

  // The executing lanes of the warp are about to release.
  void told(Warp& warp);
  // They, or these ones, learn of others.
  void learn(Warp& warp, const Knowledge& told, Tells tells);
  void learn(Warp& warp, uint32_t lanes, const Stamp& done);

  // --- Strong accesses publish and observe at an address (sync_key).
  uint64_t sync_key(const Warp& warp, uint64_t address, bool shared) const;
  // `replaces`: a store, which ends what others have released there; atomics go on with it.
  void publish(Warp& warp, uint64_t key, Scope scope, bool release, bool replaces);
  void observe(Warp& warp, uint64_t key, Scope scope, bool acquire);
  // Before a strong access of `count` elements of so many bytes.
  void strong(Warp& warp, uint64_t key, uint32_t width, int count, int lane,
              StrongAccesses::Kind kind);

  // --- Barriers of threads: each warp arrives, the last one completes, waiters observe.
  void arrive(Warp& warp, BarrierHistory& barrier, bool relaxed);
  // The same at a named barrier: the arrival must not be countable in the last generation.
  void arrive_named(Warp& warp, BarrierHistory& barrier, uint32_t number, uint32_t lanes);
  void complete(BarrierHistory& barrier) {
    if (!on_) return;
    barrier.completed = barrier.arrived;
    barrier.fences_completed.join(barrier.fences_arrived);
    ++barrier.generation;
    barrier.last_arrivals.swap(barrier.arrivals);
    barrier.arrivals.clear();
  }
  void observe(Warp& warp, const BarrierHistory& barrier, bool relaxed);

  // --- mbarriers. `by` and `knows`: of who arrives.
  void mbarrier_init(Cta& cta, uint32_t offset, const Origin& origin);
  void mbarrier_inval(Cta& cta, uint32_t offset, const Origin& origin);
  // Before any use. `asynchronous`: by an operation of the asynchronous proxy.
  void mbarrier_use(Cta& cta, uint32_t offset, const Origin& origin, bool asynchronous);
  void mbarrier_arrive(Cta& cta, uint32_t offset, const Origin& origin, const Stamp& by,
                       const Knowledge& knows, Tells tells);
  void mbarrier_complete(Cta& cta, uint32_t offset);
  // Whether something tells the warp that the last completed phase is over.
  bool mbarrier_known(const Warp& warp, Cta& cta, uint32_t offset);
  // `peers`: what arrivals of other CTAs' threads tell it, if it is not relaxed.
  void mbarrier_observe(Warp& warp, Cta& cta, uint32_t offset, bool relaxed, Tells peers);

  void exited(Warp& warp);

 private:
  struct Record {
    uint32_t clock = 0;  // of the mbarrier that knows; 0: in flight
    uint16_t actor = 0;
    std::unique_ptr<Knowledge> issuer;  // at the issue, while in flight
  };
  MbarrierHistory& mbarrier(Cta& cta, uint32_t offset);
  bool knows(const Knowledge& knowledge, const Stamp& stamp, View view) const;
  // The grid of a cluster of an earlier launch is over, as far as this tells.
  bool over(const Knowledge& knowledge, uint32_t cluster) const;
  size_t grid_of(uint32_t cluster) const;
  // Adds that this grid is over, and those of which its end tells.
  void add_grid(Knowledge* told, size_t grid) const;
  bool conflicts(const Warp& issuer, const Stamp& before, const Stamp& now, bool handed,
                 View view) const;
  // Accesses of two lanes of the issuer that have not met in between. `handed`: it reads now what
  // was written before.
  bool apart(const Warp& issuer, const Stamp& before, const Stamp& now, bool handed) const;
  // An access of another warp that is known by its clock, though the lane has told nobody.
  bool untold(const Warp& issuer, const Stamp& stamp) const;
  // It is a copy of cp.async that another lane of the issuer alone has waited for.
  bool copied_apart(const Warp& issuer, const Stamp& write, const Stamp& now, const Cta* memory,
                    uint64_t at) const;
  // Another lane of the issuer has been told that it is over.
  bool unheard(const Warp& issuer, const Stamp& before, const Stamp& now, View view) const;
  // A strong write, of a byte of `memory` (nullptr: global), that the issuer comes after because a
  // strong read has seen it.
  bool observed(const Warp& issuer, const Stamp& write, const Stamp& now, const Cta* memory,
                uint64_t at) const;
  // Single lanes of its warp have told others since.
  bool told_by_lanes(const Stamp& stamp) const;
  // The last write of each granule of a tensor map.
  std::vector<Stamp> writes_of_map(uint64_t address);
  Shadow& page_shadow(uint64_t page);
  uint64_t published_key(const Warp& warp, uint64_t key, Scope scope) const;
  // Some warp of the CTA has told the issuer, if only the time.
  void check_started(Warp& issuer, const Cta& cta, const Origin& origin);
  // What another thread or barrier has told the warp, of its own lanes too.
  void meet_through(Warp& warp, const Knowledge& told);
  [[gnu::noinline]] bool met_nobody(const Warp& issuer, const Stamp& stamp) const;
  // One of the lanes has told what the others have been told.
  bool heard(const Stamp& stamp, uint32_t lanes) const;
  void visit_cell(Warp& issuer, Cell& cell, const Stamp& stamp, bool write, const Origin& origin,
                  Cta* memory, uint64_t at);
  void check_cell(Warp& issuer, const Cell& cell, const Stamp& stamp, bool write,
                  const Origin& origin, Cta* memory, uint64_t at);
  void visit_new_cell(Warp& issuer, Cell& cell, const Stamp& stamp, bool write,
                      const Origin& origin, Cta* memory, uint64_t at);
  // Where an access is remembered: one of Cell::others, or these.
  static constexpr int kNewWrite = -1, kOldest = 3, kReaderSet = 4;
  int place_of(const Warp& issuer, const Cell& cell, const Stamp& stamp, bool write) const;
  // `set`: for kReaderSet.
  static inline void put(Cell& cell, const Stamp& stamp, bool write, int place, const Stamp& set);
  // As last_ says.
  inline void put_again(const Warp& issuer, Cell& cell, const Stamp& stamp, bool write);
  // `memory`: nullptr for global memory, where `at` is an address.
  void report(Warp& issuer, const Stamp& before, bool before_writes, const Stamp& now,
              bool now_writes, Cta* memory, uint64_t at, const Origin& origin, View view);

  Launch* launch_;
  bool on_;
  bool watches_global_;  // other workers access it too
  uint32_t clusters_ = 0;
  static constexpr uint32_t kGrids = ~0u;  // the cluster whose actors are grids, in Knowledge
  std::vector<GridHistory> grids_;         // the last one is that of the launch
  uint32_t first_cluster_ = 1;             // of it
  Knowledge at_start_;                     // what is over when it starts
  uint32_t warps_per_cta_ = 1;
  // The last cell visited, before and after. The next one often looks the same, and what did not
  // conflict never will: knowledge only grows. Lanes make no difference, unless the warp's own
  // lanes have to be told apart.
  struct {
    Stamp stamp;
    bool write = false;
    bool by_lanes = false;  // of other warps, too
    int place = 0;          // of `stamp`
    Cell before, after;
  } last_;
  uint64_t reports_ = 0;
  ReaderSets reader_sets_;
  StrongAccesses strong_accesses_;
  bool mixed_ = false;  // the last strong access is of other bytes than the last ones there
  std::vector<Record> records_;
  static constexpr uint64_t kPage = 4096;
  // Of each warp, by cluster and actor: when single lanes released.
  std::vector<std::vector<std::vector<LaneReleases>>> told_;
  std::unordered_map<uint64_t, Shadow> pages_;  // of global memory
  uint64_t last_page_ = 0;
  Shadow* last_shadow_ = nullptr;
  // What the present value of a word tells. A thread's own earlier releases there count with its
  // later stores (PTX ISA 8.8, release patterns): `by` are warps that may have released, cluster
  // and actor; when it is full, any may.
  struct Published {
    static constexpr size_t kMost = 8;
    Knowledge told;
    std::vector<uint64_t> by;
    void release(uint64_t warp, const Knowledge& known);
    void store(uint64_t warp);
  };
  // To all; to a cluster; to a CTA. By address, with the number of whom it is told to.
  std::unordered_map<uint64_t, Published> published_[kScopes];
  Knowledge released_maps_;
  std::unordered_map<uint64_t, Knowledge> fenced_before_;  // of FenceOrder, by address
};

}  // namespace bwgemm::emulator
