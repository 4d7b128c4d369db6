// mbarrier objects (PTX ISA 9.7.13.15): 64 opaque bits in shared memory, shared by instructions and
// asynchronous operations.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "emulator/machine/launch.h"

namespace bwgemm::emulator {

// All take the CTA that holds the object and its offset there (8-byte aligned, inside: see
// Warp::shared), and fault through `origin` when the object is not initialised, its CTA has exited,
// or a count leaves its range. Completing a phase wakes the waiters.
// Who arrives, where that is not the warp of `origin` at this moment: an asynchronous operation,
// with what its issuer knew.
struct Arrival {
  Stamp by;
  Knowledge knows;
  bool asynchronous = false;  // by the asynchronous proxy
};

void mbarrier_init(Launch& launch, Cta& cta, uint32_t offset, uint32_t count, const Origin& origin);
void mbarrier_inval(Launch& launch, Cta& cta, uint32_t offset, const Origin& origin);
// arrive: `count` pending arrivals less; returns the state token from before. expect/complete:
// tx-count more/less.
uint64_t mbarrier_arrive(Launch& launch, Cta& cta, uint32_t offset, uint32_t count,
                         const Origin& origin, Tells tells = Tells::kAll,
                         const Arrival* arrival = nullptr);
// The same, and one participant less in every later phase.
uint64_t mbarrier_arrive_drop(Launch& launch, Cta& cta, uint32_t offset, uint32_t count,
                              const Origin& origin, Tells tells = Tells::kAll);
// One more pending arrival in the current phase (cp.async.mbarrier.arrive).
void mbarrier_add_pending(Launch& launch, Cta& cta, uint32_t offset, uint32_t count,
                          const Origin& origin);
void mbarrier_expect_tx(Launch& launch, Cta& cta, uint32_t offset, uint32_t bytes,
                        const Origin& origin);
void mbarrier_complete_tx(Launch& launch, Cta& cta, uint32_t offset, uint32_t bytes,
                          const Origin& origin, bool asynchronous = true);
// Has the phase with this parity completed (test_wait.parity)?
bool mbarrier_test_parity(Launch& launch, Cta& cta, uint32_t offset, uint32_t parity,
                          const Origin& origin);
bool mbarrier_test_token(Launch& launch, Cta& cta, uint32_t offset, uint64_t token,
                         const Origin& origin);
uint32_t mbarrier_pending_of_token(uint64_t token);
// "mbarrier 0x430 of CTA 1: phase parity 0, 1 of 2 arrivals pending, 4096 bytes outstanding".
std::string mbarrier_describe(Cta& cta, uint32_t offset);
WaitKey mbarrier_key(const Cta& cta, uint32_t offset);

// The arrivals of one instruction's lanes, which nothing orders. If a phase ends among them, any of
// the lanes may be the one that is left for the next phase: a waiter for the first one cannot rely
// on what any of them did. That holds for a count of 1 too, as between two warps, and after an even
// number of such phases a waiter sees none.
class LaneArrivals {
 public:
  // A lane has got this token for its arrival.
  void note(Launch& launch, Cta& cta, uint32_t offset, uint64_t token, const Origin& origin);

 private:
  struct First {
    const Cta* cta;
    uint32_t offset;
    uint32_t parity;
  };
  std::vector<First> first_;  // of the lanes at each mbarrier
};

}  // namespace bwgemm::emulator
