// Comparison: set and setp (PTX ISA 9.7.6.1, 9.7.6.2), half-precision forms (9.7.7).
#include <cmath>

#include "emulator/isa/float_modes.h"
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

// How two values stand to each other, a bit each; a comparison is true of some of these relations.
constexpr uint32_t kLess = 1, kEqual = 2, kGreater = 4, kUnordered = 8;
constexpr uint32_t relations(Cmp cmp) {
  switch (cmp) {
    case Cmp::kEq:
      return kEqual;
    case Cmp::kNe:
      return kLess | kGreater;
    case Cmp::kLt:
      return kLess;
    case Cmp::kLe:
      return kLess | kEqual;
    case Cmp::kGt:
      return kGreater;
    case Cmp::kGe:
      return kGreater | kEqual;
    case Cmp::kNan:
      return kUnordered;
    case Cmp::kNum:
      return kLess | kEqual | kGreater;
    default:  // equ and the like: eq, or unordered
      const int ordered = static_cast<int>(cmp) - static_cast<int>(Cmp::kEqu);
      return relations(static_cast<Cmp>(ordered)) | kUnordered;
  }
}
template <typename T>
bool compare(T a, T b, uint32_t relations) {
  const uint32_t relation = a < b ? kLess : a == b ? kEqual : a > b ? kGreater : kUnordered;
  return (relation & relations) != 0;
}
template <Cmp kCmp, typename T>
bool compare(T a, T b) {
  switch (kCmp) {  // what the compiler has vector instructions for
    case Cmp::kEq:
      return a == b;
    case Cmp::kLt:
      return a < b;
    case Cmp::kLe:
      return a <= b;
    case Cmp::kGt:
      return a > b;
    case Cmp::kGe:
      return a >= b;
    case Cmp::kNeu:
      return a != b;
    default:
      return compare(a, b, relations(kCmp));
  }
}

