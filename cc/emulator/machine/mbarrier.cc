// The object's 64 bits: 0-19 pending arrivals, 20-39 expected arrivals, 40-60 tx-count (signed), 61
// phase parity, 62-63 the mark 2. PTX ISA 9.7.13.15.1-9.7.13.15.5.
#include "emulator/machine/mbarrier.h"

#include <cstring>

namespace bwgemm::emulator {
namespace {

constexpr uint32_t kCountLimit = (1u << 20) - 1;

struct State {
  uint32_t pending = 0, expected = 0;
  int32_t tx = 0;
  uint32_t parity = 0;
  bool valid = false;
};

State unpack(uint64_t bits) {
  State s;
  s.pending = bits & 0xFFFFF;
  s.expected = (bits >> 20) & 0xFFFFF;
  s.tx = static_cast<int32_t>(static_cast<int64_t>(bits << 3) >> 43);
  s.parity = (bits >> 61) & 1;
  s.valid = (bits >> 62) == 2;
  return s;
}

uint64_t pack(const State& s) {
  return uint64_t{s.pending} | uint64_t{s.expected} << 20 |
         (static_cast<uint64_t>(static_cast<int64_t>(s.tx)) & 0x1FFFFF) << 40 |
         uint64_t{s.parity} << 61 | uint64_t{2} << 62;
}

State load(Cta& cta, uint32_t offset) {
  uint64_t bits;
  std::memcpy(&bits, cta.shared().data(offset), 8);
  State s = unpack(bits);
  s.valid = s.valid && cta.shared().holds_mbarrier(offset);
  return s;
}

void store(Cta& cta, uint32_t offset, const State& state) {
  const uint64_t bits = pack(state);
  std::memcpy(cta.shared().data(offset), &bits, 8);
}

State checked(Launch& launch, Cta& cta, uint32_t offset, const Origin& origin,
              bool asynchronous = false) {
  if (!cta.shared().contains(offset, 8) || offset % 8 != 0) {
    launch.fault(
        origin,
        format("mbarrier address 0x%x is outside shared memory or not a multiple of 8", offset));
  }
  if (cta.exited()) {
    launch.report(
        Rule::kCtaExit, origin,
        format("mbarrier 0x%x belongs to CTA %u, which has exited", offset, cta.linear()));
  }
  const State s = load(cta, offset);
  if (!s.valid)
    launch.fault(origin,
                 format("mbarrier 0x%x of CTA %u is not initialised", offset, cta.linear()));
  launch.races().mbarrier_use(cta, offset, origin, asynchronous);
  return s;
}

void finish(Launch& launch, Cta& cta, uint32_t offset, State s) {
  const bool complete = s.pending == 0 && s.tx == 0;
  if (complete) {
    s.pending = s.expected;
    s.parity ^= 1;
    launch.races().mbarrier_complete(cta, offset);
  }
  store(cta, offset, s);
  launch.progress();
  if (complete) launch.wake(mbarrier_key(cta, offset), cta.cluster());
}

}  // namespace

WaitKey mbarrier_key(const Cta& cta, uint32_t offset) { return wait_key(&cta, offset); }

void mbarrier_init(Launch& launch, Cta& cta, uint32_t offset, uint32_t count,
                   const Origin& origin) {
  if (count == 0 || count > kCountLimit)
    launch.fault(origin,
                 format("mbarrier.init with count %u (1 to %u allowed)", count, kCountLimit));
  State s;
  s.pending = s.expected = count;
  launch.races().mbarrier_init(cta, offset, origin);
  cta.shared().note_mbarrier(offset, true);
  store(cta, offset, s);
  launch.progress();
}

void mbarrier_inval(Launch& launch, Cta& cta, uint32_t offset, const Origin& origin) {
  checked(launch, cta, offset, origin);
  launch.races().mbarrier_inval(cta, offset, origin);
  cta.shared().note_mbarrier(offset, false);
  std::memset(cta.shared().data(offset), 0xFF, 8);
  launch.progress();
}

static uint64_t arrive(Launch& launch, Cta& cta, uint32_t offset, uint32_t count,
                       const Origin& origin, bool drop, Tells tells, const Arrival* arrival) {
  State s = checked(launch, cta, offset, origin, arrival != nullptr && arrival->asynchronous);
  const uint64_t token = pack(s);
  if (count == 0 || count > s.pending) {
    launch.fault(origin, format("arrive with count %u on mbarrier 0x%x of CTA %u, which has %u "
                                "arrivals pending (of %u)",
                                count, offset, cta.linear(), s.pending, s.expected));
  }
  const WarpHistory& history = origin.cta->warps()[origin.warp]->history;
  if (arrival != nullptr) {
    launch.races().mbarrier_arrive(cta, offset, origin, arrival->by, arrival->knows, tells);
  } else {
    // The warp has released what it did before: its clock has advanced since.
    Stamp by = history.stamp(origin.line);
    --by.clock;
    launch.races().mbarrier_arrive(cta, offset, origin, by, history.knows, tells);
  }
  s.pending -= count;
  if (drop) {
    if (count > s.expected)
      launch.fault(origin, format("arrive_drop of %u on mbarrier 0x%x, which expects %u", count,
                                  offset, s.expected));
    s.expected -= count;
  }
  finish(launch, cta, offset, s);
  return token;
}

uint64_t mbarrier_arrive(Launch& launch, Cta& cta, uint32_t offset, uint32_t count,
                         const Origin& origin, Tells tells, const Arrival* arrival) {
  return arrive(launch, cta, offset, count, origin, false, tells, arrival);
}

uint64_t mbarrier_arrive_drop(Launch& launch, Cta& cta, uint32_t offset, uint32_t count,
                              const Origin& origin, Tells tells) {
  return arrive(launch, cta, offset, count, origin, true, tells, nullptr);
}

void LaneArrivals::note(Launch& launch, Cta& cta, uint32_t offset, uint64_t token,
                        const Origin& origin) {
  const uint32_t parity = unpack(token).parity;
  for (const First& first : first_) {
    if (first.cta != &cta || first.offset != offset) continue;
    if (first.parity == parity) return;
    launch.report(Rule::kMbarrierOverrun, origin,
                  format("more lanes arrive at mbarrier %s of CTA %u than its phase waits for: any "
                         "of them may be counted for the next phase",
                         launch.shared_text(offset).c_str(), cta.linear()));
    return;
  }
  first_.push_back({&cta, offset, parity});
}

void mbarrier_add_pending(Launch& launch, Cta& cta, uint32_t offset, uint32_t count,
                          const Origin& origin) {
  State s = checked(launch, cta, offset, origin);
  if (count > kCountLimit - s.pending)
    launch.fault(origin, format("mbarrier 0x%x: too many pending arrivals", offset));
  s.pending += count;
  store(cta, offset, s);
  launch.progress();
}

void mbarrier_expect_tx(Launch& launch, Cta& cta, uint32_t offset, uint32_t bytes,
                        const Origin& origin) {
  State s = checked(launch, cta, offset, origin);
  if (bytes > kCountLimit ||
      s.tx + static_cast<int32_t>(bytes) > static_cast<int32_t>(kCountLimit)) {
    launch.fault(origin,
                 format("expect_tx of %u bytes on mbarrier 0x%x: the tx-count leaves its range",
                        bytes, offset));
  }
  s.tx += static_cast<int32_t>(bytes);
  finish(launch, cta, offset, s);
}

void mbarrier_complete_tx(Launch& launch, Cta& cta, uint32_t offset, uint32_t bytes,
                          const Origin& origin, bool asynchronous) {
  State s = checked(launch, cta, offset, origin, asynchronous);
  if (bytes > kCountLimit ||
      s.tx - static_cast<int32_t>(bytes) < -static_cast<int32_t>(kCountLimit)) {
    launch.fault(origin,
                 format("complete_tx of %u bytes on mbarrier 0x%x: the tx-count leaves its range",
                        bytes, offset));
  }
  s.tx -= static_cast<int32_t>(bytes);
  finish(launch, cta, offset, s);
}

bool mbarrier_test_parity(Launch& launch, Cta& cta, uint32_t offset, uint32_t parity,
                          const Origin& origin) {
  return checked(launch, cta, offset, origin).parity != (parity & 1);
}

bool mbarrier_test_token(Launch& launch, Cta& cta, uint32_t offset, uint64_t token,
                         const Origin& origin) {
  return checked(launch, cta, offset, origin).parity != unpack(token).parity;
}

uint32_t mbarrier_pending_of_token(uint64_t token) { return unpack(token).pending; }

std::string mbarrier_describe(Cta& cta, uint32_t offset) {
  const State s = load(cta, offset);
  if (!s.valid) return format("mbarrier 0x%x of CTA %u: not initialised", offset, cta.linear());
  return format(
      "mbarrier 0x%x of CTA %u: in phase with parity %u, %u of %u arrivals pending, tx-count %d",
      offset, cta.linear(), s.parity, s.pending, s.expected, s.tx);
}

}  // namespace bwgemm::emulator
