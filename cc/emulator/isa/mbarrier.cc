// mbarrier.* (PTX ISA 9.7.13.15).
#include "emulator/machine/mbarrier.h"

#include <algorithm>
#include <cstring>

#include "emulator/isa/isa.h"
#include "emulator/isa/lanes.h"

namespace bwgemm::emulator {
namespace {

struct Args {
  Address addr;
  Row count = kNoRow;          // arrivals, tx-count, parity or expected count
  Row state = kNoRow;          // 64-bit token, read or written
  bool cluster = false;        // may lie in another CTA
  bool names_cluster = false;  // .shared::cluster
  bool drop = false, expect = false, parity = false;
  bool relaxed = false;
  bool no_complete = false;
  // What threads of other CTAs tell or are told by it, unless it is relaxed. One that writes no
  // scope has that of the CTA, and yet is used to hand back what others have read.
  Tells peers = Tells::kAll;
  Pred result = kNoRow;
};

const Args& args_of(const Instr& in) { return *static_cast<const Args*>(in.aux); }

Warp::SharedRef locate(Warp& w, const Args& a, int lane) {
  return w.shared(w.address(a.addr, lane), 8, 8, a.cluster);
}

Args* decode_common(Decoder& d, size_t address_operand) {
  auto* a = d.make_aux<Args>();
  a->relaxed = d.mod("relaxed");
  d.ignore_mods({"release", "acquire", "b64"});
  const auto scope = d.mod_one_of({"cta", "cluster"});
  a->peers = scope == "cluster" ? Tells::kAll : scope == "cta" ? Tells::kTime : Tells::kOrder;
  const auto space = d.space();
  if (space.space != ptx::Space::kShared && space.space != ptx::Space::kGeneric)
    d.error("an mbarrier lies in shared memory");
  // A generic address may name another CTA's memory only with the instructions that allow
  // .shared::cluster; shared() checks the rank.
  a->names_cluster = space.cluster;
  a->cluster = space.cluster || space.space == ptx::Space::kGeneric;
  a->addr = d.address(address_operand, ptx::Space::kShared);
  return a;
}

Step exec_init(Warp& w, const Instr& in, uint32_t mask) {
  const Args& a = args_of(in);
  const uint32_t* count = w.r32(a.count);
  for_lanes(mask, [&](int lane) {
    const auto ref = locate(w, a, lane);
    mbarrier_init(w.launch(), *ref.cta, ref.offset, count[lane], w.origin());
  });
  return Step::kNext;
}

void decode_init(Decoder& d) {
  d.expect_operands(2, 2);
  decode_common(d, 0)->count = d.src(1, 32);
  d.out().exec = exec_init;
}

Step exec_inval(Warp& w, const Instr& in, uint32_t mask) {
  for_lanes(mask, [&](int lane) {
    const auto ref = locate(w, args_of(in), lane);
    mbarrier_inval(w.launch(), *ref.cta, ref.offset, w.origin());
  });
  return Step::kNext;
}

void decode_inval(Decoder& d) {
  d.expect_operands(1, 1);
  decode_common(d, 0);
  d.out().exec = exec_inval;
}

Step exec_arrive(Warp& w, const Instr& in, uint32_t mask) {
  const Args& a = args_of(in);
  w.release();
  LaneArrivals arrived;
  const bool watched = (mask & (mask - 1)) != 0 && w.launch().watches(Rule::kMbarrierOverrun);
  for_lanes(mask, [&](int lane) {
    const auto ref = locate(w, a, lane);
    const uint32_t count = a.count == kNoRow ? 1 : w.r32(a.count)[lane];
    uint64_t token;
    if (a.expect) mbarrier_expect_tx(w.launch(), *ref.cta, ref.offset, count, w.origin());
    const uint32_t arrivals = a.expect ? 1 : count;
    const Tells tells = a.relaxed ? Tells::kTime : ref.cta != &w.cta() ? a.peers : Tells::kAll;
    token =
        (a.drop
             ? mbarrier_arrive_drop(w.launch(), *ref.cta, ref.offset, arrivals, w.origin(), tells)
             : mbarrier_arrive(w.launch(), *ref.cta, ref.offset, arrivals, w.origin(), tells));
    if (a.no_complete && mbarrier_pending_of_token(token) == arrivals) {
      w.fault(".noComplete, but all the %u arrivals that mbarrier 0x%x waits for are counted",
              arrivals, ref.offset);
    }
    if (watched) arrived.note(w.launch(), *ref.cta, ref.offset, token, w.origin());
    if (a.state != kNoRow) w.r64(a.state)[lane] = token;
  });
  return Step::kNext;
}

void decode_arrive_any(Decoder& d, bool drop) {
  const bool expect = d.mod("expect_tx"), no_complete = d.mod("noComplete");
  Args* a = decode_common(d, 1);
  d.expect_operands(2, 3);
  a->state = d.dst(0, 64, false, true);
  if (a->state != kNoRow && a->names_cluster) d.error("a state from .shared::cluster must be '_'");
  if (d.count() == 3) a->count = d.src(2, 32);
  if ((expect || no_complete) && a->count == kNoRow) d.error("missing count");
  a->drop = drop;
  a->expect = expect;
  a->no_complete = no_complete;
  d.out().exec = exec_arrive;
}

void decode_arrive(Decoder& d) { decode_arrive_any(d, false); }
void decode_arrive_drop(Decoder& d) { decode_arrive_any(d, true); }

Step exec_expect_tx(Warp& w, const Instr& in, uint32_t mask) {
  const Args& a = args_of(in);
  for_lanes(mask, [&](int lane) {
    const auto ref = locate(w, a, lane);
    mbarrier_expect_tx(w.launch(), *ref.cta, ref.offset, w.r32(a.count)[lane], w.origin());
  });
  return Step::kNext;
}

Step exec_complete_tx(Warp& w, const Instr& in, uint32_t mask) {
  const Args& a = args_of(in);
  for_lanes(mask, [&](int lane) {
    const auto ref = locate(w, a, lane);
    mbarrier_complete_tx(w.launch(), *ref.cta, ref.offset, w.r32(a.count)[lane], w.origin(), false);
  });
  return Step::kNext;
}

void decode_tx(Decoder& d, ExecFn exec) {
  d.expect_operands(2, 2);
  decode_common(d, 0)->count = d.src(1, 32);
  d.out().exec = exec;
}
void decode_expect_tx(Decoder& d) { decode_tx(d, exec_expect_tx); }
void decode_complete_tx(Decoder& d) { decode_tx(d, exec_complete_tx); }

// ---- test_wait and try_wait

std::string describe_wait(const Warp&, const WaitInfo& info) {
  std::string text = mbarrier_describe(*info.cta, static_cast<uint32_t>(info.a));
  if (info.c != 0)
    text +=
        format(" (waits for the end of the phase with parity %u)", static_cast<uint32_t>(info.b));
  return text;
}

// `observes`: the lanes get to know the answer.
uint32_t test(Warp& w, const Args& a, uint32_t mask, bool observes) {
  uint32_t result = 0;
  uint64_t last_address = ~uint64_t{0};
  uint64_t last_value = 0;
  bool last = false;
  for_lanes(mask, [&](int lane) {
    const uint64_t address = w.address(a.addr, lane);
    const uint64_t value = a.parity ? w.r32(a.count)[lane] : w.r64(a.state)[lane];
    if (address != last_address || value != last_value) {
      const auto ref = w.shared(address, 8, 8, a.cluster);
      last = a.parity ? mbarrier_test_parity(w.launch(), *ref.cta, ref.offset,
                                             static_cast<uint32_t>(value), w.origin())
                      : mbarrier_test_token(w.launch(), *ref.cta, ref.offset, value, w.origin());
      if (last && observes)
        w.launch().races().mbarrier_observe(w, *ref.cta, ref.offset, a.relaxed, a.peers);
      last_address = address;
      last_value = value;
    }
    result |= static_cast<uint32_t>(last) << lane;
  });
  return result;
}

// PTX allows the parities 0 and 1. The machine looks at the last bit, and Triton relies on that.
void check_parity(Warp& w, const Args& a, uint32_t mask) {
  const uint32_t* parity = w.r32(a.count);
  for_lanes(mask, [&](int lane) {
    if (parity[lane] <= 1) return;
    w.report(Rule::kMbarrierParity,
             format("phase parity %u is neither 0 nor 1: its last bit counts", parity[lane]));
  });
}

// Both may be used in loops, so an unsuccessful one parks the lanes until the phase completes or
// some time has passed: PTX allows try_wait to suspend, and for test_wait the lanes are merely
// slow. Now and then the answer is "no" at once, as on the machine: mostly so with odd seeds. The
// first answer that a warp gets in one place is "no", unless it knows that the phase is over: it
// might have asked a little earlier. By this a wait outside of a loop is seen to go on too early.
Step exec_wait(Warp& w, const Instr& in, uint32_t mask) {
  const Args& a = args_of(in);
  if (a.parity) check_parity(w, a, mask);
  if (w.launch().races().on() && w.first_time(in)) {
    bool known = true;
    for_lanes(mask, [&](int lane) {
      const auto ref = locate(w, a, lane);
      known = known && w.launch().races().mbarrier_known(w, *ref.cta, ref.offset);
    });
    const uint32_t over = test(w, a, mask, false);
    if (over == 0 || !known) {
      w.set_pred(a.result, mask, 0);
      return Step::kNext;
    }
  }
  const uint32_t result = test(w, a, mask, true);
  const uint32_t parks = w.launch().config().seed % 2 != 0 ? 1 : 7;  // times out of eight
  if (result == 0 && !w.timed_out() && w.launch().random().below(8) < parks) {
    const int lane = first_lane(mask);
    const auto ref = locate(w, a, lane);
    WaitInfo info;
    info.describe = describe_wait;
    info.name = in.sub != 0 ? "mbarrier.try_wait" : "mbarrier.test_wait";
    info.cta = ref.cta;
    info.a = ref.offset;
    info.b = a.parity ? w.r32(a.count)[lane] & 1 : 0;
    info.c = a.parity;
    return w.block_timed(mbarrier_key(*ref.cta, ref.offset), info);
  }
  w.set_pred(a.result, mask, result);
  return Step::kNext;
}

void decode_wait(Decoder& d, bool try_wait) {
  const bool parity = d.mod("parity");
  Args* a = decode_common(d, 1);
  d.expect_operands(3, try_wait ? 4 : 3);
  a->parity = parity;
  a->result = d.pred_dst(0);
  if (parity) {
    a->count = d.src(2, 32);
  } else {
    a->state = d.src(2, 64);
  }
  if (d.count() == 4) d.src(3, 32);  // suspend time hint
  d.out().sub = try_wait;
  d.out().exec = exec_wait;
}
void decode_test_wait(Decoder& d) { decode_wait(d, false); }
void decode_try_wait(Decoder& d) { decode_wait(d, true); }

Step exec_pending_count(Warp& w, const Instr& in, uint32_t mask) {
  uint32_t* d = w.r32(in.op[0]);
  const uint64_t* state = w.r64(in.op[1]);
  for_lanes(mask, [&](int lane) { d[lane] = mbarrier_pending_of_token(state[lane]); });
  return Step::kNext;
}

void decode_pending_count(Decoder& d) {
  d.mod("b64");
  d.expect_operands(2, 2);
  d.out().op[0] = d.dst(0, 32);
  d.out().op[1] = d.src(1, 64);
  d.out().exec = exec_pending_count;
}

}  // namespace

void register_mbarrier(IsaTable& t) {
  t.add({"mbarrier.init", decode_init, "9.7.13.15.9"});
  t.add({"mbarrier.inval", decode_inval, "9.7.13.15.10"});
  t.add({"mbarrier.expect_tx", decode_expect_tx, "9.7.13.15.11"});
  t.add({"mbarrier.complete_tx", decode_complete_tx, "9.7.13.15.12"});
  t.add({"mbarrier.arrive", decode_arrive, "9.7.13.15.13"});
  t.add({"mbarrier.arrive_drop", decode_arrive_drop, "9.7.13.15.14"});
  t.add({"mbarrier.test_wait", decode_test_wait, "9.7.13.15.16"});
  t.add({"mbarrier.try_wait", decode_try_wait, "9.7.13.15.16"});
  t.add({"mbarrier.pending_count", decode_pending_count, "9.7.13.15.17"});
}

}  // namespace bwgemm::emulator
