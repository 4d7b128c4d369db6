// f32, f64 and half-precision arithmetic, one check per instruction.
#include <cfenv>

#include "emulator/tests/isa_cases.h"

using namespace bwgemm::emulator;
using namespace bwgemm::emulator::testing;

namespace {

float rounded(float (*f)(float, float), int mode, float a, float b) {
  std::fesetround(mode);
  volatile float x = a, y = b;
  volatile float out = f(x, y);
  std::fesetround(FE_TONEAREST);
  return out;
}
float ftz(float x) { return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0f, x) : x; }

TEST(float_arithmetic) {
  run_all_cases({
      {"add.f32 %f0, %fa, %fb;", 'f', [](u64 a, u64 b, u64) -> u64 { return B(F(a) + F(b)); },
       Values::kFloats},
      {"add.rz.f32 %f0, %fa, %fb;", 'f',
       [](u64 a, u64 b, u64) -> u64 {
         return B(rounded([](float x, float y) { return x + y; }, FE_TOWARDZERO, F(a), F(b)));
       },
       Values::kFloats},
      {"add.rp.f32 %f0, %fa, %fb;", 'f',
       [](u64 a, u64 b, u64) -> u64 {
         return B(rounded([](float x, float y) { return x + y; }, FE_UPWARD, F(a), F(b)));
       },
       Values::kFloats},
      {"add.ftz.f32 %f0, %fa, %fb;", 'f',
       [](u64 a, u64 b, u64) -> u64 { return B(ftz(ftz(F(a)) + ftz(F(b)))); }, Values::kFloats},
      {"add.sat.f32 %f0, %fa, %fb;", 'f',
       [](u64 a, u64 b, u64) -> u64 {
         const float x = F(a) + F(b);
         return B(x > 0 ? std::min(x, 1.0f) : 0.0f);
       },
       Values::kFloats},
      {"sub.f32 %f0, %fa, %fb;", 'f', [](u64 a, u64 b, u64) -> u64 { return B(F(a) - F(b)); },
       Values::kFloats},
      {"mul.f32 %f0, %fa, %fb;", 'f', [](u64 a, u64 b, u64) -> u64 { return B(F(a) * F(b)); },
       Values::kFloats},
      {"mul.rm.f32 %f0, %fa, %fb;", 'f',
       [](u64 a, u64 b, u64) -> u64 {
         return B(rounded([](float x, float y) { return x * y; }, FE_DOWNWARD, F(a), F(b)));
       },
       Values::kFloats},
      {"fma.rn.f32 %f0, %fa, %fb, %fc;", 'f',
       [](u64 a, u64 b, u64 c) -> u64 { return B(std::fma(F(a), F(b), F(c))); }, Values::kFloats},
      {"mad.rn.f32 %f0, %fa, %fb, %fc;", 'f',
       [](u64 a, u64 b, u64 c) -> u64 { return B(std::fma(F(a), F(b), F(c))); }, Values::kFloats},
      {"div.rn.f32 %f0, %fa, %fb;", 'f', [](u64 a, u64 b, u64) -> u64 { return B(F(a) / F(b)); },
       Values::kFloats},
      {"div.approx.f32 %f0, %fa, %fb;", 'f',
       [](u64 a, u64 b, u64) -> u64 {
         return B(std::fabs(F(b)) > 0x1p126f && std::isfinite(F(b))
                      ? F(a) * std::copysign(0.0f, F(b))
                      : F(a) / F(b));
       },
       Values::kFloats, 1e-6},
      {"min.f32 %f0, %fa, %fb;", 'f',
       [](u64 a, u64 b, u64) -> u64 {
         return B(std::fmin(F(a), F(b)) == 0 && F(a) == F(b) ? (std::signbit(F(a)) ? F(a) : F(b))
                                                             : std::fmin(F(a), F(b)));
       },
       Values::kFloats},
      {"max.f32 %f0, %fa, %fb;", 'f',
       [](u64 a, u64 b, u64) -> u64 {
         return B(F(a) == F(b) ? (std::signbit(F(a)) ? F(b) : F(a)) : std::fmax(F(a), F(b)));
       },
       Values::kFloats},
      {"max.NaN.f32 %f0, %fa, %fb;", 'f',
       [](u64 a, u64 b, u64) -> u64 {
         return std::isnan(F(a)) || std::isnan(F(b))
                    ? 0x7FFFFFFF
                    : B(F(a) == F(b) ? (std::signbit(F(a)) ? F(b) : F(a)) : std::max(F(a), F(b)));
       },
       Values::kFloats},
      {"max.xorsign.abs.f32 %f0, %fa, %fb;", 'f',
       [](u64 a, u64 b, u64) -> u64 {
         const float m = std::fmax(std::fabs(F(a)), std::fabs(F(b)));
         return B(std::signbit(F(a)) != std::signbit(F(b)) ? -m : m);
       },
       Values::kSmall},
      {"div.full.f32 %f0, %fa, %fb;", 'f', [](u64 a, u64 b, u64) -> u64 { return B(F(a) / F(b)); },
       Values::kSmall, 1e-6},
      {"add.rm.f32 %f0, %fa, %fb;", 'f',
       [](u64 a, u64 b, u64) -> u64 {
         return B(rounded([](float x, float y) { return x + y; }, FE_DOWNWARD, F(a), F(b)));
       },
       Values::kSmall},
      {"fma.rz.f32 %f0, %fa, %fb, %fc;", 'f',
       [](u64 a, u64 b, u64 c) -> u64 {
         float f = static_cast<float>(D(BD(double{F(a)} * F(b) + F(c))));
         const double exact = double{F(a)} * F(b) + F(c);
         if (std::fabs(f) > std::fabs(exact)) f = std::nextafter(f, 0.0f);
         return B(f);
       },
       Values::kSmall},
      {"fma.rn.sat.f32 %f0, %fa, %fb, %fc;", 'f',
       [](u64 a, u64 b, u64 c) -> u64 {
         const float x = std::fma(F(a), F(b), F(c));
         return B(x > 0 ? std::min(x, 1.0f) : 0.0f);
       },
       Values::kSmall},
      {"mul.ftz.f32 %f0, %fa, %fb;", 'f',
       [](u64 a, u64 b, u64) -> u64 { return B(ftz(ftz(F(a)) * ftz(F(b)))); }, Values::kFloats},
      {"min.f64 %d0, %da, %db;", 'd',
       [](u64 a, u64 b, u64) -> u64 {
         return BD(D(a) == D(b) ? (std::signbit(D(a)) ? D(a) : D(b)) : std::fmin(D(a), D(b)));
       },
       Values::kDoubles},
      {"add.rz.f64 %d0, %da, %db;", 'd',
       [](u64 a, u64 b, u64) -> u64 {
         std::fesetround(FE_TOWARDZERO);
         volatile double x = D(a), y = D(b);
         volatile double z = x + y;
         std::fesetround(FE_TONEAREST);
         return BD(z);
       },
       Values::kDoubles},
      {"abs.f32 %f0, %fa;", 'f', [](u64 a, u64, u64) -> u64 { return B(std::fabs(F(a))); },
       Values::kFloats},
      {"neg.f32 %f0, %fa;", 'f', [](u64 a, u64, u64) -> u64 { return B(-F(a)); }, Values::kFloats},
      {"copysign.f32 %f0, %fa, %fb;", 'f',
       [](u64 a, u64 b, u64) -> u64 { return B(std::copysign(F(b), F(a))); }, Values::kSmall},
      {"rcp.rn.f32 %f0, %fa;", 'f', [](u64 a, u64, u64) -> u64 { return B(1.0f / F(a)); },
       Values::kFloats},
      {"rcp.approx.ftz.f32 %f0, %fa;", 'f',
       [](u64 a, u64, u64) -> u64 { return B(ftz(1.0f / ftz(F(a)))); }, Values::kFloats, 1e-6},
      {"sqrt.rn.f32 %f0, %fa;", 'f', [](u64 a, u64, u64) -> u64 { return B(std::sqrt(F(a))); },
       Values::kFloats},
      {"rsqrt.approx.f32 %f0, %fa;", 'f',
       [](u64 a, u64, u64) -> u64 { return B(1.0f / std::sqrt(F(a))); }, Values::kFloats, 1e-6},
      {"sin.approx.f32 %f0, %fa;", 'f', [](u64 a, u64, u64) -> u64 { return B(std::sin(F(a))); },
       Values::kSmall, 1e-5},
      {"cos.approx.f32 %f0, %fa;", 'f', [](u64 a, u64, u64) -> u64 { return B(std::cos(F(a))); },
       Values::kSmall, 1e-4},
      {"lg2.approx.f32 %f0, %fa;", 'f', [](u64 a, u64, u64) -> u64 { return B(std::log2(F(a))); },
       Values::kSmall, 1e-5},
      {"ex2.approx.f32 %f0, %fa;", 'f', [](u64 a, u64, u64) -> u64 { return B(std::exp2(F(a))); },
       Values::kSmall, 1e-6},
      {"tanh.approx.f32 %f0, %fa;", 'f', [](u64 a, u64, u64) -> u64 { return B(std::tanh(F(a))); },
       Values::kSmall, 1e-5},
      {"add.f64 %d0, %da, %db;", 'd', [](u64 a, u64 b, u64) -> u64 { return BD(D(a) + D(b)); },
       Values::kDoubles},
      {"mul.rn.f64 %d0, %da, %db;", 'd', [](u64 a, u64 b, u64) -> u64 { return BD(D(a) * D(b)); },
       Values::kDoubles},
      {"fma.rn.f64 %d0, %da, %db, %dc;", 'd',
       [](u64 a, u64 b, u64 c) -> u64 { return BD(std::fma(D(a), D(b), D(c))); }, Values::kDoubles},
      {"div.rn.f64 %d0, %da, %db;", 'd', [](u64 a, u64 b, u64) -> u64 { return BD(D(a) / D(b)); },
       Values::kDoubles},
      {"sqrt.rn.f64 %d0, %da;", 'd', [](u64 a, u64, u64) -> u64 { return BD(std::sqrt(D(a))); },
       Values::kDoubles},
      {"mov.b64 %d1, {%fa, %fb}; mov.b64 %d2, {%fc, %fa}; add.rn.f32x2 %d0, %d1, %d2;", 'd',
       [](u64 a, u64 b, u64 c) -> u64 { return u64{B(F(b) + F(a))} << 32 | B(F(a) + F(c)); },
       Values::kSmall},
      {"mov.b64 %d1, {%fa, %fb}; fma.rn.f32x2 %d0, %d1, %d1, %d1;", 'd',
       [](u64 a, u64 b, u64) -> u64 {
         return u64{B(std::fma(F(b), F(b), F(b)))} << 32 | B(std::fma(F(a), F(a), F(a)));
       },
       Values::kSmall},
  });
}

