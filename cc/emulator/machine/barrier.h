// Barriers of the threads of a CTA and of a cluster (PTX ISA 9.7.13.1, 9.7.13.3). They count
// threads; of a warp, those that do not exist or have exited count as soon as all its others have
// arrived.
#pragma once

#include <cstdint>
#include <vector>

#include "emulator/machine/race.h"

namespace bwgemm::emulator {

class Cluster;
class Cta;
class Warp;

// bar and barrier.cta.
struct NamedBarrier {
  static constexpr uint32_t kAllThreads = ~uint32_t{0};  // `expected` without a thread count

  uint32_t arrived = 0;   // threads of the current generation
  uint32_t expected = 0;  // 0: not in use
  uint64_t generation = 1;
  bool reduces = false;                               // by bar.red in the current generation
  uint32_t red_and = ~0u, red_or = 0, red_popc = 0;   // accumulating
  uint32_t last_and = 0, last_or = 0, last_popc = 0;  // of the completed generation
  BarrierHistory history;

  uint32_t threads_expected(const Cta& cta) const;
  // These lanes of the warp have arrived. Faults if more threads have than are expected.
  void count(Warp& warp, uint32_t lanes);
  // Lanes of the warp have exited, which may be all that it waits for.
  void count_exited(Warp& warp);
  void complete_if_all_arrived(Cta& cta);

 private:
  struct Part {
    uint32_t warp, lanes;
  };
  void complete(Cta& cta);

  std::vector<Part> parts_;  // warps of which some lanes have arrived and others have not
};

// barrier.cluster. Only live threads are waited for.
struct ClusterBarrier {
  uint32_t arrived = 0;
  uint64_t generation = 1;
  BarrierHistory history;

  static uint32_t threads_expected(Cluster& cluster);
  void complete_if_all_arrived(Cluster& cluster);
};

// A warp's lanes that have arrived at the cluster barrier and have not waited.
struct ClusterArrivals {
  uint64_t generation = 0;
  uint32_t lanes = 0;     // in this generation
  uint32_t complete = 0;  // in earlier ones

  void follow(uint64_t current);
  // As which they count, if these are the warp's live lanes.
  uint32_t threads(uint32_t live) const;
  // Before some of the warp's lanes exit: what an exited warp has done no longer counts.
  void count_exit(Warp& warp, uint32_t live_after);
};

}  // namespace bwgemm::emulator
