// cp.async: non-bulk copies from global to shared memory, their groups and mbarriers (PTX
// ISA 9.7.9.25.3, 9.7.13.15.15).
//
// The copies of a warp finish in the order of issue, at any later time. They belong to the generic
// proxy.
#include <algorithm>
#include <cstring>

#include "emulator/isa/isa.h"
#include "emulator/isa/lanes.h"
#include "emulator/machine/launch.h"
#include "emulator/machine/mbarrier.h"

namespace bwgemm::emulator {
namespace {

constexpr uint64_t kGroupKey = 0xCA;

uint64_t queue_of(Warp& w) { return reinterpret_cast<uintptr_t>(&w) | 1; }

struct Args {
  Address to, from;
  int bytes = 16;
  Row source_bytes = kNoRow;  // fewer bytes are read, the rest is zero
  Pred ignore = kNoRow;       // read nothing, write zeros
};

// The copies of a warp are counted by instruction; those up to `count`.
Stamp copies_of(Warp& w, uint32_t count, int32_t line) {
  Races& races = w.launch().races();
  if (!races.on()) return {};
  return races.queue(w.cta().cluster(), Races::Queue::kCpAsync, w.history.actor, 0, count, line);
}

class Copy : public AsyncOp {
 public:
  struct Piece {
    int lane;
    uint32_t offset;
    uint64_t group;
    Stamp stamp;
    uint8_t data[16];
    const uint8_t* source;
    uint32_t source_bytes;
    bool repeats = false;  // another lane's piece, which writes the same: only one is a write
  };
  bool step(Launch& launch) override {
    SharedMemory& shared = origin.cta->shared();
    for (Piece& p : pieces) {
      std::memset(p.data, 0, bytes);
      if (p.source_bytes > 0) std::memcpy(p.data, p.source, p.source_bytes);
      std::memcpy(shared.data(p.offset), p.data, bytes);
      if (!p.repeats) shared.end_async_write(p.offset, bytes, origin.line);
      shared.stamp(p.offset, bytes, warp->proxy_stamp());
      AsyncGroups& groups = warp->cp_async_groups(p.lane);
      groups.read_done(p.group);
      groups.done(p.group);
    }
    launch.wake(wait_key(warp, kGroupKey), *warp);
    return true;
  }
  // Surplus lanes of cooperative_groups::memcpy_async copy what another lane copies.
  bool has(const Piece& piece) const {
    return std::any_of(pieces.begin(), pieces.end(), [&](const Piece& p) {
      return p.offset == piece.offset && p.source == piece.source &&
             p.source_bytes == piece.source_bytes;
    });
  }
  Warp* warp = nullptr;
  uint32_t bytes = 0;
  std::vector<Piece> pieces;
};

Step exec_copy(Warp& w, const Instr& in, uint32_t mask) {
  const auto& a = *static_cast<const Args*>(in.aux);
  auto op = std::make_unique<Copy>();
  op->warp = &w;
  op->bytes = static_cast<uint32_t>(a.bytes);
  const uint32_t bytes = op->bytes;
  for_lanes(mask, [&](int lane) {
    Copy::Piece p;
    p.lane = lane;
    p.source_bytes = bytes;
    if (a.source_bytes != kNoRow) {
      p.source_bytes = w.r32(a.source_bytes)[lane];
      if (p.source_bytes > bytes)
        w.fault("src-size %u is larger than cp-size %u", p.source_bytes, bytes);
    }
    if (a.ignore != kNoRow && (w.pred(a.ignore) >> lane & 1) != 0) p.source_bytes = 0;
    const auto ref = w.shared(w.address(a.to, lane), bytes, bytes, false);
    p.offset = ref.offset;
    uint64_t from = w.address(a.from, lane);
    if ((from & (bytes - 1)) != 0)
      w.fault("global address 0x%llx is not a multiple of %u",
              static_cast<unsigned long long>(from), bytes);
    p.source = p.source_bytes > 0 ? w.global(from, p.source_bytes, 1, false) : nullptr;
    p.group = w.cp_async_groups(lane).join();
    p.stamp = copies_of(w, w.cp_async_history().issued + 1, in.line);
    if (p.stamp.cluster != 0) {
      w.history.copies.add(p.stamp.actor, {p.stamp.clock, p.offset, static_cast<uint8_t>(bytes),
                                           static_cast<uint8_t>(lane)});
    }
    p.repeats = op->has(p);
    if (!p.repeats)
      ref.cta->shared().begin_async_write(w.launch(), p.offset, bytes, w.origin(), p.stamp);
    if (p.source != nullptr && w.launch().races().on() &&
        w.launch().memory().last_found_writable()) {
      w.launch().races().access_global(w, from, p.source_bytes, p.stamp, false, w.origin());
    }
    op->pieces.push_back(p);
    w.launch().stats().global_load_bytes += p.source_bytes;
  });
  ++w.cp_async_history().issued;
  op->trace_arg = uint64_t{bytes} * op->pieces.size();
  w.launch().submit(w, std::move(op), queue_of(w));
  return Step::kNext;
}

void decode_copy(Decoder& d) {
  auto* a = d.make_aux<Args>();
  const auto cache = d.mod_one_of({"ca", "cg"});
  if (cache.empty()) d.error("cp.async needs .ca or .cg");
  d.ignore_mods({"shared", "shared::cta", "global"});
  bool hint = false;
  for (std::string_view m = d.mod_prefix("L2::"); !m.empty(); m = d.mod_prefix("L2::"))
    hint |= m == "L2::cache_hint";
  d.expect_operands(3, 5);
  a->to = d.address(0, ptx::Space::kShared);
  a->from = d.address(1, ptx::Space::kGlobal);
  const int64_t bytes = d.int_constant(2);
  if (bytes != 16 && (cache == "cg" || (bytes != 4 && bytes != 8)))
    d.error("cp-size must be 4, 8 or 16 (with .cg 16)");
  a->bytes = static_cast<int>(bytes);
  const size_t optional = d.count() - (hint ? 1 : 0);
  if (hint && d.count() > 3) d.src(d.count() - 1, 64);
  if (optional == 4) {
    if (d.is_pred(d.operand(3)))
      a->ignore = d.pred_src(3);
    else
      a->source_bytes = d.src(3, 32);
  } else if (optional > 4) {
    d.error("too many operands");
  }
  d.out().exec = exec_copy;
}

Step exec_commit(Warp& w, const Instr&, uint32_t mask) {
  for_lanes(mask, [&](int lane) { w.cp_async_groups(lane).commit(); });
  w.cp_async_history().committed.push_back(w.cp_async_history().issued);
  return Step::kNext;
}

void decode_commit(Decoder& d) {
  d.expect_operands(0, 0);
  d.out().exec = exec_commit;
}

std::string describe_groups(const Warp&, const WaitInfo& info) {
  return format("cp.async groups: at most %u may be pending", static_cast<uint32_t>(info.a));
}

Step exec_wait(Warp& w, const Instr& in, uint32_t mask) {
  bool wait = false;
  for_lanes(mask, [&](int lane) {
    wait = wait || w.cp_async_groups(lane).pending() > static_cast<uint64_t>(in.imm);
  });
  if (!wait) {
    CpAsyncHistory& history = w.cp_async_history();
    while (history.committed.size() > static_cast<uint64_t>(in.imm)) {
      history.waited = history.committed.front();
      history.committed.pop_front();
    }
    if (history.waited != 0) {
      // Ordinary writes of this thread from now on: the asynchronous proxy needs its fence.
      const Stamp done = copies_of(w, history.waited, in.line);
      w.history.learn(done, View::kGeneric);
      w.history.learn(done, View::kTime);
      w.history.copies.wait(history.waited, w.history.clock, w.history.together);
    }
    return Step::kNext;
  }
  WaitInfo info;
  info.describe = describe_groups;
  info.name = "cp.async.wait_group";
  info.a = static_cast<uint64_t>(in.imm);
  return w.block(wait_key(&w, kGroupKey), info);
}

// wait_all commits what is open and waits for everything.
Step exec_wait_all(Warp& w, const Instr& in, uint32_t mask) {
  if (w.token() == 0) exec_commit(w, in, mask);
  w.token() = 1;
  return exec_wait(w, in, mask);
}

void decode_wait_group(Decoder& d) {
  d.expect_operands(1, 1);
  d.out().imm = d.int_constant(0);
  if (d.out().imm < 0) d.error("negative group count");
  d.out().exec = exec_wait;
}

void decode_wait_all(Decoder& d) {
  d.expect_operands(0, 0);
  d.out().imm = 0;
  d.out().exec = exec_wait_all;
}

// Arrives when the thread's earlier copies are done. Without .noinc the pending count is raised
// first, so that the arrival cancels out in the expected count: a pending arrival more.
class Arrive : public AsyncOp {
 public:
  bool step(Launch& launch) override {
    LaneArrivals arrived;
    for (uint32_t offset : offsets) {
      const uint64_t token =
          mbarrier_arrive(launch, *origin.cta, offset, 1, origin, Tells::kAll, &arrival);
      arrived.note(launch, *origin.cta, offset, token, origin);
    }
    return true;
  }
  Arrival arrival;
  std::vector<uint32_t> offsets;
};

Step exec_mbarrier_arrive(Warp& w, const Instr& in, uint32_t mask) {
  auto op = std::make_unique<Arrive>();
  for_lanes(mask, [&](int lane) {
    const auto ref = w.shared(w.address(in.addr, lane), 8, 8, false);
    if (in.sub == 0) mbarrier_add_pending(w.launch(), *ref.cta, ref.offset, 1, w.origin());
    op->offsets.push_back(ref.offset);
  });
  w.release();
  if (w.launch().races().on()) {
    // Speaks for the copies so far, and for what the thread knows.
    const Stamp done = copies_of(w, w.cp_async_history().issued, in.line);
    op->arrival = {done, w.history.knows, false};
    op->arrival.knows.learn(done.cluster, done.actor, done.clock, View::kGeneric);
    op->arrival.knows.learn(done.cluster, done.actor, done.clock, View::kTime);
  }
  w.launch().submit(w, std::move(op), queue_of(w));
  return Step::kNext;
}

void decode_mbarrier_arrive(Decoder& d) {
  d.out().sub = d.mod("noinc");
  d.ignore_mods({"shared", "shared::cta", "b64"});
  d.expect_operands(1, 1);
  d.out().addr = d.address(0, ptx::Space::kShared);
  d.out().exec = exec_mbarrier_arrive;
}

}  // namespace

void register_cp_async(IsaTable& t) {
  t.add({"cp.async", decode_copy, "9.7.9.25.3.1"});
  t.add({"cp.async.commit_group", decode_commit, "9.7.9.25.3.2"});
  t.add({"cp.async.wait_group", decode_wait_group, "9.7.9.25.3.3"});
  t.add({"cp.async.wait_all", decode_wait_all, "9.7.9.25.3.3"});
  t.add({"cp.async.mbarrier.arrive", decode_mbarrier_arrive, "9.7.13.15.15"});
}

}  // namespace bwgemm::emulator
