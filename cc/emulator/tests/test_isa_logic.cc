// Logic, shifts, bit fields and comparisons, one check per instruction.
#include "emulator/tests/isa_cases.h"

using namespace bwgemm::emulator;
using namespace bwgemm::emulator::testing;

namespace {

float ftz(float x) { return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0f, x) : x; }

TEST(logic_and_bits) {
  run_all_cases({
      {"and.b32 %r0, %ra, %rb;", 'r', [](u64 a, u64 b, u64) -> u64 { return a & b; }},
      {"or.b64 %d0, %da, %db;", 'd', [](u64 a, u64 b, u64) -> u64 { return a | b; }},
      {"xor.b16 %h0, %ha, %hb;", 'h', [](u64 a, u64 b, u64) -> u64 { return a ^ b; }},
      {"not.b32 %r0, %ra;", 'r', [](u64 a, u64, u64) -> u64 { return ~a; }},
      {"cnot.b32 %r0, %ra;", 'r', [](u64 a, u64, u64) -> u64 { return U(a) == 0; }},
      {"and.pred %p0, %pa, !%pb;", 'p',
       [](u64 a, u64 b, u64) -> u64 { return (a & 1) & (~b & 1); }},
      {"or.pred %p0, %pa, %pb;", 'p', [](u64 a, u64 b, u64) -> u64 { return (a | b) & 1; }},
      {"xor.pred %p0, %pa, %pb;", 'p', [](u64 a, u64 b, u64) -> u64 { return (a ^ b) & 1; }},
      {"not.pred %p0, %pa;", 'p', [](u64 a, u64, u64) -> u64 { return ~a & 1; }},
      {"lop3.b32 %r0, %ra, %rb, %rc, 0x96;", 'r',
       [](u64 a, u64 b, u64 c) -> u64 { return a ^ b ^ c; }},
      {"lop3.b32 %r0, %ra, %rb, %rc, 0xE8;", 'r',
       [](u64 a, u64 b, u64 c) -> u64 { return (a & b) | (a & c) | (b & c); }},
      {"shl.b32 %r0, %ra, %rb;", 'r',
       [](u64 a, u64 b, u64) -> u64 { return U(b) > 31 ? 0 : U(a) << U(b); }},
      {"shl.b64 %d0, %da, %rb;", 'd',
       [](u64 a, u64 b, u64) -> u64 { return U(b) > 63 ? 0 : a << U(b); }},
      {"shr.u32 %r0, %ra, %rb;", 'r',
       [](u64 a, u64 b, u64) -> u64 { return U(b) > 31 ? 0 : U(a) >> U(b); }},
      {"shr.s32 %r0, %ra, %rb;", 'r',
       [](u64 a, u64 b, u64) -> u64 { return static_cast<u64>(S(a) >> std::min(U(b), 31u)); }},
      {"shr.s64 %d0, %da, %rb;", 'd',
       [](u64 a, u64 b, u64) -> u64 {
         return static_cast<u64>(static_cast<s64>(a) >> std::min(U(b), 63u));
       }},
      {"shr.u16 %h0, %ha, %rb;", 'h',
       [](u64 a, u64 b, u64) -> u64 { return U(b) > 15 ? 0 : (a & 0xFFFF) >> U(b); }},
      {"shf.l.wrap.b32 %r0, %ra, %rb, %rc;", 'r',
       [](u64 a, u64 b, u64 c) -> u64 {
         const u64 w = u64{U(b)} << 32 | U(a);
         return (w << (c & 31)) >> 32;
       }},
      {"shf.r.wrap.b32 %r0, %ra, %rb, %rc;", 'r',
       [](u64 a, u64 b, u64 c) -> u64 {
         const u64 w = u64{U(b)} << 32 | U(a);
         return w >> (c & 31);
       }},
      {"shf.r.clamp.b32 %r0, %ra, %rb, %rc;", 'r',
       [](u64 a, u64 b, u64 c) -> u64 {
         const u64 w = u64{U(b)} << 32 | U(a);
         return w >> std::min(U(c), 32u);
       }},
      {"popc.b32 %r0, %ra;", 'r',
       [](u64 a, u64, u64) -> u64 { return static_cast<u64>(__builtin_popcount(U(a))); }},
      {"popc.b64 %r0, %da;", 'r',
       [](u64 a, u64, u64) -> u64 { return static_cast<u64>(__builtin_popcountll(a)); }},
      {"clz.b32 %r0, %ra;", 'r',
       [](u64 a, u64, u64) -> u64 {
         u32 n = 0;
         while (n < 32 && (a >> (31 - n) & 1) == 0) ++n;
         return n;
       }},
      {"clz.b64 %r0, %da;", 'r',
       [](u64 a, u64, u64) -> u64 {
         u32 n = 0;
         while (n < 64 && (a >> (63 - n) & 1) == 0) ++n;
         return n;
       }},
      {"brev.b32 %r0, %ra;", 'r',
       [](u64 a, u64, u64) -> u64 {
         u32 r = 0;
         for (int i = 0; i < 32; ++i) r |= U(a >> i & 1) << (31 - i);
         return r;
       }},
      {"bfind.u32 %r0, %ra;", 'r',
       [](u64 a, u64, u64) -> u64 {
         u32 r = ~0u;
         for (u32 i = 0; i < 32; ++i)
           if (a >> i & 1) r = i;
         return r;
       }},
      {"bfind.s32 %r0, %ra;", 'r',
       [](u64 a, u64, u64) -> u64 {
         const u32 v = S(a) < 0 ? ~U(a) : U(a);
         u32 r = ~0u;
         for (u32 i = 0; i < 32; ++i)
           if (v >> i & 1) r = i;
         return r;
       }},
      {"bfind.shiftamt.u32 %r0, %ra;", 'r',
       [](u64 a, u64, u64) -> u64 {
         u32 r = ~0u;
         for (u32 i = 0; i < 32; ++i)
           if (a >> i & 1) r = 31 - i;
         return r;
       }},
      {"bfe.u32 %r0, %ra, %rb, %rc;", 'r',
       [](u64 a, u64 b, u64 c) -> u64 {
         const u32 p = b & 255, n = c & 255;
         u32 r = 0;
         for (u32 i = 0; i < n && p + i < 32; ++i) r |= U(a >> (p + i) & 1) << i;
         return r;
       }},
      {"bfe.s32 %r0, %ra, %rb, %rc;", 'r',
       [](u64 a, u64 b, u64 c) -> u64 {
         const u32 p = b & 255, n = c & 255;
         if (n == 0) return 0;
         const u32 sign = U(a) >> std::min(p + n - 1, 31u) & 1;
         u32 r = 0;
         for (u32 i = 0; i < 32; ++i) r |= (i < n && p + i < 32 ? U(a >> (p + i) & 1) : sign) << i;
         return r;
       }},
      {"bfi.b32 %r0, %ra, %rb, 7, 9;", 'r',
       [](u64 a, u64 b, u64) -> u64 { return (b & ~(511u << 7)) | (a & 511) << 7; }},
      {"bfi.b64 %d0, %da, %db, 60, 9;", 'd',
       [](u64 a, u64 b, u64) -> u64 { return (b & ~(u64{15} << 60)) | (a & 15) << 60; }},
      {"bmsk.clamp.b32 %r0, %ra, %rb;", 'r',
       [](u64 a, u64 b, u64) -> u64 {
         u32 r = 0;
         for (u64 i = U(a); i < 32 && i < u64{U(a)} + U(b); ++i) r |= 1u << i;
         return r;
       }},
      {"szext.clamp.s32 %r0, %ra, %rb;", 'r',
       [](u64 a, u64 b, u64) -> u64 {
         const u32 n = std::min(U(b), 32u);
         return n == 0 ? 0
                       : static_cast<u64>(static_cast<s64>(static_cast<u64>(U(a)) << (64 - n)) >>
                                          (64 - n));
       }},
      {"fns.b32 %r0, %ra, 0, 2;", 'r',
       [](u64 a, u64, u64) -> u64 {
         int n = 0;
         for (u32 i = 0; i < 32; ++i)
           if ((a >> i & 1) && ++n == 2) return i;
         return ~0u;
       }},
      {"prmt.b32 %r0, %ra, %rb, 0x7250;", 'r',
       [](u64 a, u64 b, u64) -> u64 {
         const u64 w = u64{U(b)} << 32 | U(a);
         return (w & 255) | (w >> 40 & 255) << 8 | (w >> 16 & 255) << 16 | (w >> 56 & 255) << 24;
       }},
      {"prmt.b32 %r0, %ra, %rb, 0x888B;", 'r',
       [](u64 a, u64, u64) -> u64 {
         const u32 hi = a >> 31 & 1 ? 255 : 0, lo = a >> 7 & 1 ? 255 : 0;
         return hi | lo << 8 | lo << 16 | lo << 24;
       }},
      {"prmt.b32.f4e %r0, %ra, %rb, %rc;", 'r',
       [](u64 a, u64 b, u64 c) -> u64 {
         const u64 w = u64{U(b)} << 32 | U(a);
         return w >> (8 * (c & 3));
       }},
      {"prmt.b32.rc16 %r0, %ra, %rb, %rc;", 'r',
       [](u64 a, u64, u64 c) -> u64 {
         const u32 h = a >> (16 * (c & 1)) & 0xFFFF;
         return h | h << 16;
       }},
  });
}