TEST(half_arithmetic) {
  const auto lo = [](u64 v) { return H(v & 0xFFFF); };
  const auto hi = [](u64 v) { return H(v >> 16 & 0xFFFF); };
  run_all_cases({
      {"add.f16 %h0, %ha, %hb;", 'h', [=](u64 a, u64 b, u64) -> u64 { return half(lo(a) + lo(b)); },
       Values::kHalves},
      {"sub.f16x2 %r0, %ra, %rb;", 'r',
       [=](u64 a, u64 b, u64) -> u64 { return pair(half(hi(a) - hi(b)), half(lo(a) - lo(b))); },
       Values::kHalves},
      {"mul.f16x2 %r0, %ra, %rb;", 'r',
       [=](u64 a, u64 b, u64) -> u64 { return pair(half(hi(a) * hi(b)), half(lo(a) * lo(b))); },
       Values::kHalves},
      {"fma.rn.f16 %h0, %ha, %hb, %hc;", 'h',
       [=](u64 a, u64 b, u64 c) -> u64 { return half(lo(a) * lo(b) + lo(c)); }, Values::kHalves},
      {"fma.rn.relu.f16 %h0, %ha, %hb, %hc;", 'h',
       [=](u64 a, u64 b, u64 c) -> u64 { return half(std::max(lo(a) * lo(b) + lo(c), 0.0)); },
       Values::kHalves},
      {"min.f16x2 %r0, %ra, %rb;", 'r',
       [=](u64 a, u64 b, u64) -> u64 {
         return pair(hi(a) < hi(b) ? a >> 16 : b >> 16, lo(a) < lo(b) ? a : b);
       },
       Values::kHalves},
      {"abs.f16x2 %r0, %ra;", 'r', [=](u64 a, u64, u64) -> u64 { return a & 0x7FFF7FFF; },
       Values::kHalves},
      {"neg.bf16x2 %r0, %ra;", 'r', [=](u64 a, u64, u64) -> u64 { return a ^ 0x80008000; },
       Values::kBf16},
      {"add.rn.bf16x2 %r0, %ra, %rb;", 'r',
       [=](u64 a, u64 b, u64) -> u64 {
         return pair(bf16(BF(a >> 16) + BF(b >> 16)), bf16(BF(a) + BF(b)));
       },
       Values::kBf16},
      {"mul.bf16 %h0, %ha, %hb;", 'h',
       [=](u64 a, u64 b, u64) -> u64 { return bf16(BF(a) * BF(b)); }, Values::kBf16},
      {"fma.rn.bf16x2 %r0, %ra, %rb, %rc;", 'r',
       [=](u64 a, u64 b, u64 c) -> u64 {
         return pair(bf16(BF(a >> 16) * BF(b >> 16) + BF(c >> 16)), bf16(BF(a) * BF(b) + BF(c)));
       },
       Values::kBf16},
      {"max.bf16 %h0, %ha, %hb;", 'h',
       [=](u64 a, u64 b, u64) -> u64 { return BF(a) > BF(b) ? a : b; }, Values::kBf16},
      {"tanh.approx.f16 %h0, %ha;", 'h',
       [=](u64 a, u64, u64) -> u64 { return half(static_cast<float>(std::tanh(lo(a)))); },
       Values::kHalves, 1e-3},
      {"ex2.approx.ftz.bf16 %h0, %ha;", 'h',
       [=](u64 a, u64, u64) -> u64 { return bf16(static_cast<float>(std::exp2(BF(a)))); },
       Values::kBf16, 1e-2},
      // 9 * 29 is half way between two numbers: what is added decides, however small.
      {"mov.b16 %h1, 0x4110; mov.b16 %h2, 0x41e8; mov.b16 %h3, 0x2180; fma.rn.bf16 %h0, %h1, %h2, "
       "%h3;",
       'h', [](u64, u64, u64) -> u64 { return 0x4383; }},
      {"mov.b16 %h1, 0x4110; mov.b16 %h2, 0x41e8; mov.b16 %h3, 0xa180; fma.rn.bf16 %h0, %h1, %h2, "
       "%h3;",
       'h', [](u64, u64, u64) -> u64 { return 0x4382; }},
      {"mov.b32 %r1, 0xc1104110; mov.b32 %r2, 0x41e841e8; mov.b32 %r3, 0xa1802180; fma.rn.bf16x2 "
       "%r0, %r1, %r2, %r3;",
       'r', [](u64, u64, u64) -> u64 { return 0xC3834383; }},
      // Subnormal results and operands of .ftz.
      {"mov.b16 %h1, 0xc302; ex2.approx.ftz.bf16 %h0, %h1;", 'h',
       [](u64, u64, u64) -> u64 { return 0; }},
      {"mov.b16 %h1, 0x8001; abs.ftz.f16 %h0, %h1;", 'h', [](u64, u64, u64) -> u64 { return 0; }},
      {"mov.b32 %r1, 0x0001bc00; neg.ftz.f16x2 %r0, %r1;", 'r',
       [](u64, u64, u64) -> u64 { return 0x80003C00; }},
      {"mov.b32 %r1, 0x0001bc00; neg.f16x2 %r0, %r1;", 'r',
       [](u64, u64, u64) -> u64 { return 0x80013C00; }},
      {"add.f32.bf16 %f0, %ha, %fb;", 'f',
       [=](u64 a, u64 b, u64) -> u64 { return B(static_cast<float>(BF(a)) + F(b)); },
       Values::kBf16},
      {"fma.rn.f32.f16 %f0, %ha, %hb, %fc;", 'f',
       [=](u64 a, u64 b, u64 c) -> u64 {
         return B(std::fma(static_cast<float>(lo(a)), static_cast<float>(lo(b)), F(c)));
       },
       Values::kHalves},
  });
}

