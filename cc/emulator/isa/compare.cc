// Comparison: set and setp (PTX ISA 9.7.6.1, 9.7.6.2), half-precision forms (9.7.7).
#include <cmath>

#include "emulator/isa/isa.h"
#include "emulator/isa/lanes.h"
#include "emulator/isa/numbers.h"

namespace bwgemm::emulator {
namespace {

enum class Cmp : uint8_t {
  kEq,
  kNe,
  kLt,
  kLe,
  kGt,
  kGe,
  kEqu,
  kNeu,
  kLtu,
  kLeu,
  kGtu,
  kGeu,
  kNum,
  kNan
};
enum class Combine : uint8_t { kNone, kAnd, kOr, kXor };

template <Cmp kCmp, typename T>
bool compare(T a, T b) {
  bool nan = false;
  if constexpr (std::is_floating_point_v<T>) nan = std::isnan(a) || std::isnan(b);
  switch (kCmp) {
    case Cmp::kEq:
      return a == b;
    case Cmp::kNe:
      return a != b && !nan;
    case Cmp::kLt:
      return a < b;
    case Cmp::kLe:
      return a <= b;
    case Cmp::kGt:
      return a > b;
    case Cmp::kGe:
      return a >= b;
    case Cmp::kEqu:
      return a == b || nan;
    case Cmp::kNeu:
      return a != b || nan;
    case Cmp::kLtu:
      return a < b || nan;
    case Cmp::kLeu:
      return a <= b || nan;
    case Cmp::kGtu:
      return a > b || nan;
    case Cmp::kGeu:
      return a >= b || nan;
    case Cmp::kNum:
      return !nan;
    case Cmp::kNan:
      return nan;
  }
  return false;
}

// What the lanes hold and what is compared.
struct F16 {
  static float load(uint32_t bits) { return f16_to_f32(bits & 0xFFFF); }
};
struct Bf16 {
  static float load(uint32_t bits) { return bf16_to_f32(bits & 0xFFFF); }
};
template <typename T>
struct Plain {};

template <typename Source>
struct Loader {
  Loader(Warp& w, Row row) : raw(w.r32(row)) {}
  float get(int lane) const { return Source::load(raw[lane]); }
  float high(int lane) const { return Source::load(raw[lane] >> 16); }
  const uint32_t* raw;
};
template <typename T>
struct Loader<Plain<T>> : Lanes<T> {
  using Lanes<T>::Lanes;
};

uint32_t combine(Combine how, uint32_t value, uint32_t with) {
  switch (how) {
    case Combine::kAnd:
      return value & with;
    case Combine::kOr:
      return value | with;
    case Combine::kXor:
      return value ^ with;
    default:
      return value;
  }
}

// setp: op[0] p, op[1] q (the complement), op[2], op[3] sources, op[4] combining predicate, sub the
// combination.
template <typename Source, Cmp kCmp>
Step exec_setp(Warp& w, const Instr& in, uint32_t mask) {
  const Loader<Source> a(w, in.op[2]), b(w, in.op[3]);
  uint32_t result = 0;
  for (int lane = 0; lane < kWarpSize; ++lane) {
    result |= static_cast<uint32_t>(compare<kCmp>(a.get(lane), b.get(lane))) << lane;
  }
  const Combine how = static_cast<Combine>(in.sub);
  const uint32_t with = how == Combine::kNone ? 0 : w.pred(in.op[4]);
  w.set_pred(in.op[0], mask, combine(how, result, with));
  w.set_pred(in.op[1], mask, combine(how, ~result, with));
  return Step::kNext;
}

// The packed form compares the low halves into p and the high halves into q.
template <typename Source, Cmp kCmp>
Step exec_setp_x2(Warp& w, const Instr& in, uint32_t mask) {
  const Loader<Source> a(w, in.op[2]), b(w, in.op[3]);
  uint32_t low = 0, high = 0;
  for (int lane = 0; lane < kWarpSize; ++lane) {
    low |= static_cast<uint32_t>(compare<kCmp>(a.get(lane), b.get(lane))) << lane;
    high |= static_cast<uint32_t>(compare<kCmp>(a.high(lane), b.high(lane))) << lane;
  }
  const Combine how = static_cast<Combine>(in.sub);
  const uint32_t with = how == Combine::kNone ? 0 : w.pred(in.op[4]);
  w.set_pred(in.op[0], mask, combine(how, low, with));
  w.set_pred(in.op[1], mask, combine(how, high, with));
  return Step::kNext;
}

// set: the destination gets all ones (integer) or 1.0 (imm holds the pattern of "true").
template <typename Source, Cmp kCmp>
Step exec_set(Warp& w, const Instr& in, uint32_t mask) {
  uint32_t* d = w.r32(in.op[0]);
  const Loader<Source> a(w, in.op[2]), b(w, in.op[3]);
  const Combine how = static_cast<Combine>(in.sub);
  const uint32_t with = how == Combine::kNone ? 0 : w.pred(in.op[4]);
  const uint32_t yes = static_cast<uint32_t>(in.imm);
  for_lanes(mask, [&](int lane) {
    const uint32_t bit = combine(how, compare<kCmp>(a.get(lane), b.get(lane)), with >> lane & 1);
    d[lane] = (bit & 1) != 0 ? yes : 0;
  });
  return Step::kNext;
}
template <typename Source, Cmp kCmp>
Step exec_set_x2(Warp& w, const Instr& in, uint32_t mask) {
  uint32_t* d = w.r32(in.op[0]);
  const Loader<Source> a(w, in.op[2]), b(w, in.op[3]);
  const Combine how = static_cast<Combine>(in.sub);
  const uint32_t with = how == Combine::kNone ? 0 : w.pred(in.op[4]);
  const uint32_t yes = static_cast<uint32_t>(in.imm) & 0xFFFF;
  for_lanes(mask, [&](int lane) {
    const uint32_t c = with >> lane & 1;
    const bool low = (combine(how, compare<kCmp>(a.get(lane), b.get(lane)), c) & 1) != 0;
    const bool high = (combine(how, compare<kCmp>(a.high(lane), b.high(lane)), c) & 1) != 0;
    d[lane] = (low ? yes : 0) | (high ? yes << 16 : 0);
  });
  return Step::kNext;
}

enum class Form : uint8_t { kSetp, kSetpX2, kSet, kSetX2 };

template <typename Source, Cmp kCmp>
ExecFn pick_form(Form form) {
  if constexpr (std::is_same_v<Source, F16> || std::is_same_v<Source, Bf16>) {
    if (form == Form::kSetpX2) return exec_setp_x2<Source, kCmp>;
    if (form == Form::kSetX2) return exec_set_x2<Source, kCmp>;
  }
  return form == Form::kSetp ? exec_setp<Source, kCmp> : exec_set<Source, kCmp>;
}

template <typename Source>
ExecFn pick_cmp(Form form, Cmp cmp) {
  switch (cmp) {
    case Cmp::kEq:
      return pick_form<Source, Cmp::kEq>(form);
    case Cmp::kNe:
      return pick_form<Source, Cmp::kNe>(form);
    case Cmp::kLt:
      return pick_form<Source, Cmp::kLt>(form);
    case Cmp::kLe:
      return pick_form<Source, Cmp::kLe>(form);
    case Cmp::kGt:
      return pick_form<Source, Cmp::kGt>(form);
    case Cmp::kGe:
      return pick_form<Source, Cmp::kGe>(form);
    case Cmp::kEqu:
      return pick_form<Source, Cmp::kEqu>(form);
    case Cmp::kNeu:
      return pick_form<Source, Cmp::kNeu>(form);
    case Cmp::kLtu:
      return pick_form<Source, Cmp::kLtu>(form);
    case Cmp::kLeu:
      return pick_form<Source, Cmp::kLeu>(form);
    case Cmp::kGtu:
      return pick_form<Source, Cmp::kGtu>(form);
    case Cmp::kGeu:
      return pick_form<Source, Cmp::kGeu>(form);
    case Cmp::kNum:
      return pick_form<Source, Cmp::kNum>(form);
    case Cmp::kNan:
      return pick_form<Source, Cmp::kNan>(form);
  }
  return nullptr;
}

ExecFn pick_source(Decoder& d, Type t, Form form, Cmp cmp) {
  const bool s = t.is_signed();
  if (t.kind == TypeKind::kFloat && t.bits / t.lanes == 16) return pick_cmp<F16>(form, cmp);
  if (t.kind == TypeKind::kBfloat) return pick_cmp<Bf16>(form, cmp);
  if (t.kind == TypeKind::kFloat && t.lanes == 1)
    return t.bits == 32 ? pick_cmp<Plain<float>>(form, cmp) : pick_cmp<Plain<double>>(form, cmp);
  if (t.is_int() && t.lanes == 1) {
    if (t.bits == 16)
      return s ? pick_cmp<Plain<int16_t>>(form, cmp) : pick_cmp<Plain<uint16_t>>(form, cmp);
    if (t.bits == 32)
      return s ? pick_cmp<Plain<int32_t>>(form, cmp) : pick_cmp<Plain<uint32_t>>(form, cmp);
    if (t.bits == 64)
      return s ? pick_cmp<Plain<int64_t>>(form, cmp) : pick_cmp<Plain<uint64_t>>(form, cmp);
  }
  d.unsupported("type ." + std::string(t.name));
}

Cmp take_cmp(Decoder& d, bool* is_unordered_int) {
  static constexpr std::pair<std::string_view, Cmp> kNames[] = {
      {"eq", Cmp::kEq},   {"ne", Cmp::kNe},   {"lt", Cmp::kLt},   {"le", Cmp::kLe},
      {"gt", Cmp::kGt},   {"ge", Cmp::kGe},   {"equ", Cmp::kEqu}, {"neu", Cmp::kNeu},
      {"ltu", Cmp::kLtu}, {"leu", Cmp::kLeu}, {"gtu", Cmp::kGtu}, {"geu", Cmp::kGeu},
      {"num", Cmp::kNum}, {"nan", Cmp::kNan}};
  // lo, ls, hi, hs: unsigned comparisons.
  static constexpr std::pair<std::string_view, Cmp> kUnsigned[] = {
      {"lo", Cmp::kLt}, {"ls", Cmp::kLe}, {"hi", Cmp::kGt}, {"hs", Cmp::kGe}};
  *is_unordered_int = false;
  for (const auto& [name, cmp] : kNames) {
    if (d.mod(name)) return cmp;
  }
  for (const auto& [name, cmp] : kUnsigned) {
    if (d.mod(name)) {
      *is_unordered_int = true;
      return cmp;
    }
  }
  d.error("comparison without an operator");
}

Combine take_combine(Decoder& d) {
  if (d.mod("and")) return Combine::kAnd;
  if (d.mod("or")) return Combine::kOr;
  if (d.mod("xor")) return Combine::kXor;
  return Combine::kNone;
}

void decode_setp(Decoder& d) {
  bool is_unsigned;
  const Cmp cmp = take_cmp(d, &is_unsigned);
  const Combine how = take_combine(d);
  d.mod("ftz");
  Type t = d.type();
  if (is_unsigned) t.kind = TypeKind::kUnsigned;
  const size_t n = how == Combine::kNone ? 3 : 4;
  d.expect_operands(n, n);
  const ptx::Operand& dst = d.operand(0);
  if (dst.kind == ptx::Operand::Kind::kPair) {
    if (dst.items.size() != 2) d.error("expected p|q");
    d.out().op[0] = d.pred_dst(dst.items[0]);
    d.out().op[1] = d.pred_dst(dst.items[1]);
  } else {
    if (t.lanes == 2) d.error("the packed form needs p|q");
    d.out().op[0] = d.pred_dst(dst);
  }
  d.out().op[2] = d.src(1, t);
  d.out().op[3] = d.src(2, t);
  if (how != Combine::kNone) d.out().op[4] = d.pred_src(3);
  d.out().sub = static_cast<uint8_t>(how);
  d.out().exec = pick_source(d, t, t.lanes == 2 ? Form::kSetpX2 : Form::kSetp, cmp);
}

void decode_set(Decoder& d) {
  bool is_unsigned;
  const Cmp cmp = take_cmp(d, &is_unsigned);
  const Combine how = take_combine(d);
  d.mod("ftz");
  const Type to = d.type();
  Type from = d.type();
  if (is_unsigned) from.kind = TypeKind::kUnsigned;
  const size_t n = how == Combine::kNone ? 3 : 4;
  d.expect_operands(n, n);
  if (to.bits > 32) d.unsupported("type ." + std::string(to.name));
  d.out().op[0] = d.dst(0, to.bits);
  d.out().op[2] = d.src(1, from);
  d.out().op[3] = d.src(2, from);
  if (how != Combine::kNone) d.out().op[4] = d.pred_src(3);
  d.out().sub = static_cast<uint8_t>(how);
  int64_t yes = to.bits == 16 ? 0xFFFF : 0xFFFFFFFF;
  if (to.kind == TypeKind::kFloat) yes = to.bits / to.lanes == 16 ? 0x3C00 : 0x3F800000;
  if (to.kind == TypeKind::kBfloat) yes = 0x3F80;
  d.out().imm = yes;
  d.out().exec = pick_source(d, from, from.lanes == 2 ? Form::kSetX2 : Form::kSet, cmp);
}

}  // namespace

void register_compare(IsaTable& t) {
  t.add({"set", decode_set, "9.7.6.1"});
  t.add({"setp", decode_setp, "9.7.6.2"});
}

}  // namespace bwgemm::emulator