// What the lanes hold and what is compared.
struct F16 {
  static float load(uint32_t bits) { return f16_to_f32(bits & 0xFFFF); }
};
struct Bf16 {
  static float load(uint32_t bits) { return bf16_to_f32(bits & 0xFFFF); }
};
struct FlushedF16 {
  static float load(uint32_t bits) {
    return F16::load((bits & 0x7C00) != 0 ? bits : bits & 0x8000);
  }
};
struct FlushedF32 {
  static float load(uint32_t bits) { return flush(f32_of(bits)); }
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

// The combining predicate's operator and, of forms whose comparison is not a template's, its
// relations: Instr::sub.
uint8_t packed(Combine how, Cmp cmp) {
  return static_cast<uint8_t>(static_cast<uint32_t>(how) | relations(cmp) << 2);
}
Combine combine_of(const Instr& in) { return static_cast<Combine>(in.sub & 3); }
uint32_t relations_of(const Instr& in) { return in.sub >> 2; }

uint32_t combining(Warp& w, const Instr& in) {
  return combine_of(in) == Combine::kNone ? 0 : w.pred(in.op[4]);
}
void set_both(Warp& w, const Instr& in, uint32_t mask, uint32_t p, uint32_t q) {
  const uint32_t with = combining(w, in);
  w.set_pred(in.op[0], mask, combine(combine_of(in), p, with));
  w.set_pred(in.op[1], mask, combine(combine_of(in), q, with));
}

// setp: op[0] p, op[1] q (the complement), op[2], op[3] sources, op[4] combining predicate.
template <typename T, Cmp kCmp>
Step exec_setp(Warp& w, const Instr& in, uint32_t mask) {
  const Lanes<T> a(w, in.op[2]), b(w, in.op[3]);
  uint32_t result = 0;
  for (int lane = 0; lane < kWarpSize; ++lane) {
    result |= static_cast<uint32_t>(compare<kCmp>(a.get(lane), b.get(lane))) << lane;
  }
  set_both(w, in, mask, result, ~result);
  return Step::kNext;
}

template <typename Source>
Step exec_setp_loaded(Warp& w, const Instr& in, uint32_t mask) {
  const Loader<Source> a(w, in.op[2]), b(w, in.op[3]);
  uint32_t result = 0;
  for (int lane = 0; lane < kWarpSize; ++lane) {
    result |= static_cast<uint32_t>(compare(a.get(lane), b.get(lane), relations_of(in))) << lane;
  }
  set_both(w, in, mask, result, ~result);
  return Step::kNext;
}

// The packed form compares the low halves into p and the high halves into q.
template <typename Source>
Step exec_setp_x2(Warp& w, const Instr& in, uint32_t mask) {
  const Loader<Source> a(w, in.op[2]), b(w, in.op[3]);
  uint32_t low = 0, high = 0;
  for (int lane = 0; lane < kWarpSize; ++lane) {
    low |= static_cast<uint32_t>(compare(a.get(lane), b.get(lane), relations_of(in))) << lane;
    high |= static_cast<uint32_t>(compare(a.high(lane), b.high(lane), relations_of(in))) << lane;
  }
  set_both(w, in, mask, low, high);
  return Step::kNext;
}

// set: the destination gets all ones (integer) or 1.0 (imm holds the pattern of "true").
template <typename Source>
Step exec_set(Warp& w, const Instr& in, uint32_t mask) {
  uint32_t* d = w.r32(in.op[0]);
  const Loader<Source> a(w, in.op[2]), b(w, in.op[3]);
  const uint32_t with = combining(w, in);
  const uint32_t yes = static_cast<uint32_t>(in.imm);
  for_lanes(mask, [&](int lane) {
    const bool found = compare(a.get(lane), b.get(lane), relations_of(in));
    d[lane] = (combine(combine_of(in), found, with >> lane & 1) & 1) != 0 ? yes : 0;
  });
  return Step::kNext;
}
template <typename Source>
Step exec_set_x2(Warp& w, const Instr& in, uint32_t mask) {
  uint32_t* d = w.r32(in.op[0]);
  const Loader<Source> a(w, in.op[2]), b(w, in.op[3]);
  const uint32_t with = combining(w, in);
  const uint32_t yes = static_cast<uint32_t>(in.imm) & 0xFFFF;
  for_lanes(mask, [&](int lane) {
    const uint32_t c = with >> lane & 1, of = relations_of(in);
    const bool low = (combine(combine_of(in), compare(a.get(lane), b.get(lane), of), c) & 1) != 0;
    const bool high =
        (combine(combine_of(in), compare(a.high(lane), b.high(lane), of), c) & 1) != 0;
    d[lane] = (low ? yes : 0) | (high ? yes << 16 : 0);
  });
  return Step::kNext;
}

enum class Form : uint8_t { kSetp, kSetpX2, kSet, kSetX2 };

template <typename Source>
ExecFn pick_loaded(Form form) {
  switch (form) {
    case Form::kSetp:
      return exec_setp_loaded<Source>;
    case Form::kSetpX2:
      return exec_setp_x2<Source>;
    case Form::kSet:
      return exec_set<Source>;
    case Form::kSetX2:
      return exec_set_x2<Source>;
  }
  return nullptr;
}

template <typename T>
ExecFn pick(Decoder& d, Form form, Cmp cmp) {
  if (std::is_integral_v<T> && cmp > Cmp::kGe) d.error("a comparison that integers do not have");
  if (form == Form::kSet) return exec_set<Plain<T>>;
  switch (cmp) {
    case Cmp::kEq:
      return exec_setp<T, Cmp::kEq>;
    case Cmp::kNe:
      return exec_setp<T, Cmp::kNe>;
    case Cmp::kLt:
      return exec_setp<T, Cmp::kLt>;
    case Cmp::kLe:
      return exec_setp<T, Cmp::kLe>;
    case Cmp::kGt:
      return exec_setp<T, Cmp::kGt>;
    case Cmp::kGe:
      return exec_setp<T, Cmp::kGe>;
    default:
      break;
  }
  if constexpr (std::is_floating_point_v<T>) {
    switch (cmp) {
      case Cmp::kEqu:
        return exec_setp<T, Cmp::kEqu>;
      case Cmp::kNeu:
        return exec_setp<T, Cmp::kNeu>;
      case Cmp::kLtu:
        return exec_setp<T, Cmp::kLtu>;
      case Cmp::kLeu:
        return exec_setp<T, Cmp::kLeu>;
      case Cmp::kGtu:
        return exec_setp<T, Cmp::kGtu>;
      case Cmp::kGeu:
        return exec_setp<T, Cmp::kGeu>;
      case Cmp::kNum:
        return exec_setp<T, Cmp::kNum>;
      case Cmp::kNan:
        return exec_setp<T, Cmp::kNan>;
      default:
        break;
    }
  }
  return nullptr;
}

ExecFn pick_source(Decoder& d, Type t, Form form, Cmp cmp, bool ftz) {
  const bool s = t.is_signed();
  if (t.kind == TypeKind::kFloat && t.bits / t.lanes == 16)
    return ftz ? pick_loaded<FlushedF16>(form) : pick_loaded<F16>(form);
  if (t.kind == TypeKind::kBfloat) return pick_loaded<Bf16>(form);
  if (t.name == "f32" && ftz) return pick_loaded<FlushedF32>(form);
  if (t.kind == TypeKind::kFloat && t.lanes == 1)
    return t.bits == 32 ? pick<float>(d, form, cmp) : pick<double>(d, form, cmp);
  if (t.is_int() && t.lanes == 1) {
    if (t.bits == 16) return s ? pick<int16_t>(d, form, cmp) : pick<uint16_t>(d, form, cmp);
    if (t.bits == 32) return s ? pick<int32_t>(d, form, cmp) : pick<uint32_t>(d, form, cmp);
    if (t.bits == 64) return s ? pick<int64_t>(d, form, cmp) : pick<uint64_t>(d, form, cmp);
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
  const bool ftz = d.mod("ftz");
  Type t = d.type();
  if (is_unsigned) t.kind = TypeKind::kUnsigned;
  const size_t n = how == Combine::kNone ? 3 : 4;
  d.expect_operands(n, n);
  const ptx::Operand& dst = d.operand(0);
  if (dst.kind == ptx::Operand::Kind::kPair) {
    if (dst.items.size() != 2) d.error("expected p|q");
    if (t.name == "f16" || t.name == "bf16") d.error("no p|q with ." + std::string(t.name));
    d.out().op[0] = d.pred_dst(dst.items[0]);
    d.out().op[1] = d.pred_dst(dst.items[1]);
  } else {
    if (t.lanes == 2) d.error("the packed form needs p|q");
    d.out().op[0] = d.pred_dst(dst);
  }
  d.out().op[2] = d.src(1, t);
  d.out().op[3] = d.src(2, t);
  if (how != Combine::kNone) d.out().op[4] = d.pred_src(3);
  d.out().sub = packed(how, cmp);
  d.out().exec = pick_source(d, t, t.lanes == 2 ? Form::kSetpX2 : Form::kSetp, cmp, ftz);
}

void decode_set(Decoder& d) {
  bool is_unsigned;
  const Cmp cmp = take_cmp(d, &is_unsigned);
  const Combine how = take_combine(d);
  const bool ftz = d.mod("ftz");
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
  d.out().sub = packed(how, cmp);
  int64_t yes = to.bits == 16 ? 0xFFFF : 0xFFFFFFFF;
  if (to.kind == TypeKind::kFloat) yes = to.bits / to.lanes == 16 ? 0x3C00 : 0x3F800000;
  if (to.kind == TypeKind::kBfloat) yes = 0x3F80;
  d.out().imm = yes;
  d.out().exec = pick_source(d, from, from.lanes == 2 ? Form::kSetX2 : Form::kSet, cmp, ftz);
}

}  // namespace

void register_compare(IsaTable& t) {
  t.add({"set", decode_set, "9.7.6.1"});
  t.add({"setp", decode_setp, "9.7.6.2"});
}

}  // namespace bwgemm::emulator
