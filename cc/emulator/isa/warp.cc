// Instructions among the lanes of a warp: shfl, vote, match, redux, elect, activemask,
// bar.warp.sync (PTX ISA 9.7.9.6, 9.7.13.8 - 9.7.13.12).
#include <cmath>

#include "emulator/isa/isa.h"
#include "emulator/isa/lanes.h"
#include "emulator/machine/launch.h"

namespace bwgemm::emulator {
namespace {

uint32_t members_of(Warp& w, Row row, uint32_t mask) { return w.r32(row)[first_lane(mask)]; }

enum class Shuffle : uint8_t { kUp, kDown, kBfly, kIdx };

// op: d, a, b, c, membermask; imm: predicate destination. c = clamp in bits 0-4, segment mask in
// bits 8-12.
Step exec_shfl(Warp& w, const Instr& in, uint32_t mask) {
  const uint32_t members = members_of(w, in.op[4], mask);
  if (!w.gather(members, mask)) return Step::kBlock;
  const uint32_t exited = members & w.existing() & ~w.live();
  if (exited != 0) {
    w.report(
        Rule::kExitedLanes,
        format("the membermask 0x%08x names lanes 0x%08x, which have exited", members, exited));
  }
  uint32_t source[kWarpSize];
  std::memcpy(source, w.r32(in.op[1]), sizeof source);
  const uint32_t *b = w.r32(in.op[2]), *c = w.r32(in.op[3]);
  uint32_t* d = w.r32(in.op[0]);
  uint32_t valid = 0;
  uint32_t result[kWarpSize];
  for_lanes(mask, [&](int lane) {
    const int amount = static_cast<int>(b[lane] & 31);
    const int clamp = static_cast<int>(c[lane] & 31), segment = static_cast<int>(c[lane] >> 8 & 31);
    const int highest = (lane & segment) | (clamp & ~segment);
    const int lowest = lane & segment;
    int from = lane;
    bool in_range = false;
    switch (static_cast<Shuffle>(in.sub)) {
      case Shuffle::kUp:
        from = lane - amount;
        in_range = from >= highest;
        break;
      case Shuffle::kDown:
        from = lane + amount;
        in_range = from <= highest;
        break;
      case Shuffle::kBfly:
        from = lane ^ amount;
        in_range = from <= highest;
        break;
      case Shuffle::kIdx:
        from = lowest | (amount & ~segment);
        in_range = from <= highest;
        break;
    }
    if (!in_range) from = lane;
    if ((mask >> (from & 31) & 1) == 0) {
      w.report(
          Rule::kShuffleSource,
          format("lane %d reads lane %d, which does not execute the shuffle", lane, from & 31));
    }
    // Of such a lane the value is undefined: the same in every run.
    result[lane] = (mask >> (from & 31) & 1) != 0 ? source[from & 31] : 0xCDCDCDCD;
    valid |= static_cast<uint32_t>(in_range) << lane;
  });
  for_lanes(mask, [&](int lane) { d[lane] = result[lane]; });
  w.set_pred(static_cast<Pred>(in.imm), mask, valid);
  return Step::kNext;
}

void decode_shfl(Decoder& d) {
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
  d.out().exec = exec_shfl;
}

enum class Vote : uint8_t { kAll, kAny, kUni, kBallot };

Step exec_vote(Warp& w, const Instr& in, uint32_t mask) {
  if (!w.gather(members_of(w, in.op[2], mask), mask)) return Step::kBlock;
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
  return Step::kNext;
}

void decode_vote(Decoder& d) {
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
  d.out().exec = exec_vote;
}

template <typename T, bool kAll>
Step exec_match(Warp& w, const Instr& in, uint32_t mask) {
  if (!w.gather(members_of(w, in.op[2], mask), mask)) return Step::kBlock;
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
  return Step::kNext;
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
    d.out().exec = mode == "all" ? exec_match<uint32_t, true> : exec_match<uint32_t, false>;
  else if (t.bits == 64)
    d.out().exec = mode == "all" ? exec_match<uint64_t, true> : exec_match<uint64_t, false>;
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
Step exec_redux(Warp& w, const Instr& in, uint32_t mask) {
  if (!w.gather(members_of(w, in.op[2], mask), mask)) return Step::kBlock;
  const Lanes<T> a(w, in.op[1]);
  T total = a.get(first_lane(mask));
  for_lanes(mask & (mask - 1), [&](int lane) { total = Op::f(total, a.get(lane)); });
  Lanes<T> d(w, in.op[0]);
  for_lanes(mask, [&](int lane) { d.set(lane, total); });
  return Step::kNext;
}

// redux.sync.{min,max}{.abs}{.NaN}.f32: NaN operands are skipped unless .NaN. sub: 1 max, 2 abs, 4
// NaN.
Step exec_redux_f32(Warp& w, const Instr& in, uint32_t mask) {
  if (!w.gather(members_of(w, in.op[2], mask), mask)) return Step::kBlock;
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
  return Step::kNext;
}

void decode_redux(Decoder& d) {
  const auto op = d.mod_one_of({"add", "min", "max", "and", "or", "xor"});
  if (op.empty()) d.error("redux.sync without an operation");
  const bool abs = d.mod("abs"), nan = d.mod("NaN");
  const Type t = d.type();
  decode_operands(d, 2, 32, 32);
  if (t.name == "f32" && (op == "min" || op == "max")) {
    d.out().sub = static_cast<uint8_t>((op == "max") | abs << 1 | nan << 2);
    d.out().exec = exec_redux_f32;
    return;
  }
  if (t.bits != 32 || !t.is_int() || abs || nan) d.unsupported("type ." + std::string(t.name));
  const bool s = t.is_signed();
  if (op == "add") d.out().exec = exec_redux<uint32_t, RAdd>;
  if (op == "min") d.out().exec = s ? exec_redux<int32_t, RMin> : exec_redux<uint32_t, RMin>;
  if (op == "max") d.out().exec = s ? exec_redux<int32_t, RMax> : exec_redux<uint32_t, RMax>;
  if (op == "and") d.out().exec = exec_redux<uint32_t, RAnd>;
  if (op == "or") d.out().exec = exec_redux<uint32_t, ROr>;
  if (op == "xor") d.out().exec = exec_redux<uint32_t, RXor>;
}

// The lowest member leads.
Step exec_elect(Warp& w, const Instr& in, uint32_t mask) {
  if (!w.gather(members_of(w, in.op[1], mask), mask)) return Step::kBlock;
  const int leader = first_lane(mask);
  if (in.op[0] != kNoRow) {
    uint32_t* d = w.r32(in.op[0]);
    for_lanes(mask, [&](int lane) { d[lane] = static_cast<uint32_t>(leader); });
  }
  w.set_pred(static_cast<Pred>(in.imm), mask, 1u << leader);
  return Step::kNext;
}

void decode_elect(Decoder& d) {
  d.expect_operands(2, 2);
  const ptx::Operand& dst = d.operand(0);
  if (dst.kind != ptx::Operand::Kind::kPair) d.error("elect.sync needs d|p");
  d.out().op[0] = d.dst(dst.items[0], 32, false, true);
  d.out().imm = d.pred_dst(dst.items[1]);
  d.out().op[1] = d.src(1, 32);
  d.out().exec = exec_elect;
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
  const uint32_t members = members_of(w, in.op[0], mask);
  if (!w.gather_anywhere(members, mask, in)) return Step::kBlock;
  if ((w.live() & ~members) == 0) {
    w.history.meet();
  } else {
    w.history.meet(members);
  }
  return Step::kNext;
}

void decode_warp_sync(Decoder& d) {
  d.expect_operands(1, 1);
  d.out().op[0] = d.src(0, 32);
  d.out().exec = exec_warp_sync;
}

}  // namespace

void register_warp(IsaTable& t) {
  t.add({"shfl.sync", decode_shfl, "9.7.9.6"});
  t.add({"bar.warp.sync", decode_warp_sync, "9.7.13.2"});
  t.add({"vote.sync", decode_vote, "9.7.13.9"});
  t.add({"match", decode_match, "9.7.13.10"});
  t.add({"activemask", decode_activemask, "9.7.13.11"});
  t.add({"redux.sync", decode_redux, "9.7.13.12"});
  t.add({"elect.sync", decode_elect, "9.7.13.14"});
}

}  // namespace bwgemm::emulator
