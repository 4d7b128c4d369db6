// Floating-point arithmetic in f32 and f64 (PTX ISA 9.7.3), and the entries that integer, half and
// float forms share.
#include <cmath>

#include "emulator/isa/arithmetic.h"
#include "emulator/isa/float_modes.h"
#include "emulator/isa/isa.h"
#include "emulator/isa/lanes.h"
#include "emulator/isa/numbers.h"

namespace bwgemm::emulator {
namespace {

struct Add {
  template <typename T>
  static T f(T a, T b) {
    return a + b;
  }
};
struct Sub {
  template <typename T>
  static T f(T a, T b) {
    return a - b;
  }
};
struct Mul {
  template <typename T>
  static T f(T a, T b) {
    return a * b;
  }
};
struct Div {
  template <typename T>
  static T f(T a, T b) {
    return a / b;
  }
};
struct Fma {
  template <typename T>
  static T f(T a, T b, T c) {
    return std::fma(a, b, c);
  }
};

template <typename T, typename Op>
[[gnu::noinline]] T opaque2(T a, T b) {
  volatile T x = a, y = b;
  volatile T out = Op::template f<T>(x, y);
  return out;
}
template <typename T, typename Op>
[[gnu::noinline]] T opaque3(T a, T b, T c) {
  volatile T x = a, y = b, z = c;
  volatile T out = Op::template f<T>(x, y, z);
  return out;
}

// Plain: nearest even, no modifiers. The general one: imm holds the rounding mode, sub the flags.
template <typename T, typename Op>
Step exec_fast2(Warp& w, const Instr& in, uint32_t mask) {
  return exec_binary<T, T, T, Op>(w, in, mask);
}
template <typename T, typename Op>
Step exec_general2(Warp& w, const Instr& in, uint32_t mask) {
  Lanes<T> d(w, in.op[0]);
  const Lanes<T> a(w, in.op[1]), b(w, in.op[2]);
  const ScopedRounding scope(static_cast<Rounding>(in.imm));
  for_lanes(mask, [&](int lane) {
    T x = a.get(lane), y = b.get(lane);
    if constexpr (sizeof(T) == 4) {
      if (in.sub & kFtz) x = flush(x), y = flush(y);
    }
    T out = opaque2<T, Op>(x, y);
    if constexpr (sizeof(T) == 4) {
      if (in.sub & kFtz) out = flush(out);
    }
    if (in.sub & kSat) out = saturate(out);
    d.set(lane, out);
  });
  return Step::kNext;
}
template <typename T, typename Op>
Step exec_general3(Warp& w, const Instr& in, uint32_t mask) {
  Lanes<T> d(w, in.op[0]);
  const Lanes<T> a(w, in.op[1]), b(w, in.op[2]), c(w, in.op[3]);
  const ScopedRounding scope(static_cast<Rounding>(in.imm));
  for_lanes(mask, [&](int lane) {
    T x = a.get(lane), y = b.get(lane), z = c.get(lane);
    if constexpr (sizeof(T) == 4) {
      if (in.sub & kFtz) x = flush(x), y = flush(y), z = flush(z);
    }
    T out = opaque3<T, Op>(x, y, z);
    if constexpr (sizeof(T) == 4) {
      if (in.sub & kFtz) out = flush(out);
    }
    if (in.sub & kSat) out = saturate(out);
    d.set(lane, out);
  });
  return Step::kNext;
}

// f32x2: two f32 in 64 bits (PTX ISA 9.7.3.3 - 9.7.3.6).
template <typename Op>
Step exec_packed2(Warp& w, const Instr& in, uint32_t mask) {
  uint64_t* d = w.r64(in.op[0]);
  const uint64_t *a = w.r64(in.op[1]), *b = w.r64(in.op[2]);
  const ScopedRounding scope(static_cast<Rounding>(in.imm));
  for_lanes(mask, [&](int lane) {
    uint64_t out = 0;
    for (int half = 0; half < 64; half += 32) {
      float x = f32_of(static_cast<uint32_t>(a[lane] >> half)),
            y = f32_of(static_cast<uint32_t>(b[lane] >> half));
      if (in.sub & kFtz) x = flush(x), y = flush(y);
      float r = opaque2<float, Op>(x, y);
      if (in.sub & kFtz) r = flush(r);
      out |= uint64_t{bits_of(r)} << half;
    }
    d[lane] = out;
  });
  return Step::kNext;
}
template <typename Op>
Step exec_packed3(Warp& w, const Instr& in, uint32_t mask) {
  uint64_t* d = w.r64(in.op[0]);
  const uint64_t *a = w.r64(in.op[1]), *b = w.r64(in.op[2]), *c = w.r64(in.op[3]);
  const ScopedRounding scope(static_cast<Rounding>(in.imm));
  for_lanes(mask, [&](int lane) {
    uint64_t out = 0;
    for (int half = 0; half < 64; half += 32) {
      float x = f32_of(static_cast<uint32_t>(a[lane] >> half)),
            y = f32_of(static_cast<uint32_t>(b[lane] >> half)),
            z = f32_of(static_cast<uint32_t>(c[lane] >> half));
      if (in.sub & kFtz) x = flush(x), y = flush(y), z = flush(z);
      float r = opaque3<float, Op>(x, y, z);
      if (in.sub & kFtz) r = flush(r);
      out |= uint64_t{bits_of(r)} << half;
    }
    d[lane] = out;
  });
  return Step::kNext;
}

template <typename Op>
void decode_float2(Decoder& d) {
  const Rounding rounding = take_rounding(d);
  const uint8_t flags = static_cast<uint8_t>((d.mod("ftz") ? kFtz : 0) | (d.mod("sat") ? kSat : 0));
  const Type t = d.type();
  decode_operands(d, 2, t);
  d.out().imm = static_cast<int64_t>(rounding);
  d.out().sub = flags;
  const bool plain = rounding == Rounding::kNearestEven && flags == 0;
  if (t.name == "f32")
    d.out().exec = plain ? exec_fast2<float, Op> : exec_general2<float, Op>;
  else if (t.name == "f64")
    d.out().exec = plain ? exec_fast2<double, Op> : exec_general2<double, Op>;
  else if (t.name == "f32x2")
    d.out().exec = exec_packed2<Op>;
  else
    d.unsupported("type ." + std::string(t.name));
}

// .approx and .full are a product with the reciprocal: divisors above 2^126 give 0 with .approx.
struct DivApprox {
  template <typename T>
  static T f(T a, T b) {
    const bool tiny_reciprocal = std::fabs(b) > T(0x1p126) && std::fabs(b) < INFINITY;
    return tiny_reciprocal ? a * std::copysign(T{0}, b) : a / b;
  }
};

void decode_float_div(Decoder& d) {
  d.mod("full");
  if (d.mod("approx")) return decode_float2<DivApprox>(d);
  decode_float2<Div>(d);
}

void decode_float_fma(Decoder& d) {
  const Rounding rounding = take_rounding(d);
  const uint8_t flags = static_cast<uint8_t>((d.mod("ftz") ? kFtz : 0) | (d.mod("sat") ? kSat : 0));
  const Type t = d.type();
  decode_operands(d, 3, t);
  d.out().imm = static_cast<int64_t>(rounding);
  d.out().sub = flags;
  const bool plain = rounding == Rounding::kNearestEven && flags == 0;
  if (t.name == "f32")
    d.out().exec =
        plain ? exec_ternary<float, float, float, float, Fma> : exec_general3<float, Fma>;
  else if (t.name == "f64")
    d.out().exec =
        plain ? exec_ternary<double, double, double, double, Fma> : exec_general3<double, Fma>;
  else if (t.name == "f32x2")
    d.out().exec = exec_packed3<Fma>;
  else
    d.unsupported("type ." + std::string(t.name));
}

// ---- entries by type

bool is_half(Type t) {
  return t.kind == TypeKind::kBfloat || (t.kind == TypeKind::kFloat && t.bits / t.lanes == 16);
}
bool is_mixed(Decoder& d) {
  // add.f32.bf16 and the like (PTX ISA 9.7.5): result type f32, then a 16-bit source type.
  const auto& parts = d.statement().parts;
  return parts.size() >= 3 && parts[parts.size() - 2] == "f32" &&
         (parts.back() == "f16" || parts.back() == "bf16");
}

using Decode = void (*)(Decoder&);
template <Decode kInteger, Decode kHalf, Decode kFloat, Decode kMixed = nullptr>
void decode_by_type(Decoder& d) {
  const Type t = d.peek_type();
  if (kMixed != nullptr && is_mixed(d)) return kMixed(d);
  if (is_half(t))
    return kHalf != nullptr ? kHalf(d) : d.unsupported("type ." + std::string(t.name));
  if (t.is_int() && kInteger != nullptr) return kInteger(d);
  kFloat(d);
}

}  // namespace

void register_float(IsaTable& t) {
  t.add({"add",
         decode_by_type<decode_integer_add, decode_half_add, decode_float2<Add>, decode_mixed_add>,
         "9.7.1.1, 9.7.3.3"});
  t.add({"sub",
         decode_by_type<decode_integer_sub, decode_half_sub, decode_float2<Sub>, decode_mixed_sub>,
         "9.7.1.2, 9.7.3.4"});
  t.add({"mul", decode_by_type<decode_integer_mul, decode_half_mul, decode_float2<Mul>>,
         "9.7.1.3, 9.7.3.5"});
  t.add({"mad", decode_by_type<decode_integer_mad, decode_half_fma, decode_float_fma>,
         "9.7.1.4, 9.7.3.7"});
  t.add({"fma", decode_by_type<nullptr, decode_half_fma, decode_float_fma, decode_mixed_fma>,
         "9.7.3.6"});
  t.add({"div", decode_by_type<decode_integer_div, nullptr, decode_float_div>, "9.7.1.8, 9.7.3.8"});
  t.add({"min", decode_by_type<decode_integer_min, decode_half_min, decode_float_min>,
         "9.7.1.12, 9.7.3.11"});
  t.add({"max", decode_by_type<decode_integer_max, decode_half_max, decode_float_max>,
         "9.7.1.13, 9.7.3.12"});
  t.add({"abs", decode_by_type<decode_integer_abs, decode_half_abs, decode_float_abs>,
         "9.7.1.10, 9.7.3.9"});
  t.add({"neg", decode_by_type<decode_integer_neg, decode_half_neg, decode_float_neg>,
         "9.7.1.11, 9.7.3.10"});
  t.add({"ex2", decode_by_type<nullptr, decode_half_ex2, decode_float_ex2>, "9.7.3.21"});
  t.add({"tanh", decode_by_type<nullptr, decode_half_tanh, decode_float_tanh>, "9.7.3.22"});
}

}  // namespace bwgemm::emulator
