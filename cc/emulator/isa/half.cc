// Half precision: f16, bf16 and their packed forms (PTX ISA 9.7.4), and mixed-precision add, sub,
// fma (9.7.5).
//
// Sums and products of two 16-bit numbers are formed in float and rounded again: with 24 >= 2 p + 2
// significant bits (p = 11 or 8) the second rounding is harmless. fma is formed in double, rounded
// to odd, and rounded again from there.
#include <cmath>

#include "emulator/isa/arithmetic.h"
#include "emulator/isa/lanes.h"
#include "emulator/isa/numbers.h"

namespace bwgemm::emulator {
namespace {

struct F16 {
  static constexpr float kLeastNormal = 0x1p-14f;
  static float load(uint32_t bits) { return f16_to_f32(bits & 0xFFFF); }
  static uint32_t store(float value) { return f32_to_f16_rn(value); }
  static uint32_t store_exact(double value) {
    return encode_float(value, kF16Format, Rounding::kNearestEven);
  }
};
struct Bf16 {
  static constexpr float kLeastNormal = 0x1p-126f;
  static float load(uint32_t bits) { return bf16_to_f32(bits & 0xFFFF); }
  static uint32_t store(float value) { return f32_to_bf16_rn(value); }
  static uint32_t store_exact(double value) {
    return encode_float(value, kBf16Format, Rounding::kNearestEven);
  }
};

enum Flags : uint8_t { kFtz = 1, kSat = 2, kRelu = 4, kNan = 8, kXorSign = 16, kAbs = 32 };

template <typename H>
float flush(float x) {
  return std::fabs(x) < H::kLeastNormal ? std::copysign(0.0f, x) : x;
}

float limit(float x, uint8_t flags) {
  if (flags & kSat) x = x > 0 ? (x < 1 ? x : 1.0f) : 0.0f;
  if ((flags & kRelu) != 0 && x < 0) x = 0.0f;
  return x;
}

// The sum, whose last bit is 1 if some of it was cut off: rounding it to fewer bits then gives what
// rounding the exact sum would.
double add_to_odd(double a, double b) {
  const double sum = a + b, of_b = sum - a;
  const double rest = (a - (sum - of_b)) + (b - of_b);
  const uint64_t bits = bits_of(sum);
  if (rest == 0 || !std::isfinite(sum) || (bits & 1) != 0) return sum;
  return f64_of((rest > 0) == (sum > 0) ? bits + 1 : bits - 1);
}

struct Add {
  static float f(float a, float b) { return a + b; }
};
struct Sub {
  static float f(float a, float b) { return a - b; }
};
struct Mul {
  static float f(float a, float b) { return a * b; }
};

template <typename H, typename Op, int kLanes>
Step exec_half2(Warp& w, const Instr& in, uint32_t mask) {
  uint32_t* d = w.r32(in.op[0]);
  const uint32_t *a = w.r32(in.op[1]), *b = w.r32(in.op[2]);
  const uint8_t flags = in.sub;
  for_lanes(mask, [&](int lane) {
    uint32_t out = 0;
    for (int half = 0; half < 16 * kLanes; half += 16) {
      float x = H::load(a[lane] >> half), y = H::load(b[lane] >> half);
      if (flags & kFtz) x = flush<H>(x), y = flush<H>(y);
      float r = limit(Op::f(x, y), flags);
      if (flags & kFtz) r = flush<H>(r);
      out |= H::store(r) << half;
    }
    d[lane] = out;
  });
  return Step::kNext;
}

template <typename H, int kLanes>
Step exec_half_fma(Warp& w, const Instr& in, uint32_t mask) {
  uint32_t* d = w.r32(in.op[0]);
  const uint32_t *a = w.r32(in.op[1]), *b = w.r32(in.op[2]), *c = w.r32(in.op[3]);
  const uint8_t flags = in.sub;
  for_lanes(mask, [&](int lane) {
    uint32_t out = 0;
    for (int half = 0; half < 16 * kLanes; half += 16) {
      float x = H::load(a[lane] >> half), y = H::load(b[lane] >> half),
            z = H::load(c[lane] >> half);
      if (flags & kFtz) x = flush<H>(x), y = flush<H>(y), z = flush<H>(z);
      double r = add_to_odd(static_cast<double>(x) * y, z);
      if (flags & kSat) r = r > 0 ? (r < 1 ? r : 1.0) : 0.0;
      if ((flags & kRelu) != 0 && r < 0) r = 0;
      uint32_t bits = H::store_exact(r);
      if (flags & kFtz) bits = H::store(flush<H>(H::load(bits)));
      out |= bits << half;
    }
    d[lane] = out;
  });
  return Step::kNext;
}

template <typename H, bool kMax, int kLanes>
Step exec_half_min_max(Warp& w, const Instr& in, uint32_t mask) {
  uint32_t* d = w.r32(in.op[0]);
  const uint32_t *a = w.r32(in.op[1]), *b = w.r32(in.op[2]);
  const uint8_t flags = in.sub;
  for_lanes(mask, [&](int lane) {
    uint32_t out = 0;
    for (int half = 0; half < 16 * kLanes; half += 16) {
      float x = H::load(a[lane] >> half), y = H::load(b[lane] >> half);
      if (flags & kFtz) x = flush<H>(x), y = flush<H>(y);
      const bool sign = std::signbit(x) != std::signbit(y);
      if (flags & kAbs) x = std::fabs(x), y = std::fabs(y);
      float r;
      if (std::isnan(x) || std::isnan(y)) {
        r = (flags & kNan) != 0 || std::isnan(x) ? (std::isnan(y) || (flags & kNan) != 0 ? NAN : y)
                                                 : x;
      } else if (x == y) {
        r = kMax == std::signbit(x) ? y : x;
      } else {
        r = (x < y) == kMax ? y : x;
      }
      if (flags & kXorSign) r = std::copysign(r, sign ? -1.0f : 1.0f);
      out |= H::store(r) << half;
    }
    d[lane] = out;
  });
  return Step::kNext;
}

template <typename H>
struct Functions {
  static float ex2(float x) { return static_cast<float>(std::exp2(static_cast<double>(x))); }
  static float tanh(float x) { return static_cast<float>(std::tanh(static_cast<double>(x))); }
};
template <typename H, float (*kFunction)(float), int kLanes>
Step exec_half1(Warp& w, const Instr& in, uint32_t mask) {
  uint32_t* d = w.r32(in.op[0]);
  const uint32_t* a = w.r32(in.op[1]);
  const bool ftz = (in.sub & kFtz) != 0;
  for_lanes(mask, [&](int lane) {
    uint32_t out = 0;
    for (int half = 0; half < 16 * kLanes; half += 16) {
      const float x = H::load(a[lane] >> half);
      const float r = kFunction(ftz ? flush<H>(x) : x);
      out |= H::store(ftz ? flush<H>(r) : r) << half;
    }
    d[lane] = out;
  });
  return Step::kNext;
}

// Clears subnormal halves but for their signs.
uint32_t flush_f16_bits(uint32_t bits) {
  for (const uint32_t half : {0x0000FFFFu, 0xFFFF0000u}) {
    if ((bits & half & 0x7C007C00u) == 0) bits &= ~half | 0x80008000u;
  }
  return bits;
}

// abs and neg only touch the sign bits: imm is the mask, sub 1 clears, 0 flips.
template <bool kFlushes>
Step exec_sign(Warp& w, const Instr& in, uint32_t mask) {
  uint32_t* d = w.r32(in.op[0]);
  const uint32_t* a = w.r32(in.op[1]);
  const uint32_t bits = static_cast<uint32_t>(in.imm);
  for_lanes(mask, [&](int lane) {
    const uint32_t out = in.sub != 0 ? a[lane] & ~bits : a[lane] ^ bits;
    d[lane] = kFlushes ? flush_f16_bits(out) : out;
  });
  return Step::kNext;
}

uint8_t take_flags(Decoder& d) {
  uint8_t flags = 0;
  d.mod("rn");
  if (d.mod("ftz")) flags |= kFtz;
  if (d.mod("sat")) flags |= kSat;
  if (d.mod("relu")) flags |= kRelu;
  return flags;
}

bool is_bf16(Type t) { return t.kind == TypeKind::kBfloat; }

template <typename Op>
void decode_half2(Decoder& d) {
  d.out().sub = take_flags(d);
  const Type t = d.type();
  decode_operands(d, 2, t);
  if (is_bf16(t))
    d.out().exec = t.lanes == 2 ? exec_half2<Bf16, Op, 2> : exec_half2<Bf16, Op, 1>;
  else
    d.out().exec = t.lanes == 2 ? exec_half2<F16, Op, 2> : exec_half2<F16, Op, 1>;
}

template <bool kMax>
void decode_min_max(Decoder& d) {
  uint8_t flags = take_flags(d);
  if (d.mod("NaN")) flags |= kNan;
  if (d.mod("xorsign")) flags |= kXorSign;
  if (d.mod("abs")) flags |= kAbs;
  const Type t = d.type();
  decode_operands(d, 2, t);
  d.out().sub = flags;
  if (is_bf16(t))
    d.out().exec =
        t.lanes == 2 ? exec_half_min_max<Bf16, kMax, 2> : exec_half_min_max<Bf16, kMax, 1>;
  else
    d.out().exec = t.lanes == 2 ? exec_half_min_max<F16, kMax, 2> : exec_half_min_max<F16, kMax, 1>;
}

void decode_sign(Decoder& d, bool clear) {
  const bool ftz = d.mod("ftz");
  const Type t = d.type();
  decode_operands(d, 1, t);
  d.out().imm = t.lanes == 2 ? 0x80008000 : 0x8000;
  d.out().sub = clear;
  d.out().exec = ftz && !is_bf16(t) ? exec_sign<true> : exec_sign<false>;
}

template <float (*kF16)(float), float (*kBf16)(float)>
void decode_function(Decoder& d) {
  d.mod("approx");
  d.out().sub = d.mod("ftz") ? kFtz : 0;
  const Type t = d.type();
  if (!is_bf16(t) && d.out().sub != 0) d.error("no .ftz with ." + std::string(t.name));
  decode_operands(d, 1, t);
  if (is_bf16(t))
    d.out().exec = t.lanes == 2 ? exec_half1<Bf16, kBf16, 2> : exec_half1<Bf16, kBf16, 1>;
  else
    d.out().exec = t.lanes == 2 ? exec_half1<F16, kF16, 2> : exec_half1<F16, kF16, 1>;
}

// ---- mixed precision: f32 result, 16-bit first source(s)

template <typename H, bool kSubtract>
Step exec_mixed2(Warp& w, const Instr& in, uint32_t mask) {
  float* d = w.f32(in.op[0]);
  const uint32_t* a = w.r32(in.op[1]);
  const float* c = w.f32(in.op[2]);
  for_lanes(mask, [&](int lane) {
    const float x = H::load(a[lane]);
    d[lane] = kSubtract ? x - c[lane] : x + c[lane];
  });
  return Step::kNext;
}
template <typename H>
Step exec_mixed3(Warp& w, const Instr& in, uint32_t mask) {
  float* d = w.f32(in.op[0]);
  const uint32_t *a = w.r32(in.op[1]), *b = w.r32(in.op[2]);
  const float* c = w.f32(in.op[3]);
  for_lanes(mask,
            [&](int lane) { d[lane] = std::fma(H::load(a[lane]), H::load(b[lane]), c[lane]); });
  return Step::kNext;
}

template <bool kSubtract>
void decode_mixed2(Decoder& d) {
  d.mod("rn");
  const Type to = d.type(), from = d.type();
  d.expect_operands(3, 3);
  d.out().op[0] = d.dst(0, to.bits);
  d.out().op[1] = d.src(1, from);
  d.out().op[2] = d.src(2, to);
  d.out().exec = is_bf16(from) ? exec_mixed2<Bf16, kSubtract> : exec_mixed2<F16, kSubtract>;
}

}  // namespace

void decode_half_add(Decoder& d) { decode_half2<Add>(d); }
void decode_half_sub(Decoder& d) { decode_half2<Sub>(d); }
void decode_half_mul(Decoder& d) { decode_half2<Mul>(d); }
void decode_half_fma(Decoder& d) {
  d.out().sub = take_flags(d);
  const Type t = d.type();
  decode_operands(d, 3, t);
  if (is_bf16(t))
    d.out().exec = t.lanes == 2 ? exec_half_fma<Bf16, 2> : exec_half_fma<Bf16, 1>;
  else
    d.out().exec = t.lanes == 2 ? exec_half_fma<F16, 2> : exec_half_fma<F16, 1>;
}
void decode_half_min(Decoder& d) { decode_min_max<false>(d); }
void decode_half_max(Decoder& d) { decode_min_max<true>(d); }
void decode_half_abs(Decoder& d) { decode_sign(d, true); }
void decode_half_neg(Decoder& d) { decode_sign(d, false); }
void decode_half_ex2(Decoder& d) { decode_function<Functions<F16>::ex2, Functions<Bf16>::ex2>(d); }
void decode_half_tanh(Decoder& d) {
  decode_function<Functions<F16>::tanh, Functions<Bf16>::tanh>(d);
}
void decode_mixed_add(Decoder& d) { decode_mixed2<false>(d); }
void decode_mixed_sub(Decoder& d) { decode_mixed2<true>(d); }
void decode_mixed_fma(Decoder& d) {
  d.mod("rn");
  const Type to = d.type(), from = d.type();
  d.expect_operands(4, 4);
  d.out().op[0] = d.dst(0, to.bits);
  d.out().op[1] = d.src(1, from);
  d.out().op[2] = d.src(2, from);
  d.out().op[3] = d.src(3, to);
  d.out().exec = is_bf16(from) ? exec_mixed3<Bf16> : exec_mixed3<F16>;
}

}  // namespace bwgemm::emulator