// They read and write the high words alone, and no subnormal numbers.
TEST(approximate_double_functions) {
  const auto high = [](u64 bits) -> u64 { return bits >> 32 << 32; };
  const auto flushed = [=](u64 bits) -> u64 {
    return std::fpclassify(D(bits)) == FP_SUBNORMAL ? bits >> 63 << 63 : high(bits);
  };
  run_all_cases({
      {"rcp.approx.ftz.f64 %d0, %da;", 'd',
       [=](u64 a, u64, u64) -> u64 { return flushed(BD(1 / D(flushed(a)))); }, Values::kDoubles},
      {"rsqrt.approx.ftz.f64 %d0, %da;", 'd',
       [=](u64 a, u64, u64) -> u64 { return flushed(BD(1 / std::sqrt(D(flushed(a))))); },
       Values::kDoubles},
      {"rcp.approx.ftz.f64 %d0, 0d8008000000000000;", 'd',
       [](u64, u64, u64) -> u64 { return 0xFFF0000000000000; }},
      {"rsqrt.approx.ftz.f64 %d0, 0d0008000000000000;", 'd',
       [](u64, u64, u64) -> u64 { return 0x7FF0000000000000; }},
      {"rcp.approx.ftz.f64 %d0, 0d7FE8000000000000;", 'd', [](u64, u64, u64) -> u64 { return 0; }},
      {"rcp.approx.ftz.f64 %d0, 0d7FF0000000000001;", 'd',
       [](u64, u64, u64) -> u64 { return 0x7FF8000000000000; }},
  });
}

}  // namespace

int main(int argc, char** argv) { return run_all(argc, argv); }
