// Integer arithmetic and moves, one check per instruction.
#include "emulator/tests/isa_cases.h"

using namespace bwgemm::emulator;
using namespace bwgemm::emulator::testing;

namespace {

TEST(integer_arithmetic) {
  run_all_cases({
      {"add.s32 %r0, %ra, %rb;", 'r', [](u64 a, u64 b, u64) -> u64 { return a + b; }},
      {"add.u64 %d0, %da, %db;", 'd', [](u64 a, u64 b, u64) -> u64 { return a + b; }},
      {"add.s16 %h0, %ha, %hb;", 'h', [](u64 a, u64 b, u64) -> u64 { return a + b; }},
      {"add.u16x2 %r0, %ra, %rb;", 'r',
       [](u64 a, u64 b, u64) -> u64 {
         return pair(static_cast<u16>((a >> 16) + (b >> 16)), static_cast<u16>(a + b));
       }},
      {"add.sat.s32 %r0, %ra, %rb;", 'r',
       [](u64 a, u64 b, u64) -> u64 {
         return std::clamp<s64>(s64{S(a)} + S(b), INT32_MIN, INT32_MAX);
       }},
      {"sub.s32 %r0, %ra, %rb;", 'r', [](u64 a, u64 b, u64) -> u64 { return a - b; }},
      {"sub.s64 %d0, %da, %db;", 'd', [](u64 a, u64 b, u64) -> u64 { return a - b; }},
      {"sub.sat.s32 %r0, %ra, %rb;", 'r',
       [](u64 a, u64 b, u64) -> u64 {
         return std::clamp<s64>(s64{S(a)} - S(b), INT32_MIN, INT32_MAX);
       }},
      {"mul.lo.s32 %r0, %ra, %rb;", 'r', [](u64 a, u64 b, u64) -> u64 { return a * b; }},
      {"mul.hi.u32 %r0, %ra, %rb;", 'r',
       [](u64 a, u64 b, u64) -> u64 { return u64{U(a)} * U(b) >> 32; }},
      {"mul.hi.s32 %r0, %ra, %rb;", 'r',
       [](u64 a, u64 b, u64) -> u64 { return static_cast<u64>(s64{S(a)} * S(b) >> 32); }},
      {"mul.hi.u64 %d0, %da, %db;", 'd',
       [](u64 a, u64 b, u64) -> u64 { return static_cast<u64>(U128(a) * b >> 64); }},
      {"mul.hi.s64 %d0, %da, %db;", 'd',
       [](u64 a, u64 b, u64) -> u64 {
         return static_cast<u64>(I128(static_cast<s64>(a)) * static_cast<s64>(b) >> 64);
       }},
      {"mul.lo.u16 %h0, %ha, %hb;", 'h',
       [](u64 a, u64 b, u64) -> u64 { return U(a & 0xFFFF) * U(b & 0xFFFF); }},
      {"mul.hi.u16 %h0, %ha, %hb;", 'h',
       [](u64 a, u64 b, u64) -> u64 { return U(a & 0xFFFF) * U(b & 0xFFFF) >> 16; }},
      {"mul.wide.u16 %r0, %ha, %hb;", 'r',
       [](u64 a, u64 b, u64) -> u64 { return U(a & 0xFFFF) * U(b & 0xFFFF); }},
      {"mul.wide.s16 %r0, %ha, %hb;", 'r',
       [](u64 a, u64 b, u64) -> u64 { return static_cast<u32>(S16(a) * S16(b)); }},
      {"mul.wide.u32 %d0, %ra, %rb;", 'd',
       [](u64 a, u64 b, u64) -> u64 { return u64{U(a)} * U(b); }},
      {"mul.wide.s32 %d0, %ra, %rb;", 'd',
       [](u64 a, u64 b, u64) -> u64 { return static_cast<u64>(s64{S(a)} * S(b)); }},
      {"mad.lo.s32 %r0, %ra, %rb, %rc;", 'r', [](u64 a, u64 b, u64 c) -> u64 { return a * b + c; }},
      {"mad.hi.u32 %r0, %ra, %rb, %rc;", 'r',
       [](u64 a, u64 b, u64 c) -> u64 { return (u64{U(a)} * U(b) >> 32) + c; }},
      {"mad.lo.u64 %d0, %da, %db, %dc;", 'd', [](u64 a, u64 b, u64 c) -> u64 { return a * b + c; }},
      {"mad.wide.u32 %d0, %ra, %rb, %dc;", 'd',
       [](u64 a, u64 b, u64 c) -> u64 { return u64{U(a)} * U(b) + c; }},
      {"mad.wide.s32 %d0, %ra, %rb, %dc;", 'd',
       [](u64 a, u64 b, u64 c) -> u64 { return static_cast<u64>(s64{S(a)} * S(b)) + c; }},
      {"mad.wide.s16 %r0, %ha, %hb, %rc;", 'r',
       [](u64 a, u64 b, u64 c) -> u64 { return static_cast<u32>(S16(a) * S16(b)) + c; }},
      {"mad.hi.sat.s32 %r0, %ra, %rb, %rc;", 'r',
       [](u64 a, u64 b, u64 c) -> u64 {
         return std::clamp<s64>((s64{S(a)} * S(b) >> 32) + S(c), INT32_MIN, INT32_MAX);
       }},
      {"mul24.lo.u32 %r0, %ra, %rb;", 'r',
       [](u64 a, u64 b, u64) -> u64 { return (a & 0xFFFFFF) * (b & 0xFFFFFF); }},
      {"mul24.hi.u32 %r0, %ra, %rb;", 'r',
       [](u64 a, u64 b, u64) -> u64 { return (a & 0xFFFFFF) * (b & 0xFFFFFF) >> 16; }},
      {"mad24.lo.u32 %r0, %ra, %rb, %rc;", 'r',
       [](u64 a, u64 b, u64 c) -> u64 { return (a & 0xFFFFFF) * (b & 0xFFFFFF) + c; }},
      {"sad.u32 %r0, %ra, %rb, %rc;", 'r',
       [](u64 a, u64 b, u64 c) -> u64 { return (U(a) > U(b) ? a - b : b - a) + c; }},
      {"sad.s32 %r0, %ra, %rb, %rc;", 'r',
       [](u64 a, u64 b, u64 c) -> u64 { return (S(a) > S(b) ? a - b : b - a) + c; }},
      {"div.u32 %r0, %ra, %rb;", 'r',
       [](u64 a, u64 b, u64) -> u64 { return U(b) == 0 ? ~u64{0} : U(a) / U(b); }},
      {"div.s32 %r0, %ra, %rb;", 'r',
       [](u64 a, u64 b, u64) -> u64 {
         return S(b) == 0 ? ~u64{0} : static_cast<u64>(s64{S(a)} / S(b));
       }},
      {"div.s64 %d0, %da, %db;", 'd',
       [](u64 a, u64 b, u64) -> u64 {
         return b == 0         ? ~u64{0}
                : b == ~u64{0} ? 0 - a
                               : static_cast<u64>(static_cast<s64>(a) / static_cast<s64>(b));
       }},
      {"rem.u32 %r0, %ra, %rb;", 'r',
       [](u64 a, u64 b, u64) -> u64 { return U(b) == 0 ? ~u64{0} : U(a) % U(b); }},
      {"rem.s32 %r0, %ra, %rb;", 'r',
       [](u64 a, u64 b, u64) -> u64 {
         return S(b) == 0 ? ~u64{0} : static_cast<u64>(s64{S(a)} % S(b));
       }},
      {"min.s32 %r0, %ra, %rb;", 'r',
       [](u64 a, u64 b, u64) -> u64 { return static_cast<u64>(std::min(S(a), S(b))); }},
      {"min.u64 %d0, %da, %db;", 'd', [](u64 a, u64 b, u64) -> u64 { return std::min(a, b); }},
      {"max.s16 %h0, %ha, %hb;", 'h',
       [](u64 a, u64 b, u64) -> u64 { return static_cast<u64>(std::max(S16(a), S16(b))); }},
      {"max.s16x2 %r0, %ra, %rb;", 'r',
       [](u64 a, u64 b, u64) -> u64 {
         return pair(static_cast<u16>(std::max(S16(a >> 16), S16(b >> 16))),
                     static_cast<u16>(std::max(S16(a), S16(b))));
       }},
      {"abs.s32 %r0, %ra;", 'r', [](u64 a, u64, u64) -> u64 { return S(a) < 0 ? 0 - a : a; }},
      {"neg.s64 %d0, %da;", 'd', [](u64 a, u64, u64) -> u64 { return 0 - a; }},
      {"neg.s16 %h0, %ha;", 'h', [](u64 a, u64, u64) -> u64 { return 0 - a; }},
      {"dp4a.u32.s32 %r0, %ra, %rb, %rc;", 'r',
       [](u64 a, u64 b, u64 c) -> u64 {
         u32 s = U(c);
         for (int i = 0; i < 32; i += 8)
           s += static_cast<u32>(static_cast<int>(a >> i & 255) * static_cast<int8_t>(b >> i));
         return s;
       }},
      {"dp4a.s32.s32 %r0, %ra, %rb, %rc;", 'r',
       [](u64 a, u64 b, u64 c) -> u64 {
         u32 s = U(c);
         for (int i = 0; i < 32; i += 8)
           s += static_cast<u32>(static_cast<int8_t>(a >> i) * static_cast<int8_t>(b >> i));
         return s;
       }},
      {"dp2a.lo.u32.u32 %r0, %ra, %rb, %rc;", 'r',
       [](u64 a, u64 b, u64 c) -> u64 {
         return c + (a & 0xFFFF) * (b & 255) + (a >> 16 & 0xFFFF) * (b >> 8 & 255);
       }},
      {"dp2a.hi.s32.u32 %r0, %ra, %rb, %rc;", 'r',
       [](u64 a, u64 b, u64 c) -> u64 {
         return c + static_cast<u64>(s64{S16(a)} * static_cast<s64>(b >> 16 & 255) +
                                     s64{S16(a >> 16)} * static_cast<s64>(b >> 24 & 255));
       }},
      {"add.cc.u32 %r0, %ra, %rb; addc.u32 %r1, %rc, 0; mov.b64 %d0, {%r0, %r1};", 'd',
       [](u64 a, u64 b, u64 c) -> u64 {
         const u64 low = u64{U(a)} + U(b);
         return (u64{U(U(c) + U(low >> 32))} << 32) | U(low);
       }},
      {"sub.cc.u32 %r0, %ra, %rb; subc.u32 %r0, %rc, 0;", 'r',
       [](u64 a, u64 b, u64 c) -> u64 { return c - (U(a) < U(b)); }},
      // Subtraction leaves the carry of a + ~b + 1, which additions may take.
      {"sub.cc.u32 %r1, %ra, %rb; addc.u32 %r0, 0, 0;", 'r',
       [](u64 a, u64 b, u64) -> u64 { return U(a) >= U(b); }},
      {"sub.cc.u32 %r1, %ra, %rb; madc.lo.u32 %r0, %ra, %rb, %rc;", 'r',
       [](u64 a, u64 b, u64 c) -> u64 { return a * b + c + (U(a) >= U(b)); }},
      {"sub.cc.u64 %d0, %da, %db; subc.cc.u64 %d0, %dc, %da; addc.u32 %r0, 7, 0;", 'r',
       [](u64 a, u64 b, u64 c) -> u64 { return 7 + (U128(c) >= U128(a) + (a < b)); }},
      {"add.cc.u32 %r1, %ra, %rb; subc.u32 %r0, %rc, %ra;", 'r',
       [](u64 a, u64 b, u64 c) -> u64 { return c - a - (u64{U(a)} + U(b) <= 0xFFFFFFFF); }},
      {"add.cc.u64 %d0, %da, %db; addc.cc.u64 %d0, %dc, %dc; addc.u32 %r0, 0, 0;", 'r',
       [](u64 a, u64 b, u64 c) -> u64 {
         const u64 first = a + b < a;
         return static_cast<u64>((U128(c) + c + first) >> 64);
       }},
      {"mad.lo.cc.u32 %r1, %ra, %rb, %rc; madc.hi.u32 %r0, %ra, %rb, 0;", 'r',
       [](u64 a, u64 b, u64 c) -> u64 { return (u64{U(a)} * U(b) + U(c)) >> 32; }},
  });
}

// As compilers divide numbers of 128 bits: subtract the divisor where it fits, which the carry
// says.
TEST(long_division) {
  std::string body = "mov.b64 %d1, 0; mov.b64 %d2, 0; mov.b64 %d3, 0; mov.b64 %d0, %da;";
  for (int i = 0; i < 64; ++i) {
    body +=
        "add.cc.u64 %d0, %d0, %d0; addc.cc.u64 %d1, %d1, %d1; addc.u64 %d2, %d2, %d2;"
        "sub.cc.u64 %d4, %d1, %db; subc.cc.u64 %d5, %d2, 0; addc.u64 %d3, %d3, %d3;"
        "and.b64 %d6, %d3, 1; setp.ne.u64 %p1, %d6, 0;"
        "@%p1 mov.b64 %d1, %d4; @%p1 mov.b64 %d2, %d5;";
  }
  run({(body + "mov.b64 %d0, %d3;").c_str(), 'd',
       [](u64 a, u64 b, u64) -> u64 { return b == 0 ? ~u64{0} : a / b; }});
}

TEST(moves) {
  run_all_cases({
      {"mov.b32 %r0, %ra;", 'r', [](u64 a, u64, u64) -> u64 { return a; }},
      {"mov.b64 %d0, {%ra, %rb};", 'd',
       [](u64 a, u64 b, u64) -> u64 { return u64{U(b)} << 32 | U(a); }},
      {"mov.b32 %r0, {%ha, %hb};", 'r',
       [](u64 a, u64 b, u64) -> u64 { return pair(static_cast<u16>(b), static_cast<u16>(a)); }},
      {"mov.b64 {%r1, %r0}, %da;", 'r', [](u64 a, u64, u64) -> u64 { return a >> 32; }},
      {"mov.b32 {_, %h0}, %ra;", 'h', [](u64 a, u64, u64) -> u64 { return a >> 16; }},
      {"mov.b64 %d0, {%ha, %hb, %hc, %ha};", 'd',
       [](u64 a, u64 b, u64 c) -> u64 {
         return (a & 0xFFFF) | (b & 0xFFFF) << 16 | (c & 0xFFFF) << 32 | (a & 0xFFFF) << 48;
       }},
      {"mov.b128 %q0, {%da, %db}; mov.b128 %q1, %q0; mov.b128 {_, %d0}, %q1;", 'd',
       [](u64, u64 b, u64) -> u64 { return b; }},
      {"mov.pred %p0, %pa;", 'p', [](u64 a, u64, u64) -> u64 { return a & 1; }},
      {"@%pa mov.u32 %r0, 7; @!%pa mov.u32 %r0, 9;", 'r',
       [](u64 a, u64, u64) -> u64 { return a & 1 ? 7 : 9; }},
      {"mov.f32 %f0, 0f3FC00000;", 'f', [](u64, u64, u64) -> u64 { return B(1.5f); }},
      {"mov.f64 %d0, 0d4008000000000000;", 'd', [](u64, u64, u64) -> u64 { return BD(3.0); }},
      {"mov.u32 %r0, %ntid.x;", 'r', [](u64, u64, u64) -> u64 { return 32; }},
      {"mov.u32 %r1, %laneid; mov.u32 %r2, %lanemask_lt; popc.b32 %r2, %r2; sub.u32 %r0, %r1, %r2;",
       'r', [](u64, u64, u64) -> u64 { return 0; }},
      {"activemask.b32 %r0;", 'r', [](u64, u64, u64) -> u64 { return ~0u; }},
      {"mov.u64 %d1, %clock64; mov.u64 %d2, %clock64; setp.gt.u64 %p0, %d2, %d1;", 'p',
       [](u64, u64, u64) -> u64 { return 1; }},
  });
}

TEST(memory_spaces) {
  run_all_cases({
      {".shared .align 16 .b8 s[1024]; mov.u32 %r1, s; mad.lo.u32 %r1, %thread, 16, %r1; "
       "st.shared.v2.u64 [%r1], {%da, %db}; ld.shared.v4.u32 {%r2, %r3, %r4, %r0}, [%r1];",
       'r', [](u64, u64 b, u64) -> u64 { return b >> 32; }},
      {".shared .align 8 .b8 s[256]; mov.u32 %r1, s; mad.lo.u32 %r1, %thread, 8, %r1; cvt.u64.u32 "
       "%d1, "
       "%r1; cvta.shared.u64 %d1, %d1; st.u64 [%d1], %da; ld.shared.u64 %d0, [%r1]; "
       "isspacep.shared "
       "%p0, %d1; cvta.to.shared.u64 %d2, %d1; ld.b64 %d0, [%d1];",
       'd', [](u64 a, u64, u64) -> u64 { return a; }},
      {".local .align 8 .b8 l[16]; mov.u64 %d1, l; st.local.u64 [%d1+8], %da; cvta.local.u64 %d2, "
       "%d1; "
       "ld.u64 %d0, [%d2+8];",
       'd', [](u64 a, u64, u64) -> u64 { return a; }},
      {".local .align 8 .b8 l[16]; st.local.b16 [l+2], %ha; ld.local.s16 %r0, [l+2];", 'r',
       [](u64 a, u64, u64) -> u64 { return static_cast<u64>(S16(a)); }},
      {".local .align 8 .b8 l[16]; st.local.u32 [l], %ra; ld.local.s8 %r0, [l+1];", 'r',
       [](u64 a, u64, u64) -> u64 { return static_cast<u64>(static_cast<int8_t>(a >> 8)); }},
      {".local .align 8 .b8 l[16]; st.local.u32 [l], %ra; ld.local.s8 %d0, [l];", 'd',
       [](u64 a, u64, u64) -> u64 { return static_cast<u64>(static_cast<int8_t>(a)); }},
      {".local .align 16 .b8 l[16]; st.local.v2.u64 [l], {%da, %db}; ld.local.b128 %q0, [l]; "
       "mov.b128 "
       "{_, %d0}, %q0;",
       'd', [](u64, u64 b, u64) -> u64 { return b; }},
      {"ld.param.u64 %d1, [in]; sub.u64 %d0, %d1, %in;", 'd',
       [](u64, u64, u64) -> u64 { return 0; }},
      {"mov.b64 %d1, in; cvta.param.u64 %d1, %d1; ld.u64 %d2, [%d1]; sub.u64 %d0, %d2, %in;", 'd',
       [](u64, u64, u64) -> u64 { return 0; }},
      {"mov.u64 %d1, %in; ld.global.nc.L1::no_allocate.L2::128B.u64 %d2, [%d1]; "
       "ld.volatile.global.u64 "
       "%d3, [%in]; sub.u64 %d0, %d2, %d3;",
       'd', [](u64, u64, u64) -> u64 { return 0; }},
  });
}

}  // namespace

int main(int argc, char** argv) { return run_all(argc, argv); }