TEST(comparison) {
  run_all_cases({
      {"setp.lt.s32 %p0, %ra, %rb;", 'p', [](u64 a, u64 b, u64) -> u64 { return S(a) < S(b); }},
      {"setp.ls.u32 %p0, %ra, %rb;", 'p', [](u64 a, u64 b, u64) -> u64 { return U(a) <= U(b); }},
      {"setp.hi.u64 %p0, %da, %db;", 'p', [](u64 a, u64 b, u64) -> u64 { return a > b; }},
      {"setp.ge.s16 %p0, %ha, %hb;", 'p',
       [](u64 a, u64 b, u64) -> u64 { return S16(a) >= S16(b); }},
      {"setp.eq.and.b32 %p0, %ra, %rb, %pc;", 'p',
       [](u64 a, u64 b, u64 c) -> u64 { return U(a) == U(b) && (c & 1); }},
      {"setp.ne.or.u32 %p1|%p0, %ra, %rb, !%pc;", 'p',
       [](u64 a, u64 b, u64 c) -> u64 { return U(a) == U(b) || !(c & 1); }},
      {"setp.gt.xor.u32 %p0, %ra, %rb, %pc;", 'p',
       [](u64 a, u64 b, u64 c) -> u64 { return (U(a) > U(b)) != (c & 1); }},
      {"setp.lt.f32 %p0, %fa, %fb;", 'p', [](u64 a, u64 b, u64) -> u64 { return F(a) < F(b); },
       Values::kFloats},
      {"setp.ltu.ftz.f32 %p0, %fa, %fb;", 'p',
       [](u64 a, u64 b, u64) -> u64 { return !(ftz(F(a)) >= ftz(F(b))); }, Values::kFloats},
      {"setp.gt.ftz.f32 %p0, 0f00000001, 0f00000000;", 'p', [](u64, u64, u64) -> u64 { return 0; }},
      {"mov.b16 %h1, 0x8001; mov.b16 %h2, 0; setp.eq.ftz.f16 %p0, %h1, %h2;", 'p',
       [](u64, u64, u64) -> u64 { return 1; }},
      {"mov.b32 %r1, 0x00010400; mov.b32 %r2, 0; setp.gt.ftz.f16x2 %p1|%p0, %r1, %r2;", 'p',
       [](u64, u64, u64) -> u64 { return 0; }},
      {"set.eq.ftz.u32.f32 %r0, 0f80000001, 0f00000000;", 'r',
       [](u64, u64, u64) -> u64 { return 0xFFFFFFFF; }},
      {"slct.ftz.u32.f32 %r0, %ra, %rb, 0f80000001;", 'r',
       [](u64 a, u64, u64) -> u64 { return a; }},
      {"slct.u32.f32 %r0, %ra, %rb, 0f80000001;", 'r', [](u64, u64 b, u64) -> u64 { return b; }},
      {"setp.ltu.f32 %p0, %fa, %fb;", 'p', [](u64 a, u64 b, u64) -> u64 { return !(F(a) >= F(b)); },
       Values::kFloats},
      {"setp.ne.f32 %p0, %fa, %fb;", 'p',
       [](u64 a, u64 b, u64) -> u64 { return F(a) < F(b) || F(a) > F(b); }, Values::kFloats},
      {"setp.neu.f32 %p0, %fa, %fb;", 'p', [](u64 a, u64 b, u64) -> u64 { return F(a) != F(b); },
       Values::kFloats},
      {"setp.num.f32 %p0, %fa, %fb;", 'p',
       [](u64 a, u64 b, u64) -> u64 { return !std::isnan(F(a)) && !std::isnan(F(b)); },
       Values::kFloats},
      {"setp.nan.f64 %p0, %da, %db;", 'p',
       [](u64 a, u64 b, u64) -> u64 { return std::isnan(D(a)) || std::isnan(D(b)); },
       Values::kDoubles},
      {"setp.equ.f64 %p0, %da, %db;", 'p',
       [](u64 a, u64 b, u64) -> u64 { return !(D(a) < D(b) || D(a) > D(b)); }, Values::kDoubles},
      {"setp.leu.bf16 %p0, %ha, %hb;", 'p',
       [](u64 a, u64 b, u64) -> u64 { return !(BF(a & 0xFFFF) > BF(b & 0xFFFF)); }, Values::kBf16},
      {"setp.neu.f16 %p0, %ha, %hb;", 'p',
       [](u64 a, u64 b, u64) -> u64 { return H(a & 0xFFFF) != H(b & 0xFFFF); }, Values::kHalves},
      {"setp.gt.f16 %p0, %ha, %hb;", 'p',
       [](u64 a, u64 b, u64) -> u64 { return H(a & 0xFFFF) > H(b & 0xFFFF); }, Values::kHalves},
      {"setp.le.bf16x2 %p1|%p0, %ra, %rb;", 'p',
       [](u64 a, u64 b, u64) -> u64 { return BF(a >> 16) <= BF(b >> 16); }, Values::kBf16},
      {"set.lt.u32.s32 %r0, %ra, %rb;", 'r',
       [](u64 a, u64 b, u64) -> u64 { return S(a) < S(b) ? ~0u : 0; }},
      {"set.geu.u32.f32 %r0, %fa, %fb;", 'r',
       [](u64 a, u64 b, u64) -> u64 { return F(a) < F(b) ? 0 : ~0u; }, Values::kFloats},
      {"set.num.f32.f32 %r0, %fa, %fb;", 'r',
       [](u64 a, u64 b, u64) -> u64 { return std::isnan(F(a)) || std::isnan(F(b)) ? 0 : B(1.0f); },
       Values::kFloats},
      {"set.gt.f32.f32 %r0, %fa, %fb;", 'r',
       [](u64 a, u64 b, u64) -> u64 { return F(a) > F(b) ? B(1.0f) : 0; }, Values::kFloats},
      {"selp.b32 %r0, %ra, %rb, %pc;", 'r',
       [](u64 a, u64 b, u64 c) -> u64 { return c & 1 ? a : b; }},
      {"selp.s64 %d0, %da, 5, !%pc;", 'd', [](u64 a, u64, u64 c) -> u64 { return c & 1 ? 5 : a; }},
      {"slct.u32.s32 %r0, %ra, %rb, %rc;", 'r',
       [](u64 a, u64 b, u64 c) -> u64 { return S(c) >= 0 ? a : b; }},
      {"slct.b64.f32 %d0, %da, %db, %fc;", 'd',
       [](u64 a, u64 b, u64 c) -> u64 { return F(c) >= 0 ? a : b; }, Values::kFloats},
      {"testp.finite.f32 %p0, %fa;", 'p',
       [](u64 a, u64, u64) -> u64 { return std::isfinite(F(a)); }, Values::kFloats},
      {"testp.subnormal.f32 %p0, %fa;", 'p',
       [](u64 a, u64, u64) -> u64 { return std::fpclassify(F(a)) == FP_SUBNORMAL; },
       Values::kFloats},
      {"testp.notanumber.f64 %p0, %da;", 'p',
       [](u64 a, u64, u64) -> u64 { return std::isnan(D(a)); }, Values::kDoubles},
  });
}

}  // namespace

int main(int argc, char** argv) { return run_all(argc, argv); }
