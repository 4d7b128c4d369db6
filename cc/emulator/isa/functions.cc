// Floating-point minimum, maximum and functions of one number (PTX ISA 9.7.3.2, 9.7.3.9
// - 9.7.3.22).
#include <cmath>

#include "emulator/isa/arithmetic.h"
#include "emulator/isa/float_modes.h"
#include "emulator/isa/isa.h"
#include "emulator/isa/lanes.h"
#include "emulator/isa/numbers.h"

namespace bwgemm::emulator {
namespace {

// min and max: NaN operands are ignored unless .NaN; -0 < +0; .xorsign.abs takes the signs'
// product.
template <typename T, bool kMax>
T min_max(T a, T b, uint8_t flags) {
  const bool sign = (flags & kXorSign) != 0 && std::signbit(a) != std::signbit(b);
  if (flags & kAbsFlag) a = std::fabs(a), b = std::fabs(b);
  T out;
  if (std::isnan(a) || std::isnan(b)) {
    if ((flags & kNanFlag) != 0 || (std::isnan(a) && std::isnan(b)))
      return static_cast<T>(sizeof(T) == 4 ? f32_of(0x7FFFFFFF) : NAN);
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
  if (t.name == "f32")
    d.out().exec = sources == 3 ? exec_min_max<float, kMax, 3> : exec_min_max<float, kMax, 2>;
  else if (t.name == "f64" && sources == 2)
    d.out().exec = exec_min_max<double, kMax, 2>;
  else
    d.unsupported("type ." + std::string(t.name));
}

// ---- one source

struct Abs {
  template <typename T>
  static T f(T a) {
    return std::fabs(a);
  }
};
struct Neg {
  template <typename T>
  static T f(T a) {
    return -a;
  }
};
struct Rcp {
  template <typename T>
  static T f(T a) {
    return T{1} / a;
  }
};
struct Sqrt {
  template <typename T>
  static T f(T a) {
    return std::sqrt(a);
  }
};
// The approximate functions are computed in double and rounded: inside the error bounds the PTX ISA
// gives.
struct Rsqrt {
  template <typename T>
  static T f(T a) {
    return static_cast<T>(1.0 / std::sqrt(static_cast<double>(a)));
  }
};
struct Sin {
  template <typename T>
  static T f(T a) {
    return static_cast<T>(std::sin(static_cast<double>(a)));
  }
};
struct Cos {
  template <typename T>
  static T f(T a) {
    return static_cast<T>(std::cos(static_cast<double>(a)));
  }
};
struct Lg2 {
  template <typename T>
  static T f(T a) {
    return static_cast<T>(std::log2(static_cast<double>(a)));
  }
};
struct Ex2 {
  template <typename T>
  static T f(T a) {
    return static_cast<T>(std::exp2(static_cast<double>(a)));
  }
};
struct Tanh {
  template <typename T>
  static T f(T a) {
    return static_cast<T>(std::tanh(static_cast<double>(a)));
  }
};

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

// rcp.approx.ftz.f64 and rsqrt.approx.ftz.f64 read and write the high words alone.
double high_word(double x) {
  const uint64_t high = bits_of(x) >> 32 << 32;
  return f64_of(std::fpclassify(x) == FP_SUBNORMAL ? high & uint64_t{1} << 63 : high);
}
template <typename Op>
Step exec_high_word(Warp& w, const Instr& in, uint32_t mask) {
  Lanes<double> d(w, in.op[0]);
  const Lanes<double> a(w, in.op[1]);
  for_lanes(mask, [&](int lane) {
    const double x = a.get(lane);
    d.set(lane, std::isnan(x) ? NAN : high_word(Op::template f<double>(high_word(x))));
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
  if (t.name == "f32")
    d.out().exec = exec_general1<float, Op>;
  else if (t.name == "f64")
    d.out().exec = d.out().sub != 0 ? exec_high_word<Op> : exec_general1<double, Op>;
  else
    d.unsupported("type ." + std::string(t.name));
}

template <typename Op>
void decode_sign(Decoder& d) {
  d.out().sub = d.mod("ftz") ? kFtz : 0;
  const Type t = d.type();
  decode_operands(d, 1, t);
  const bool ftz = d.out().sub != 0;
  if (t.name == "f32")
    d.out().exec = ftz ? exec_general1<float, Op> : exec_unary<float, float, Op>;
  else if (t.name == "f64")
    d.out().exec = exec_unary<double, double, Op>;
  else
    d.unsupported("type ." + std::string(t.name));
}

struct Copysign {
  template <typename T>
  static T f(T a, T b) {
    return std::copysign(b, a);
  }
};
void decode_copysign(Decoder& d) {
  const Type t = d.type();
  decode_operands(d, 2, t);
  if (t.name == "f32")
    d.out().exec = exec_binary<float, float, float, Copysign>;
  else if (t.name == "f64")
    d.out().exec = exec_binary<double, double, double, Copysign>;
  else
    d.unsupported("type ." + std::string(t.name));
}

}  // namespace

void decode_float_min(Decoder& d) { decode_float_min_max<false>(d); }
void decode_float_max(Decoder& d) { decode_float_min_max<true>(d); }
void decode_float_abs(Decoder& d) { decode_sign<Abs>(d); }
void decode_float_neg(Decoder& d) { decode_sign<Neg>(d); }
void decode_float_ex2(Decoder& d) { decode_function<Ex2>(d); }
void decode_float_tanh(Decoder& d) { decode_function<Tanh>(d); }

void register_functions(IsaTable& t) {
  t.add({"copysign", decode_copysign, "9.7.3.2"});
  t.add({"rcp", decode_function<Rcp>, "9.7.3.13"});
  t.add({"sqrt", decode_function<Sqrt>, "9.7.3.15"});
  t.add({"rsqrt", decode_function<Rsqrt>, "9.7.3.16"});
  t.add({"sin", decode_function<Sin>, "9.7.3.18"});
  t.add({"cos", decode_function<Cos>, "9.7.3.19"});
  t.add({"lg2", decode_function<Lg2>, "9.7.3.20"});
}

}  // namespace bwgemm::emulator
