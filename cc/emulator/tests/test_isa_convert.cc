// cvt between all kinds of types.
#include "emulator/tests/isa_cases.h"

using namespace bwgemm::emulator;
using namespace bwgemm::emulator::testing;

namespace {

u64 to_int(double value, double low, double high) {
  return std::isnan(value) ? 0 : static_cast<u64>(static_cast<s64>(std::clamp(value, low, high)));
}

TEST(conversion) {
  run_all_cases({
      {"cvt.u64.u32 %d0, %ra;", 'd', [](u64 a, u64, u64) -> u64 { return U(a); }},
      {"cvt.s64.s32 %d0, %ra;", 'd',
       [](u64 a, u64, u64) -> u64 { return static_cast<u64>(s64{S(a)}); }},
      {"cvt.u32.u64 %r0, %da;", 'r', [](u64 a, u64, u64) -> u64 { return a; }},
      {"cvt.u32.u16 %r0, %ha;", 'r', [](u64 a, u64, u64) -> u64 { return a & 0xFFFF; }},
      {"cvt.s32.s16 %r0, %ha;", 'r',
       [](u64 a, u64, u64) -> u64 { return static_cast<u64>(S16(a)); }},
      {"cvt.u16.u32 %h0, %ra;", 'h', [](u64 a, u64, u64) -> u64 { return a; }},
      {"cvt.s32.s8 %r0, %ra;", 'r',
       [](u64 a, u64, u64) -> u64 { return static_cast<u64>(static_cast<int8_t>(a)); }},
      {"cvt.u8.u32 %r0, %ra;", 'r', [](u64 a, u64, u64) -> u64 { return a & 255; }},
      {"cvt.sat.u8.s32 %r0, %ra;", 'r',
       [](u64 a, u64, u64) -> u64 { return static_cast<u64>(std::clamp(S(a), 0, 255)); }},
      {"cvt.sat.s16.s64 %h0, %da;", 'h',
       [](u64 a, u64, u64) -> u64 {
         return static_cast<u64>(std::clamp<s64>(static_cast<s64>(a), -32768, 32767));
       }},
      {"cvt.sat.s32.u32 %r0, %ra;", 'r',
       [](u64 a, u64, u64) -> u64 { return std::min(U(a), 0x7FFFFFFFu); }},
      {"cvt.rn.f32.s32 %f0, %ra;", 'f',
       [](u64 a, u64, u64) -> u64 { return B(static_cast<float>(S(a))); }},
      {"cvt.rn.f32.u64 %f0, %da;", 'f',
       [](u64 a, u64, u64) -> u64 { return B(static_cast<float>(a)); }},
      {"cvt.rz.f32.u32 %f0, %ra;", 'f',
       [](u64 a, u64, u64) -> u64 {
         float f = static_cast<float>(U(a));
         if (static_cast<double>(f) > U(a)) f = std::nextafter(f, 0.0f);
         return B(f);
       }},
      {"cvt.rn.f64.s64 %d0, %da;", 'd',
       [](u64 a, u64, u64) -> u64 { return BD(static_cast<double>(static_cast<s64>(a))); }},
      {"cvt.rzi.s32.f32 %r0, %fa;", 'r',
       [](u64 a, u64, u64) -> u64 { return to_int(std::trunc(F(a)), INT32_MIN, INT32_MAX); },
       Values::kFloats},
      {"cvt.rni.s32.f32 %r0, %fa;", 'r',
       [](u64 a, u64, u64) -> u64 { return to_int(std::nearbyint(F(a)), INT32_MIN, INT32_MAX); },
       Values::kFloats},
      {"cvt.rmi.s32.f32 %r0, %fa;", 'r',
       [](u64 a, u64, u64) -> u64 { return to_int(std::floor(F(a)), INT32_MIN, INT32_MAX); },
       Values::kFloats},
      {"cvt.rpi.u32.f32 %r0, %fa;", 'r',
       [](u64 a, u64, u64) -> u64 { return to_int(std::ceil(F(a)), 0, UINT32_MAX); },
       Values::kFloats},
      {"cvt.rzi.s64.f64 %d0, %da;", 'd',
       [](u64 a, u64, u64) -> u64 {
         const double v = std::trunc(D(a));
         return std::isnan(v) ? u64{1} << 63
                : v >= 0x1p63 ? u64{INT64_MAX}
                : v < -0x1p63 ? u64{1} << 63
                              : static_cast<u64>(static_cast<s64>(v));
       },
       Values::kDoubles},
      {"cvt.rni.f32.f32 %f0, %fa;", 'f',
       [](u64 a, u64, u64) -> u64 { return B(std::nearbyint(F(a))); }, Values::kFloats},
      {"cvt.sat.f32.f32 %f0, %fa;", 'f',
       [](u64 a, u64, u64) -> u64 { return B(F(a) > 0 ? std::min(F(a), 1.0f) : 0.0f); },
       Values::kFloats},
      {"cvt.f64.f32 %d0, %fa;", 'd', [](u64 a, u64, u64) -> u64 { return BD(F(a)); },
       Values::kSmall},
      {"cvt.rn.f32.f64 %f0, %da;", 'f',
       [](u64 a, u64, u64) -> u64 { return B(static_cast<float>(D(a))); }, Values::kDoubles},
      {"cvt.rm.f32.f64 %f0, %da;", 'f',
       [](u64 a, u64, u64) -> u64 {
         float f = static_cast<float>(D(a));
         if (static_cast<double>(f) > D(a)) f = std::nextafter(f, -INFINITY);
         return B(f);
       },
       Values::kDoubles},
      {"cvt.rn.f16.f32 %h0, %fa;", 'h', [](u64 a, u64, u64) -> u64 { return half(F(a)); },
       Values::kFloats},
      {"cvt.rz.f16.f32 %h0, %fa;", 'h',
       [](u64 a, u64, u64) -> u64 {
         u16 h = half(F(a));
         if (std::fabs(H(h)) > std::fabs(F(a))) --h;
         return h;
       },
       Values::kSmall},
      {"cvt.f32.f16 %f0, %ha;", 'f',
       [](u64 a, u64, u64) -> u64 { return B(static_cast<float>(H(a & 0xFFFF))); },
       Values::kHalves},
      {"cvt.rn.bf16.f32 %h0, %fa;", 'h', [](u64 a, u64, u64) -> u64 { return bf16(F(a)); },
       Values::kFloats},
      {"cvt.f32.bf16 %f0, %ha;", 'f',
       [](u64 a, u64, u64) -> u64 { return B(static_cast<float>(BF(a))); }, Values::kBf16},
      {"cvt.rn.bf16x2.f32 %r0, %fa, %fb;", 'r',
       [](u64 a, u64 b, u64) -> u64 { return pair(bf16(F(a)), bf16(F(b))); }, Values::kFloats},
      {"cvt.rn.f16x2.f32 %r0, %fa, %fb;", 'r',
       [](u64 a, u64 b, u64) -> u64 { return pair(half(F(a)), half(F(b))); }, Values::kFloats},
      {"cvt.rn.relu.bf16x2.f32 %r0, %fa, %fb;", 'r',
       [](u64 a, u64 b, u64) -> u64 {
         return pair(bf16(F(a) < 0 ? 0 : F(a)), bf16(F(b) < 0 ? 0 : F(b)));
       },
       Values::kSmall},
      {"cvt.rn.satfinite.e4m3x2.f32 %h0, %fa, %fb;", 'h',
       [](u64 a, u64 b, u64) -> u64 { return e4m3(F(a)) << 8 | e4m3(F(b)); }, Values::kFloats},
      {"cvt.rn.satfinite.e4m3x2.f16x2 %h0, %ra;", 'h',
       [](u64 a, u64, u64) -> u64 { return e4m3(H(a >> 16 & 0xFFFF)) << 8 | e4m3(H(a & 0xFFFF)); },
       Values::kHalves},
      {"and.b16 %ha, %ha, 0x7b7b; cvt.rn.f16x2.e5m2x2 %r0, %ha;", 'r',
       [](u64 a, u64, u64) -> u64 {
         return pair(static_cast<u16>(a & 0x7B00), static_cast<u16>((a & 0x7B) << 8));
       }},
      {"and.b16 %ha, %ha, 0x7b7b; cvt.rn.f16x2.e4m3x2 %r0, %ha;", 'r',
       [](u64 a, u64, u64) -> u64 {
         return pair(half(E4M3(a >> 8 & 0x7B)), half(E4M3(a & 0x7B)));
       }},
      {"cvt.rna.tf32.f32 %r0, %fa;", 'r',
       [](u64 a, u64, u64) -> u64 {
         return std::isnan(F(a))   ? 0x7FFFE000
                : std::isinf(F(a)) ? B(F(a))
                                   : (U(a) + 0x1000) & ~0x1FFFu;
       },
       Values::kFloats},
      {"cvt.rz.bf16.f32 %h0, %fa;", 'h', [](u64 a, u64, u64) -> u64 { return U(a) >> 16; },
       Values::kSmall},
      {"cvt.rz.f16x2.f32 %r0, %fa, %fb;", 'r',
       [](u64 a, u64 b, u64) -> u64 {
         const auto toward = [](float v) {
           u16 h = half(v);
           if (std::fabs(H(h)) > std::fabs(v)) --h;
           return h;
         };
         return pair(toward(F(a)), toward(F(b)));
       },
       Values::kSmall},
      {"cvt.rn.satfinite.e5m2x2.f32 %h0, %fa, %fb;", 'h',
       [](u64 a, u64 b, u64) -> u64 {
         const auto e5m2 = [](float v) -> u32 {
           if (std::isnan(v)) return 0x7F;
           const u32 sign = std::signbit(v) ? 0x80 : 0;
           if (std::fabs(v) >= 57344) return sign | 0x7B;
           u32 best = 0;
           for (u32 i = 0; i <= 0x7B; ++i) {
             const double here = std::fabs(H(i << 8) - std::fabs(v)),
                          there = std::fabs(H(best << 8) - std::fabs(v));
             if (here < there || (here == there && (i & 1) == 0)) best = i;
           }
           return sign | best;
         };
         return e5m2(F(a)) << 8 | e5m2(F(b));
       },
       Values::kFloats},
      {"cvt.rn.f16.s32 %h0, %ra;", 'h', [](u64 a, u64, u64) -> u64 { return half(S(a)); }},
      {"cvt.rzi.s16.f16 %h0, %ha;", 'h',
       [](u64 a, u64, u64) -> u64 { return to_int(std::trunc(H(a & 0xFFFF)), -32768, 32767); },
       Values::kHalves},
      // Of f64, what is no number becomes the top bit alone.
      {"cvt.rzi.s32.f64 %r0, %da;", 'r',
       [](u64 a, u64, u64) -> u64 {
         const double v = D(a);
         return std::isnan(v) ? 0x80000000 : to_int(std::trunc(v), -0x1p31, 0x1p31 - 1);
       },
       Values::kDoubles},
      {"cvt.rzi.u16.f64 %h0, %da;", 'h',
       [](u64 a, u64, u64) -> u64 {
         const double v = D(a);
         return std::isnan(v) ? 0x8000 : to_int(std::trunc(v), 0, 65535);
       },
       Values::kDoubles},
      {"cvt.rni.u64.f32 %d0, %fa;", 'd',
       [](u64 a, u64, u64) -> u64 {
         const float v = F(a);
         return std::isnan(v)  ? u64{1} << 63
                : v >= 0x1p64f ? ~u64{0}
                : v <= 0       ? 0
                               : static_cast<u64>(std::nearbyint(v));
       },
       Values::kFloats},
      {"cvt.rp.f32.s64 %f0, %da;", 'f',
       [](u64 a, u64, u64) -> u64 {
         float f = static_cast<float>(static_cast<s64>(a));
         if (static_cast<__int128>(f) < static_cast<s64>(a)) f = std::nextafter(f, INFINITY);
         return B(f);
       }},
      {"cvt.rm.f64.u64 %d0, %da;", 'd',
       [](u64 a, u64, u64) -> u64 {
         double f = static_cast<double>(a);
         if (static_cast<unsigned __int128>(f) > a) f = std::nextafter(f, 0.0);
         return BD(f);
       }},
      {"cvt.rpi.f32.f32 %f0, %fa;", 'f', [](u64 a, u64, u64) -> u64 { return B(std::ceil(F(a))); },
       Values::kFloats},
      {"cvt.rn.ftz.f32.f64 %f0, %da;", 'f',
       [](u64 a, u64, u64) -> u64 {
         const float f = static_cast<float>(D(a));
         return B(std::fpclassify(f) == FP_SUBNORMAL ? std::copysign(0.0f, f) : f);
       },
       Values::kDoubles},
      {"cvt.pack.sat.s16.s32 %r0, %ra, %rb;", 'r',
       [](u64 a, u64 b, u64) -> u64 {
         return pair(static_cast<u16>(std::clamp(S(a), -32768, 32767)),
                     static_cast<u16>(std::clamp(S(b), -32768, 32767)));
       }},
      {"cvt.pack.sat.u8.s32.b32 %r0, %ra, %rb, %rc;", 'r',
       [](u64 a, u64 b, u64 c) -> u64 {
         return U(c) << 16 | static_cast<u32>(std::clamp(S(a), 0, 255)) << 8 |
                static_cast<u32>(std::clamp(S(b), 0, 255));
       }},
  });
}

}  // namespace

int main(int argc, char** argv) { return run_all(argc, argv); }
