// Floating-point arithmetic in f32 and f64 (PTX ISA 9.7.3), and the entries that integer, half and float forms share.
#include <cfenv>
#include <cmath>

#include "emulator/isa/arithmetic.h"
#include "emulator/isa/isa.h"
#include "emulator/isa/lanes.h"
#include "emulator/isa/numbers.h"

namespace bwgemm::emulator {
namespace {

// Flushes subnormal values to zero of the same sign (.ftz).
float flush(float x) { return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0f, x) : x; }
template <typename T> T saturate(T x) { return x > 0 ? (x < 1 ? x : T{1}) : T{0}; }  // NaN gives 0

enum FloatFlags : uint8_t { kFtz = 1, kSat = 2, kNanFlag = 4, kXorSign = 8, kAbsFlag = 16 };

struct Add { template <typename T> static T f(T a, T b) { return a + b; } };
struct Sub { template <typename T> static T f(T a, T b) { return a - b; } };
struct Mul { template <typename T> static T f(T a, T b) { return a * b; } };
struct Div { template <typename T> static T f(T a, T b) { return a / b; } };
struct Fma { template <typename T> static T f(T a, T b, T c) { return std::fma(a, b, c); } };

// Other rounding modes than nearest even switch the host's mode around the lane loop. noinline and volatile operands keep the
// compiler from moving the arithmetic across the switch.
int host_mode(Rounding r) {
  switch (r) {
    case Rounding::kZero: return FE_TOWARDZERO;
    case Rounding::kDown: return FE_DOWNWARD;
    case Rounding::kUp: return FE_UPWARD;
    default: return FE_TONEAREST;
  }
}

class ScopedRounding {
 public:
  explicit ScopedRounding(Rounding r) : before_(std::fegetround()) { std::fesetround(host_mode(r)); }
  ~ScopedRounding() { std::fesetround(before_); }

