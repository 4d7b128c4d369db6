// Instructions among the lanes of a warp: shfl, vote, match, redux, elect, activemask,
// bar.warp.sync (PTX ISA 9.7.9.6, 9.7.13.8 - 9.7.13.12).
#include <cmath>

#include "emulator/isa/isa.h"
#include "emulator/isa/lanes.h"
#include "emulator/machine/launch.h"
#include "emulator/machine/shuffle.h"

namespace bwgemm::emulator {
namespace {

// The lanes of `lanes` that name these members.
uint32_t naming(const uint32_t* named, uint32_t members, uint32_t lanes) {
  uint32_t other = 0;
  for (int lane = 0; lane < kWarpSize; ++lane) other |= named[lane] ^ members;
  if (other == 0) return lanes;
  uint32_t same = 0;
  for_lanes(lanes,
            [&](int lane) { same |= static_cast<uint32_t>(named[lane] == members) << lane; });
  return same;
}

// Lanes that name the same members wait for each other: those of one warp may name different ones,
// as the tiles of cooperative groups do. `gathered`: whether all members are here; `exchange`: what
// they then do.
template <class Gathered, class Exchange>
Step by_members(Warp& w, Row membermask, uint32_t mask, Gathered&& gathered, Exchange&& exchange) {
  const uint32_t* named = w.r32(membermask);
  uint32_t done = 0;
  for (uint32_t left = mask; left != 0;) {
    const uint32_t members = named[first_lane(left)];
    const uint32_t same = naming(named, members, left);
    left &= ~same;
    if (!gathered(members, same)) continue;
    exchange(members, same);
    done |= same;
  }
  return w.leave(done, mask);
}

template <void (*exchange)(Warp& w, const Instr& in, uint32_t members, uint32_t mask), int kMembers>
Step among_members(Warp& w, const Instr& in, uint32_t mask) {
  return by_members(
      w, in.op[kMembers], mask,
      [&](uint32_t members, uint32_t lanes) { return w.gathered(members, lanes); },
      [&](uint32_t members, uint32_t lanes) { exchange(w, in, members, lanes); });
}

// op: d, a, b, c, membermask; imm: predicate destination.
void exchange_shfl(Warp& w, const Instr& in, uint32_t members, uint32_t mask) {
  w.report_exited(members);
  uint32_t source[kWarpSize];
  std::memcpy(source, w.r32(in.op[1]), sizeof source);
  const uint32_t *b = w.r32(in.op[2]), *c = w.r32(in.op[3]);
  uint32_t* d = w.r32(in.op[0]);
  uint32_t valid = 0, undefined = 0;
  uint32_t result[kWarpSize];
  for_lanes(mask, [&](int lane) {
    const auto [from, in_range] =
        shuffle_source(static_cast<Shuffle>(in.sub), lane, b[lane], c[lane]);
    // Of a lane that does not execute it the value is undefined: the same in every run.
    const bool there = (mask >> from & 1) != 0;
    result[lane] = there ? source[from] : 0xCDCDCDCD;
    undefined |= static_cast<uint32_t>(!there) << lane;
    valid |= static_cast<uint32_t>(in_range) << lane;
  });
  for_lanes(mask, [&](int lane) { d[lane] = result[lane]; });
  w.set_pred(static_cast<Pred>(in.imm), mask, valid);
  if (undefined != 0) w.undefines(in, in.op[0], undefined, Rule::kShuffleSource);
}

// PTX writes ".sync" first; ptxas takes it in any place, and CUB writes it later.
void expect_sync(Decoder& d, const char* what) {
  if (!d.mod("sync")) d.unsupported(std::string(what) + " without .sync");
}

void decode_shfl(Decoder& d) {
  expect_sync(d, "shfl");
  const auto mode = d.mod_one_of({"up", "down", "bfly", "idx"});
  if (mode.empty()) d.error("shfl.sync without a mode");
  if (d.type().bits != 32) d.unsupported("type");
  d.expect_operands(5, 5);
  const ptx::Operand& dst = d.operand(0);
  d.out().imm = kNoRow;
  if (dst.kind == ptx::Operand::Kind::kPair) {
    d.out().op[0] = d.dst(dst.items[0], 32);
    d.out().imm = d.pred_dst(dst.items[1]);
  } else {
    d.out().op[0] = d.dst(dst, 32);
  }
  for (size_t i = 1; i < 5; ++i) d.out().op[i] = d.src(i, 32);
  d.out().sub = static_cast<uint8_t>(mode == "up"     ? Shuffle::kUp
                                     : mode == "down" ? Shuffle::kDown
                                     : mode == "bfly" ? Shuffle::kBfly
                                                      : Shuffle::kIdx);
  d.out().exec = among_members<exchange_shfl, 4>;
}

enum class Vote : uint8_t { kAll, kAny, kUni, kBallot };

void exchange_vote(Warp& w, const Instr& in, uint32_t, uint32_t mask) {
  const uint32_t votes = w.pred(in.op[1]) & mask;
  switch (static_cast<Vote>(in.sub)) {
    case Vote::kAll:
      w.set_pred(in.op[0], mask, votes == mask ? kFullMask : 0);
      break;
    case Vote::kAny:
      w.set_pred(in.op[0], mask, votes != 0 ? kFullMask : 0);
      break;
    case Vote::kUni:
      w.set_pred(in.op[0], mask, votes == 0 || votes == mask ? kFullMask : 0);
      break;
    case Vote::kBallot: {
      uint32_t* d = w.r32(in.op[0]);
      for_lanes(mask, [&](int lane) { d[lane] = votes; });
      break;
    }
  }
}

void decode_vote(Decoder& d) {
  expect_sync(d, "vote");
  const auto mode = d.mod_one_of({"all", "any", "uni", "ballot"});
  if (mode.empty()) d.error("vote.sync without a mode");
  d.ignore_mods({"pred", "b32"});
  d.expect_operands(3, 3);
  d.out().op[0] = mode == "ballot" ? d.dst(0, 32) : d.pred_dst(0);
  d.out().op[1] = d.pred_src(1);
  d.out().op[2] = d.src(2, 32);
  d.out().sub = static_cast<uint8_t>(mode == "all"   ? Vote::kAll
                                     : mode == "any" ? Vote::kAny
                                     : mode == "uni" ? Vote::kUni
                                                     : Vote::kBallot);
  d.out().exec = among_members<exchange_vote, 2>;
}

template <typename T, bool kAll>
void exchange_match(Warp& w, const Instr& in, uint32_t, uint32_t mask) {
  const Lanes<T> a(w, in.op[1]);
  uint32_t result[kWarpSize];
  bool all = true;
  for_lanes(mask, [&](int lane) {
    uint32_t same = 0;
    for_lanes(mask, [&](int other) {
      same |= static_cast<uint32_t>(a.get(lane) == a.get(other)) << other;
    });
    result[lane] = same;
    all = all && same == mask;
  });
  uint32_t* d = w.r32(in.op[0]);
  for_lanes(mask, [&](int lane) { d[lane] = kAll && !all ? 0 : result[lane]; });
  if (kAll) w.set_pred(static_cast<Pred>(in.imm), mask, all ? kFullMask : 0);
}

void decode_match(Decoder& d) {
  const auto mode = d.mod_one_of({"any", "all"});
  if (mode.empty() || !d.mod("sync")) d.error("match needs .any.sync or .all.sync");
  const Type t = d.type();
  d.expect_operands(3, 3);
  const ptx::Operand& dst = d.operand(0);
  d.out().imm = kNoRow;
  if (dst.kind == ptx::Operand::Kind::kPair) {
    if (mode == "any") d.error("match.any has no predicate");
    d.out().op[0] = d.dst(dst.items[0], 32);
    d.out().imm = d.pred_dst(dst.items[1]);
  } else {
    d.out().op[0] = d.dst(dst, 32);
  }
  d.out().op[1] = d.src(1, t.bits);
  d.out().op[2] = d.src(2, 32);
  if (t.bits == 32)
    d.out().exec = mode == "all" ? among_members<exchange_match<uint32_t, true>, 2>
                                 : among_members<exchange_match<uint32_t, false>, 2>;
  else if (t.bits == 64)
    d.out().exec = mode == "all" ? among_members<exchange_match<uint64_t, true>, 2>
                                 : among_members<exchange_match<uint64_t, false>, 2>;
  else
    d.unsupported("type ." + std::string(t.name));
}

struct RAdd {
  template <typename T>
  static T f(T a, T b) {
    return static_cast<T>(static_cast<uint32_t>(a) + static_cast<uint32_t>(b));
  }
};
struct RMin {
  template <typename T>
  static T f(T a, T b) {
    return a < b ? a : b;
  }
};
struct RMax {
  template <typename T>
  static T f(T a, T b) {
    return a > b ? a : b;
  }
};
struct RAnd {
  template <typename T>
  static T f(T a, T b) {
    return static_cast<T>(a & b);
  }
};
struct ROr {
  template <typename T>
  static T f(T a, T b) {
    return static_cast<T>(a | b);
  }
};
struct RXor {
  template <typename T>
  static T f(T a, T b) {
    return static_cast<T>(a ^ b);
  }
};

template <typename T, typename Op>
void exchange_redux(Warp& w, const Instr& in, uint32_t, uint32_t mask) {
  const Lanes<T> a(w, in.op[1]);
  T total = a.get(first_lane(mask));
  for_lanes(mask & (mask - 1), [&](int lane) { total = Op::f(total, a.get(lane)); });
  Lanes<T> d(w, in.op[0]);
  for_lanes(mask, [&](int lane) { d.set(lane, total); });
}

// redux.sync.{min,max}{.abs}{.NaN}.f32: NaN operands are skipped unless .NaN. sub: 1 max, 2 abs, 4
// NaN.
void exchange_redux_f32(Warp& w, const Instr& in, uint32_t, uint32_t mask) {
  const float* a = w.f32(in.op[1]);
  float total = NAN;
  bool poisoned = false;
  for_lanes(mask, [&](int lane) {
    const float value = (in.sub & 2) != 0 ? std::fabs(a[lane]) : a[lane];
    if (std::isnan(value)) {
      poisoned = true;
    } else if (std::isnan(total) || ((in.sub & 1) != 0 ? value > total : value < total)) {
      total = value;
    }
  });
  if (poisoned && (in.sub & 4) != 0) total = NAN;
  float* d = w.f32(in.op[0]);
  for_lanes(mask, [&](int lane) { d[lane] = total; });
}

void decode_redux(Decoder& d) {
  expect_sync(d, "redux");
  const auto op = d.mod_one_of({"add", "min", "max", "and", "or", "xor"});
  if (op.empty()) d.error("redux.sync without an operation");
  const bool abs = d.mod("abs"), nan = d.mod("NaN");
  const Type t = d.type();
  decode_operands(d, 2, 32, 32);
  if (t.name == "f32" && (op == "min" || op == "max")) {
    d.out().sub = static_cast<uint8_t>((op == "max") | abs << 1 | nan << 2);
    d.out().exec = among_members<exchange_redux_f32, 2>;
    return;
  }
  if (t.bits != 32 || !t.is_int() || abs || nan) d.unsupported("type ." + std::string(t.name));
  const bool s = t.is_signed();
  if (op == "add") d.out().exec = among_members<exchange_redux<uint32_t, RAdd>, 2>;
  if (op == "min")
    d.out().exec = s ? among_members<exchange_redux<int32_t, RMin>, 2>
                     : among_members<exchange_redux<uint32_t, RMin>, 2>;
  if (op == "max")
    d.out().exec = s ? among_members<exchange_redux<int32_t, RMax>, 2>
                     : among_members<exchange_redux<uint32_t, RMax>, 2>;
  if (op == "and") d.out().exec = among_members<exchange_redux<uint32_t, RAnd>, 2>;
  if (op == "or") d.out().exec = among_members<exchange_redux<uint32_t, ROr>, 2>;
  if (op == "xor") d.out().exec = among_members<exchange_redux<uint32_t, RXor>, 2>;
}

// The lowest member leads.
void exchange_elect(Warp& w, const Instr& in, uint32_t, uint32_t mask) {
  const int leader = first_lane(mask);
  if (in.op[0] != kNoRow) {
    uint32_t* d = w.r32(in.op[0]);
    for_lanes(mask, [&](int lane) { d[lane] = static_cast<uint32_t>(leader); });
  }
  w.set_pred(static_cast<Pred>(in.imm), mask, 1u << leader);
}

void decode_elect(Decoder& d) {
  d.expect_operands(2, 2);
  const ptx::Operand& dst = d.operand(0);
  if (dst.kind != ptx::Operand::Kind::kPair) d.error("elect.sync needs d|p");
  d.out().op[0] = d.dst(dst.items[0], 32, false, true);
  d.out().imm = d.pred_dst(dst.items[1]);
  d.out().op[1] = d.src(1, 32);
  d.out().exec = among_members<exchange_elect, 1>;
}

Step exec_activemask(Warp& w, const Instr& in, uint32_t mask) {
  uint32_t* d = w.r32(in.op[0]);
  for_lanes(mask, [&](int lane) { d[lane] = mask; });
  return Step::kNext;
}

void decode_activemask(Decoder& d) {
  d.mod("b32");
  d.expect_operands(1, 1);
  d.out().op[0] = d.dst(0, 32);
  d.out().exec = exec_activemask;
}

Step exec_warp_sync(Warp& w, const Instr& in, uint32_t mask) {
  return by_members(
      w, in.op[0], mask,
      [&](uint32_t members, uint32_t lanes) { return w.gathered_anywhere(members, lanes, in); },
      [&](uint32_t members, uint32_t) {
        w.report_exited(members);
        if ((w.live() & ~members) == 0) {
          w.history.meet();
        } else {
          w.history.meet(members);
        }
      });
}

void decode_warp_sync(Decoder& d) {
  d.expect_operands(1, 1);
  d.out().op[0] = d.src(0, 32);
  d.out().exec = exec_warp_sync;
}

}  // namespace

void register_warp(IsaTable& t) {
  t.add({"shfl", decode_shfl, "9.7.9.6"});
  t.add({"bar.warp.sync", decode_warp_sync, "9.7.13.2"});
  t.add({"vote", decode_vote, "9.7.13.9"});
  t.add({"match", decode_match, "9.7.13.10"});
  t.add({"activemask", decode_activemask, "9.7.13.11"});
  t.add({"redux", decode_redux, "9.7.13.12"});
  t.add({"elect.sync", decode_elect, "9.7.13.14"});
}

}  // namespace bwgemm::emulator