 private:
  int before_;
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
      float x = f32_of(static_cast<uint32_t>(a[lane] >> half)), y = f32_of(static_cast<uint32_t>(b[lane] >> half));
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
      float x = f32_of(static_cast<uint32_t>(a[lane] >> half)), y = f32_of(static_cast<uint32_t>(b[lane] >> half)),
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

Rounding take_rounding(Decoder& d) {
  const auto mode = d.mod_one_of({"rn", "rz", "rm", "rp"});
  return mode == "rz" ? Rounding::kZero : mode == "rm" ? Rounding::kDown : mode == "rp" ? Rounding::kUp : Rounding::kNearestEven;
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
  if (t.name == "f32") d.out().exec = plain ? exec_fast2<float, Op> : exec_general2<float, Op>;
  else if (t.name == "f64") d.out().exec = plain ? exec_fast2<double, Op> : exec_general2<double, Op>;
  else if (t.name == "f32x2") d.out().exec = exec_packed2<Op>;
  else d.unsupported("type ." + std::string(t.name));
}

void decode_float_div(Decoder& d) {
  d.ignore_mods({"approx", "full"});
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
  if (t.name == "f32") d.out().exec = plain ? exec_ternary<float, float, float, float, Fma> : exec_general3<float, Fma>;
  else if (t.name == "f64") d.out().exec = plain ? exec_ternary<double, double, double, double, Fma> : exec_general3<double, Fma>;
  else if (t.name == "f32x2") d.out().exec = exec_packed3<Fma>;
  else d.unsupported("type ." + std::string(t.name));
}

// min and max: NaN operands are ignored unless .NaN; -0 < +0; .xorsign.abs takes the signs' product.
template <typename T, bool kMax>
T min_max(T a, T b, uint8_t flags) {
  const bool sign = (flags & kXorSign) != 0 && std::signbit(a) != std::signbit(b);
  if (flags & kAbsFlag) a = std::fabs(a), b = std::fabs(b);
  T out;
  if (std::isnan(a) || std::isnan(b)) {
    if ((flags & kNanFlag) != 0 || (std::isnan(a) && std::isnan(b))) return static_cast<T>(sizeof(T) == 4 ? f32_of(0x7FFFFFFF) : NAN);
    out = std::isnan(a) ? b : a;
  } else if (a == b) {
    out = kMax == std::signbit(a) ? b : a;
  } else {
    out = (a < b) == kMax ? b : a;
  }
  if (flags & kXorSign) out = std::copysign(out, sign ? T{-1} : T{1});
  return out;
}
template <typename T, bool kMax, int kSources>
Step exec_min_max(Warp& w, const Instr& in, uint32_t mask) {
  Lanes<T> d(w, in.op[0]);
  const Lanes<T> a(w, in.op[1]), b(w, in.op[2]), c(w, in.op[kSources == 3 ? 3 : 2]);
  for_lanes(mask, [&](int lane) {
    T x = a.get(lane), y = b.get(lane), z = c.get(lane);
    if constexpr (sizeof(T) == 4) {
      if (in.sub & kFtz) x = flush(x), y = flush(y), z = flush(z);
    }
    T out = min_max<T, kMax>(x, y, in.sub);
    if (kSources == 3) out = min_max<T, kMax>(out, z, in.sub);
    d.set(lane, out);
  });
  return Step::kNext;
}
template <bool kMax>
void decode_float_min_max(Decoder& d) {
  uint8_t flags = 0;
  if (d.mod("ftz")) flags |= kFtz;
  if (d.mod("NaN")) flags |= kNanFlag;
  if (d.mod("xorsign")) flags |= kXorSign;
  if (d.mod("abs")) flags |= kAbsFlag;
  const Type t = d.type();
  const size_t sources = d.count() == 4 ? 3 : 2;
  decode_operands(d, sources, t);
  d.out().sub = flags;
  if (t.name == "f32") d.out().exec = sources == 3 ? exec_min_max<float, kMax, 3> : exec_min_max<float, kMax, 2>;
  else if (t.name == "f64" && sources == 2) d.out().exec = exec_min_max<double, kMax, 2>;
  else d.unsupported("type ." + std::string(t.name));
}

// ---- one source

struct Abs { template <typename T> static T f(T a) { return std::fabs(a); } };
struct Neg { template <typename T> static T f(T a) { return -a; } };
struct Rcp { template <typename T> static T f(T a) { return T{1} / a; } };
struct Sqrt { template <typename T> static T f(T a) { return std::sqrt(a); } };
// The approximate functions are computed in double and rounded: inside the error bounds the PTX ISA gives.
struct Rsqrt { template <typename T> static T f(T a) { return static_cast<T>(1.0 / std::sqrt(static_cast<double>(a))); } };
struct Sin { template <typename T> static T f(T a) { return static_cast<T>(std::sin(static_cast<double>(a))); } };
struct Cos { template <typename T> static T f(T a) { return static_cast<T>(std::cos(static_cast<double>(a))); } };
struct Lg2 { template <typename T> static T f(T a) { return static_cast<T>(std::log2(static_cast<double>(a))); } };
struct Ex2 { template <typename T> static T f(T a) { return static_cast<T>(std::exp2(static_cast<double>(a))); } };
struct Tanh { template <typename T> static T f(T a) { return static_cast<T>(std::tanh(static_cast<double>(a))); } };

template <typename T, typename Op>
[[gnu::noinline]] T opaque1(T a) {
  volatile T x = a;
  volatile T out = Op::template f<T>(x);
  return out;
}
template <typename T, typename Op>
Step exec_general1(Warp& w, const Instr& in, uint32_t mask) {
  Lanes<T> d(w, in.op[0]);
  const Lanes<T> a(w, in.op[1]);
  const ScopedRounding scope(static_cast<Rounding>(in.imm));
  for_lanes(mask, [&](int lane) {
    T x = a.get(lane);
    if constexpr (sizeof(T) == 4) {
      if (in.sub & kFtz) x = flush(x);
    }
    T out = opaque1<T, Op>(x);
    if constexpr (sizeof(T) == 4) {
      if (in.sub & kFtz) out = flush(out);
    }
    d.set(lane, out);
  });
  return Step::kNext;
}

template <typename Op>
void decode_function(Decoder& d) {
  const Rounding rounding = take_rounding(d);
  d.ignore_mods({"approx", "full"});
  d.out().sub = d.mod("ftz") ? kFtz : 0;
  d.out().imm = static_cast<int64_t>(rounding);
  const Type t = d.type();
  decode_operands(d, 1, t);
  if (t.name == "f32") d.out().exec = exec_general1<float, Op>;
  else if (t.name == "f64") d.out().exec = exec_general1<double, Op>;
  else d.unsupported("type ." + std::string(t.name));
}

template <typename Op>
void decode_sign(Decoder& d) {
  d.out().sub = d.mod("ftz") ? kFtz : 0;
  const Type t = d.type();
  decode_operands(d, 1, t);
  const bool ftz = d.out().sub != 0;
  if (t.name == "f32") d.out().exec = ftz ? exec_general1<float, Op> : exec_unary<float, float, Op>;
  else if (t.name == "f64") d.out().exec = exec_unary<double, double, Op>;
  else d.unsupported("type ." + std::string(t.name));
}

struct Copysign { template <typename T> static T f(T a, T b) { return std::copysign(b, a); } };
void decode_copysign(Decoder& d) {
  const Type t = d.type();
  decode_operands(d, 2, t);
  if (t.name == "f32") d.out().exec = exec_binary<float, float, float, Copysign>;
  else if (t.name == "f64") d.out().exec = exec_binary<double, double, double, Copysign>;
  else d.unsupported("type ." + std::string(t.name));
}

// ---- entries by type

bool is_half(Type t) { return t.kind == TypeKind::kBfloat || (t.kind == TypeKind::kFloat && t.bits / t.lanes == 16); }
bool is_mixed(Decoder& d) {
  // add.f32.bf16 and the like (PTX ISA 9.7.5): result type f32, then a 16-bit source type.
  const auto& parts = d.statement().parts;
  return parts.size() >= 3 && parts[parts.size() - 2] == "f32" && (parts.back() == "f16" || parts.back() == "bf16");
}

using Decode = void (*)(Decoder&);
template <Decode kInteger, Decode kHalf, Decode kFloat, Decode kMixed = nullptr>
void decode_by_type(Decoder& d) {
  const Type t = d.peek_type();
  if (kMixed != nullptr && is_mixed(d)) return kMixed(d);
  if (is_half(t)) return kHalf != nullptr ? kHalf(d) : d.unsupported("type ." + std::string(t.name));
  if (t.is_int() && kInteger != nullptr) return kInteger(d);
  kFloat(d);
}

}  // namespace

void register_float(IsaTable& t) {
  t.add({"add", decode_by_type<decode_integer_add, decode_half_add, decode_float2<Add>, decode_mixed_add>, "9.7.1.1, 9.7.3.3"});
  t.add({"sub", decode_by_type<decode_integer_sub, decode_half_sub, decode_float2<Sub>, decode_mixed_sub>, "9.7.1.2, 9.7.3.4"});
  t.add({"mul", decode_by_type<decode_integer_mul, decode_half_mul, decode_float2<Mul>>, "9.7.1.3, 9.7.3.5"});
  t.add({"mad", decode_by_type<decode_integer_mad, decode_half_fma, decode_float_fma>, "9.7.1.4, 9.7.3.7"});
  t.add({"fma", decode_by_type<nullptr, decode_half_fma, decode_float_fma, decode_mixed_fma>, "9.7.3.6"});
  t.add({"div", decode_by_type<decode_integer_div, nullptr, decode_float_div>, "9.7.1.8, 9.7.3.8"});
  t.add({"min", decode_by_type<decode_integer_min, decode_half_min, decode_float_min_max<false>>, "9.7.1.12, 9.7.3.11"});
  t.add({"max", decode_by_type<decode_integer_max, decode_half_max, decode_float_min_max<true>>, "9.7.1.13, 9.7.3.12"});
  t.add({"abs", decode_by_type<decode_integer_abs, decode_half_abs, decode_sign<Abs>>, "9.7.1.10, 9.7.3.9"});
  t.add({"neg", decode_by_type<decode_integer_neg, decode_half_neg, decode_sign<Neg>>, "9.7.1.11, 9.7.3.10"});
  t.add({"copysign", decode_copysign, "9.7.3.2"});
  t.add({"rcp", decode_function<Rcp>, "9.7.3.13"});
  t.add({"sqrt", decode_function<Sqrt>, "9.7.3.15"});
  t.add({"rsqrt", decode_function<Rsqrt>, "9.7.3.16"});
  t.add({"sin", decode_function<Sin>, "9.7.3.18"});
  t.add({"cos", decode_function<Cos>, "9.7.3.19"});
  t.add({"lg2", decode_function<Lg2>, "9.7.3.20"});
  t.add({"ex2", decode_by_type<nullptr, decode_half_ex2, decode_function<Ex2>>, "9.7.3.21"});
  t.add({"tanh", decode_by_type<nullptr, decode_half_tanh, decode_function<Tanh>>, "9.7.3.22"});
}

}  // namespace bwgemm::emulator
