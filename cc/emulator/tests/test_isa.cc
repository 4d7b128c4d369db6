// One check per ordinary instruction: a one-line PTX body runs on 32 lanes of edge cases and random values, and every lane is compared with
// the value computed here.
#include <algorithm>
#include <cfenv>
#include <cmath>
#include <cstring>
#include <functional>
#include <random>

#include "emulator/tests/tensor_kernel.h"

using namespace bwgemm::emulator;
using namespace bwgemm::emulator::testing;

namespace {

using u8 = uint8_t;
using u16 = uint16_t;
using u32 = uint32_t;
using u64 = uint64_t;
using s16 = int16_t;
using s32 = int32_t;
using s64 = int64_t;

float F(u64 bits) {
  const u32 low = static_cast<u32>(bits);
  float value;
  std::memcpy(&value, &low, 4);
  return value;
}
u32 B(float value) {
  u32 bits;
  std::memcpy(&bits, &value, 4);
  return std::isnan(value) ? 0x7FFFFFFF : bits;
}
double D(u64 bits) {
  double value;
  std::memcpy(&value, &bits, 8);
  return value;
}
u64 BD(double value) {
  u64 bits;
  std::memcpy(&bits, &value, 8);
  return bits;
}
// Half precision through double, straight from the definition.
double H(u64 bits) {
  const int sign = bits >> 15 & 1, exponent = bits >> 10 & 31, mantissa = bits & 1023;
  const double magnitude = exponent == 31   ? (mantissa != 0 ? NAN : INFINITY)
                           : exponent == 0 ? std::ldexp(mantissa, -24)
                                           : std::ldexp(1024 + mantissa, exponent - 25);
  return sign ? -magnitude : magnitude;
}
// Nearest even by trying both neighbours: the two candidates around the value among all 65536.
u16 nearest(double value, double (*decode)(u64), u16 infinity) {
  if (std::isnan(value)) return 0x7FFF;
  const u16 sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::fabs(value);
  u32 low = 0, high = infinity;  // decode(low) <= magnitude
  while (high - low > 1) {
    const u32 middle = (low + high) / 2;
    (decode(middle) <= magnitude ? low : high) = middle;
  }
  if (magnitude >= decode(infinity - 1u)) {
    const double top = decode(infinity - 1u), step = top - decode(infinity - 2u);
    return static_cast<u16>(sign | (magnitude >= top + step / 2 ? infinity : infinity - 1));
  }
  const double below = magnitude - decode(low), above = decode(low + 1) - magnitude;
  const bool up = above < below || (above == below && (low & 1) != 0);
  return static_cast<u16>(sign | (low + up));
}
u16 half(double value) { return nearest(value, H, 0x7C00); }
double BF(u64 bits) { return F((bits & 0xFFFF) << 16); }
u16 bf16(double value) { return nearest(value, BF, 0x7F80); }
double E4M3(u64 bits) {
  const int exponent = bits >> 3 & 15, mantissa = bits & 7;
  if ((bits & 0x7F) == 0x7F) return NAN;
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return bits & 0x80 ? -magnitude : magnitude;
}
u32 e4m3(double value) {
  if (std::isnan(value)) return 0x7F;
  const u32 sign = std::signbit(value) ? 0x80 : 0;
  u32 best = 0;
  for (u32 i = 0; i <= 0x7E; ++i) {
    const double here = std::fabs(E4M3(i) - std::fabs(value)), there = std::fabs(E4M3(best) - std::fabs(value));
    if (here < there || (here == there && (i & 1) == 0)) best = i;
  }
  return sign | best;
}
u32 pair(u16 high, u16 low) { return static_cast<u32>(high) << 16 | low; }

constexpr int kLanes = 32;
enum class Values { kInts, kFloats, kHalves, kDoubles, kSmall, kBf16 };

struct Case {
  const char* body;
  char out;  // d, r, h: register of 64, 32, 16 bits; p: predicate
  std::function<u64(u64, u64, u64)> expect;
  Values values = Values::kInts;
  double tolerance = 0;  // relative, for approximate functions (f32)
};

// Inputs a, b, c as %da %db %dc (64 bits), %ra .. (32), %fa .. (f32), %ha .. (16), %pa .. (bit 0). Results in %d0, %r0, %f0, %h0, %p0.
std::string text(const std::string& body) {
  return ".version 8.8\n.target sm_100a\n.address_size 64\n.visible .entry k(.param .u64 in, .param .u64 out) {\n"
         ".reg .b64 %da, %db, %dc, %d<8>, %in, %out;\n.reg .b32 %ra, %rb, %rc, %r<8>, %tid;\n.reg .f32 %fa, %fb, %fc, %f<8>;\n"
         ".reg .b16 %ha, %hb, %hc, %h<8>;\n.reg .pred %pa, %pb, %pc, %p<8>;\n.reg .b64 %address;\n.reg .b128 %q<4>;\n"
         "ld.param.u64 %in, [in];\nld.param.u64 %out, [out];\nmov.u32 %tid, %tid.x;\nmul.wide.u32 %address, %tid, 24;\n"
         "add.s64 %address, %address, %in;\nld.global.u64 %da, [%address];\nld.global.u64 %db, [%address+8];\nld.global.u64 %dc, [%address+16];\n"
         "cvt.u32.u64 %ra, %da;\ncvt.u32.u64 %rb, %db;\ncvt.u32.u64 %rc, %dc;\nmov.b32 %fa, %ra;\nmov.b32 %fb, %rb;\nmov.b32 %fc, %rc;\n"
         "cvt.u16.u64 %ha, %da;\ncvt.u16.u64 %hb, %db;\ncvt.u16.u64 %hc, %dc;\n"
         "and.b32 %r7, %ra, 1;\nsetp.ne.b32 %pa, %r7, 0;\nand.b32 %r7, %rb, 1;\nsetp.ne.b32 %pb, %r7, 0;\nand.b32 %r7, %rc, 1;\nsetp.ne.b32 %pc, %r7, 0;\n"
         "mov.u64 %d0, 0;\nmov.u32 %r0, 0;\nmov.u16 %h0, 0;\nmov.b32 %f0, %r0;\nsetp.ne.u32 %p0, 0, 0;\n" +
         body +
         "\nmul.wide.u32 %address, %tid, 32;\nadd.s64 %address, %address, %out;\nst.global.u64 [%address], %d0;\nst.global.u32 [%address+8], %r0;\n"
         "st.global.u16 [%address+16], %h0;\nselp.u32 %r7, 1, 0, %p0;\nst.global.u32 [%address+24], %r7;\nst.global.f32 [%address+12], %f0;\nret;\n}\n";
}

void fill(Values values, u64* in) {
  std::mt19937_64 random(7);
  static const u64 kEdges[] = {0, 1, 2, 31, 32, 33, 0x7F, 0x80, 0x7FFF, 0x8000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x7FFFFFFFFFFFFFFF, 0x8000000000000000, ~u64{0}};
  static const float kFloats[] = {0.0f, -0.0f, 1.0f, -1.0f, 0.5f, 1.5f, 2.5f, -2.5f, 3.7f, -3.7f, 1e-40f, -1e-40f, 3e38f, 1e10f, INFINITY, NAN};
  for (int i = 0; i < 3 * kLanes; ++i) {
    u64 value = random();
    const bool edge = random() % 2 == 0;
    switch (values) {
      case Values::kInts:
        if (edge) value = kEdges[random() % 16];
        break;
      case Values::kFloats: value = B(edge ? kFloats[random() % 16] : std::ldexp(static_cast<float>(static_cast<s32>(random())), -28)); break;
      case Values::kHalves: value = pair(static_cast<u16>(random() & 0xFBFF), static_cast<u16>(random() & 0xFBFF)); break;  // finite
      case Values::kBf16: value = pair(bf16(static_cast<s16>(random()) / 64.0), bf16(static_cast<s16>(random()) / 64.0)); break;
      case Values::kDoubles: value = BD(edge ? kFloats[random() % 16] : std::ldexp(static_cast<double>(static_cast<s64>(random())), -58)); break;
      case Values::kSmall: value = B(std::ldexp(static_cast<float>(static_cast<s32>(random())), -29)); break;  // |x| < 4
    }
    in[i] = value;
  }
}

void run(const Case& c) {
  Launcher launcher;
  launcher.block = {kLanes, 1, 1};
  Buffer in(3 * kLanes * 8), out(kLanes * 32);
  fill(c.values, in.as<u64>());
  launcher.add(in, false, "in");
  launcher.add(out, true, "out");
  const LaunchResult result = launcher.run(text(c.body), Params().u64(in.address()).u64(out.address()));
  if (!result.ok) {
    fail(__FILE__, __LINE__, std::string(c.body) + ": " + result.error);
    return;
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    const u64* v = in.as<u64>() + 3 * lane;
    u64 got = 0;
    const uint8_t* at = out.data() + 32 * lane;
    switch (c.out) {
      case 'd': std::memcpy(&got, at, 8); break;
      case 'r': std::memcpy(&got, at + 8, 4); break;
      case 'f': std::memcpy(&got, at + 12, 4); break;
      case 'h': std::memcpy(&got, at + 16, 2); break;
      default: std::memcpy(&got, at + 24, 4); break;
    }
    u64 want = c.expect(v[0], v[1], v[2]);
    if (c.out == 'r' || c.out == 'f') want = static_cast<u32>(want);
    if (c.out == 'h') want = static_cast<u16>(want);
    bool same = got == want;
    if (c.out == 'f' && !same) {
      same = std::isnan(F(got)) && std::isnan(F(want));
      if (c.tolerance > 0) same = same || F(got) == F(want) || std::fabs(F(got) - F(want)) <= c.tolerance * std::fabs(F(want));
    }
    if (c.out == 'd' && c.values == Values::kDoubles && !same) same = std::isnan(D(got)) && std::isnan(D(want));
    if (!same) {
      char message[256];
      std::snprintf(message, sizeof message, "%s: lane %d (0x%llx, 0x%llx, 0x%llx) gave 0x%llx, expected 0x%llx", c.body, lane,
                    static_cast<unsigned long long>(v[0]), static_cast<unsigned long long>(v[1]), static_cast<unsigned long long>(v[2]),
                    static_cast<unsigned long long>(got), static_cast<unsigned long long>(want));
      fail(__FILE__, __LINE__, message);
      return;
    }
  }
}

void run_all_cases(const std::vector<Case>& cases) {
  for (const Case& c : cases) run(c);
}

s32 S(u64 v) { return static_cast<s32>(v); }
u32 U(u64 v) { return static_cast<u32>(v); }
s16 S16(u64 v) { return static_cast<s16>(v); }
__int128 I128(s64 v) { return v; }
unsigned __int128 U128(u64 v) { return v; }

#define E [](u64 a, u64 b, u64 c) -> u64
#define UNUSED (void)a, (void)b, (void)c

TEST(integer_arithmetic) {
  run_all_cases({
      {"add.s32 %r0, %ra, %rb;", 'r', E { UNUSED; return a + b; }},
      {"add.u64 %d0, %da, %db;", 'd', E { UNUSED; return a + b; }},
      {"add.s16 %h0, %ha, %hb;", 'h', E { UNUSED; return a + b; }},
      {"add.u16x2 %r0, %ra, %rb;", 'r', E { UNUSED; return pair(static_cast<u16>((a >> 16) + (b >> 16)), static_cast<u16>(a + b)); }},
      {"add.sat.s32 %r0, %ra, %rb;", 'r', E { UNUSED; return std::clamp<s64>(s64{S(a)} + S(b), INT32_MIN, INT32_MAX); }},
      {"sub.s32 %r0, %ra, %rb;", 'r', E { UNUSED; return a - b; }},
      {"sub.s64 %d0, %da, %db;", 'd', E { UNUSED; return a - b; }},
      {"sub.sat.s32 %r0, %ra, %rb;", 'r', E { UNUSED; return std::clamp<s64>(s64{S(a)} - S(b), INT32_MIN, INT32_MAX); }},
      {"mul.lo.s32 %r0, %ra, %rb;", 'r', E { UNUSED; return a * b; }},
      {"mul.hi.u32 %r0, %ra, %rb;", 'r', E { UNUSED; return u64{U(a)} * U(b) >> 32; }},
      {"mul.hi.s32 %r0, %ra, %rb;", 'r', E { UNUSED; return static_cast<u64>(s64{S(a)} * S(b) >> 32); }},
      {"mul.hi.u64 %d0, %da, %db;", 'd', E { UNUSED; return static_cast<u64>(U128(a) * b >> 64); }},
      {"mul.hi.s64 %d0, %da, %db;", 'd', E { UNUSED; return static_cast<u64>(I128(static_cast<s64>(a)) * static_cast<s64>(b) >> 64); }},
      {"mul.lo.u16 %h0, %ha, %hb;", 'h', E { UNUSED; return U(a & 0xFFFF) * U(b & 0xFFFF); }},
      {"mul.hi.u16 %h0, %ha, %hb;", 'h', E { UNUSED; return U(a & 0xFFFF) * U(b & 0xFFFF) >> 16; }},
      {"mul.wide.u16 %r0, %ha, %hb;", 'r', E { UNUSED; return U(a & 0xFFFF) * U(b & 0xFFFF); }},
      {"mul.wide.s16 %r0, %ha, %hb;", 'r', E { UNUSED; return static_cast<u32>(S16(a) * S16(b)); }},
      {"mul.wide.u32 %d0, %ra, %rb;", 'd', E { UNUSED; return u64{U(a)} * U(b); }},
      {"mul.wide.s32 %d0, %ra, %rb;", 'd', E { UNUSED; return static_cast<u64>(s64{S(a)} * S(b)); }},
      {"mad.lo.s32 %r0, %ra, %rb, %rc;", 'r', E { UNUSED; return a * b + c; }},
      {"mad.hi.u32 %r0, %ra, %rb, %rc;", 'r', E { UNUSED; return (u64{U(a)} * U(b) >> 32) + c; }},
      {"mad.lo.u64 %d0, %da, %db, %dc;", 'd', E { UNUSED; return a * b + c; }},
      {"mad.wide.u32 %d0, %ra, %rb, %dc;", 'd', E { UNUSED; return u64{U(a)} * U(b) + c; }},
      {"mad.wide.s32 %d0, %ra, %rb, %dc;", 'd', E { UNUSED; return static_cast<u64>(s64{S(a)} * S(b)) + c; }},
      {"mad.wide.s16 %r0, %ha, %hb, %rc;", 'r', E { UNUSED; return static_cast<u32>(S16(a) * S16(b)) + c; }},
      {"mad.hi.sat.s32 %r0, %ra, %rb, %rc;", 'r', E { UNUSED; return std::clamp<s64>((s64{S(a)} * S(b) >> 32) + S(c), INT32_MIN, INT32_MAX); }},
      {"mul24.lo.u32 %r0, %ra, %rb;", 'r', E { UNUSED; return (a & 0xFFFFFF) * (b & 0xFFFFFF); }},
      {"mul24.hi.u32 %r0, %ra, %rb;", 'r', E { UNUSED; return (a & 0xFFFFFF) * (b & 0xFFFFFF) >> 16; }},
      {"mad24.lo.u32 %r0, %ra, %rb, %rc;", 'r', E { UNUSED; return (a & 0xFFFFFF) * (b & 0xFFFFFF) + c; }},
      {"sad.u32 %r0, %ra, %rb, %rc;", 'r', E { UNUSED; return (U(a) > U(b) ? a - b : b - a) + c; }},
      {"sad.s32 %r0, %ra, %rb, %rc;", 'r', E { UNUSED; return (S(a) > S(b) ? a - b : b - a) + c; }},
      {"div.u32 %r0, %ra, %rb;", 'r', E { UNUSED; return U(b) == 0 ? ~u64{0} : U(a) / U(b); }},
      {"div.s32 %r0, %ra, %rb;", 'r', E { UNUSED; return S(b) == 0 ? ~u64{0} : static_cast<u64>(s64{S(a)} / S(b)); }},
      {"div.s64 %d0, %da, %db;", 'd', E { UNUSED; return b == 0 ? ~u64{0} : b == ~u64{0} ? 0 - a : static_cast<u64>(static_cast<s64>(a) / static_cast<s64>(b)); }},
      {"rem.u32 %r0, %ra, %rb;", 'r', E { UNUSED; return U(b) == 0 ? a : U(a) % U(b); }},
      {"rem.s32 %r0, %ra, %rb;", 'r', E { UNUSED; return S(b) == 0 ? a : static_cast<u64>(s64{S(a)} % S(b)); }},
      {"min.s32 %r0, %ra, %rb;", 'r', E { UNUSED; return static_cast<u64>(std::min(S(a), S(b))); }},
      {"min.u64 %d0, %da, %db;", 'd', E { UNUSED; return std::min(a, b); }},
      {"max.s16 %h0, %ha, %hb;", 'h', E { UNUSED; return static_cast<u64>(std::max(S16(a), S16(b))); }},
      {"max.s16x2 %r0, %ra, %rb;", 'r', E { UNUSED; return pair(static_cast<u16>(std::max(S16(a >> 16), S16(b >> 16))), static_cast<u16>(std::max(S16(a), S16(b)))); }},
      {"abs.s32 %r0, %ra;", 'r', E { UNUSED; return S(a) < 0 ? 0 - a : a; }},
      {"neg.s64 %d0, %da;", 'd', E { UNUSED; return 0 - a; }},
      {"neg.s16 %h0, %ha;", 'h', E { UNUSED; return 0 - a; }},
      {"dp4a.u32.s32 %r0, %ra, %rb, %rc;", 'r', E { UNUSED; u32 s = U(c); for (int i = 0; i < 32; i += 8) s += static_cast<u32>(static_cast<int>(a >> i & 255) * static_cast<int8_t>(b >> i)); return s; }},
      {"dp4a.s32.s32 %r0, %ra, %rb, %rc;", 'r', E { UNUSED; u32 s = U(c); for (int i = 0; i < 32; i += 8) s += static_cast<u32>(static_cast<int8_t>(a >> i) * static_cast<int8_t>(b >> i)); return s; }},
      {"dp2a.lo.u32.u32 %r0, %ra, %rb, %rc;", 'r', E { UNUSED; return c + (a & 0xFFFF) * (b & 255) + (a >> 16 & 0xFFFF) * (b >> 8 & 255); }},
      {"dp2a.hi.s32.u32 %r0, %ra, %rb, %rc;", 'r', E { UNUSED; return c + static_cast<u64>(s64{S16(a)} * static_cast<s64>(b >> 16 & 255) + s64{S16(a >> 16)} * static_cast<s64>(b >> 24 & 255)); }},
      {"add.cc.u32 %r0, %ra, %rb; addc.u32 %r1, %rc, 0; mov.b64 %d0, {%r0, %r1};", 'd', E { UNUSED; const u64 low = u64{U(a)} + U(b); return (u64{U(U(c) + U(low >> 32))} << 32) | U(low); }},
      {"sub.cc.u32 %r0, %ra, %rb; subc.u32 %r0, %rc, 0;", 'r', E { UNUSED; return c - (U(a) < U(b)); }},
      {"add.cc.u64 %d0, %da, %db; addc.cc.u64 %d0, %dc, %dc; addc.u32 %r0, 0, 0;", 'r', E { UNUSED; const u64 first = a + b < a; return static_cast<u64>((U128(c) + c + first) >> 64); }},
      {"mad.lo.cc.u32 %r1, %ra, %rb, %rc; madc.hi.u32 %r0, %ra, %rb, 0;", 'r', E { UNUSED; return (u64{U(a)} * U(b) + U(c)) >> 32; }},
  });
}

TEST(logic_and_bits) {
  run_all_cases({
      {"and.b32 %r0, %ra, %rb;", 'r', E { UNUSED; return a & b; }},
      {"or.b64 %d0, %da, %db;", 'd', E { UNUSED; return a | b; }},
      {"xor.b16 %h0, %ha, %hb;", 'h', E { UNUSED; return a ^ b; }},
      {"not.b32 %r0, %ra;", 'r', E { UNUSED; return ~a; }},
      {"cnot.b32 %r0, %ra;", 'r', E { UNUSED; return U(a) == 0; }},
      {"and.pred %p0, %pa, !%pb;", 'p', E { UNUSED; return (a & 1) & (~b & 1); }},
      {"or.pred %p0, %pa, %pb;", 'p', E { UNUSED; return (a | b) & 1; }},
      {"xor.pred %p0, %pa, %pb;", 'p', E { UNUSED; return (a ^ b) & 1; }},
      {"not.pred %p0, %pa;", 'p', E { UNUSED; return ~a & 1; }},
      {"lop3.b32 %r0, %ra, %rb, %rc, 0x96;", 'r', E { UNUSED; return a ^ b ^ c; }},
      {"lop3.b32 %r0, %ra, %rb, %rc, 0xE8;", 'r', E { UNUSED; return (a & b) | (a & c) | (b & c); }},
      {"shl.b32 %r0, %ra, %rb;", 'r', E { UNUSED; return U(b) > 31 ? 0 : U(a) << U(b); }},
      {"shl.b64 %d0, %da, %rb;", 'd', E { UNUSED; return U(b) > 63 ? 0 : a << U(b); }},
      {"shr.u32 %r0, %ra, %rb;", 'r', E { UNUSED; return U(b) > 31 ? 0 : U(a) >> U(b); }},
      {"shr.s32 %r0, %ra, %rb;", 'r', E { UNUSED; return static_cast<u64>(S(a) >> std::min(U(b), 31u)); }},
      {"shr.s64 %d0, %da, %rb;", 'd', E { UNUSED; return static_cast<u64>(static_cast<s64>(a) >> std::min(U(b), 63u)); }},
      {"shr.u16 %h0, %ha, %rb;", 'h', E { UNUSED; return U(b) > 15 ? 0 : (a & 0xFFFF) >> U(b); }},
      {"shf.l.wrap.b32 %r0, %ra, %rb, %rc;", 'r', E { UNUSED; const u64 w = u64{U(b)} << 32 | U(a); return (w << (c & 31)) >> 32; }},
      {"shf.r.wrap.b32 %r0, %ra, %rb, %rc;", 'r', E { UNUSED; const u64 w = u64{U(b)} << 32 | U(a); return w >> (c & 31); }},
      {"shf.r.clamp.b32 %r0, %ra, %rb, %rc;", 'r', E { UNUSED; const u64 w = u64{U(b)} << 32 | U(a); return w >> std::min(U(c), 32u); }},
      {"popc.b32 %r0, %ra;", 'r', E { UNUSED; return static_cast<u64>(__builtin_popcount(U(a))); }},
      {"popc.b64 %r0, %da;", 'r', E { UNUSED; return static_cast<u64>(__builtin_popcountll(a)); }},
      {"clz.b32 %r0, %ra;", 'r', E { UNUSED; u32 n = 0; while (n < 32 && (a >> (31 - n) & 1) == 0) ++n; return n; }},
      {"clz.b64 %r0, %da;", 'r', E { UNUSED; u32 n = 0; while (n < 64 && (a >> (63 - n) & 1) == 0) ++n; return n; }},
      {"brev.b32 %r0, %ra;", 'r', E { UNUSED; u32 r = 0; for (int i = 0; i < 32; ++i) r |= U(a >> i & 1) << (31 - i); return r; }},
      {"bfind.u32 %r0, %ra;", 'r', E { UNUSED; u32 r = ~0u; for (u32 i = 0; i < 32; ++i) if (a >> i & 1) r = i; return r; }},
      {"bfind.s32 %r0, %ra;", 'r', E { UNUSED; const u32 v = S(a) < 0 ? ~U(a) : U(a); u32 r = ~0u; for (u32 i = 0; i < 32; ++i) if (v >> i & 1) r = i; return r; }},
      {"bfind.shiftamt.u32 %r0, %ra;", 'r', E { UNUSED; u32 r = ~0u; for (u32 i = 0; i < 32; ++i) if (a >> i & 1) r = 31 - i; return r; }},
      {"bfe.u32 %r0, %ra, %rb, %rc;", 'r', E { UNUSED; const u32 p = b & 255, n = c & 255; u32 r = 0; for (u32 i = 0; i < n && p + i < 32; ++i) r |= U(a >> (p + i) & 1) << i; return r; }},
      {"bfe.s32 %r0, %ra, %rb, %rc;", 'r', E { UNUSED; const u32 p = b & 255, n = c & 255; if (n == 0) return 0; const u32 sign = U(a) >> std::min(p + n - 1, 31u) & 1; u32 r = 0; for (u32 i = 0; i < 32; ++i) r |= (i < n && p + i < 32 ? U(a >> (p + i) & 1) : sign) << i; return r; }},
      {"bfi.b32 %r0, %ra, %rb, 7, 9;", 'r', E { UNUSED; return (b & ~(511u << 7)) | (a & 511) << 7; }},
      {"bfi.b64 %d0, %da, %db, 60, 9;", 'd', E { UNUSED; return (b & ~(u64{15} << 60)) | (a & 15) << 60; }},
      {"bmsk.clamp.b32 %r0, %ra, %rb;", 'r', E { UNUSED; u32 r = 0; for (u64 i = U(a); i < 32 && i < u64{U(a)} + U(b); ++i) r |= 1u << i; return r; }},
      {"szext.clamp.s32 %r0, %ra, %rb;", 'r', E { UNUSED; const u32 n = std::min(U(b), 32u); return n == 0 ? 0 : static_cast<u64>(static_cast<s64>(static_cast<u64>(U(a)) << (64 - n)) >> (64 - n)); }},
      {"fns.b32 %r0, %ra, 0, 2;", 'r', E { UNUSED; int n = 0; for (u32 i = 0; i < 32; ++i) if ((a >> i & 1) && ++n == 2) return i; return ~0u; }},
      {"prmt.b32 %r0, %ra, %rb, 0x7250;", 'r', E { UNUSED; const u64 w = u64{U(b)} << 32 | U(a); return (w & 255) | (w >> 40 & 255) << 8 | (w >> 16 & 255) << 16 | (w >> 56 & 255) << 24; }},
      {"prmt.b32 %r0, %ra, %rb, 0x888B;", 'r', E { UNUSED; const u32 hi = a >> 31 & 1 ? 255 : 0, lo = a >> 7 & 1 ? 255 : 0; return hi | lo << 8 | lo << 16 | lo << 24; }},
      {"prmt.b32.f4e %r0, %ra, %rb, %rc;", 'r', E { UNUSED; const u64 w = u64{U(b)} << 32 | U(a); return w >> (8 * (c & 3)); }},
      {"prmt.b32.rc16 %r0, %ra, %rb, %rc;", 'r', E { UNUSED; const u32 h = a >> (16 * (c & 1)) & 0xFFFF; return h | h << 16; }},
  });
}

TEST(comparison) {
  run_all_cases({
      {"setp.lt.s32 %p0, %ra, %rb;", 'p', E { UNUSED; return S(a) < S(b); }},
      {"setp.ls.u32 %p0, %ra, %rb;", 'p', E { UNUSED; return U(a) <= U(b); }},
      {"setp.hi.u64 %p0, %da, %db;", 'p', E { UNUSED; return a > b; }},
      {"setp.ge.s16 %p0, %ha, %hb;", 'p', E { UNUSED; return S16(a) >= S16(b); }},
      {"setp.eq.and.b32 %p0, %ra, %rb, %pc;", 'p', E { UNUSED; return U(a) == U(b) && (c & 1); }},
      {"setp.ne.or.u32 %p1|%p0, %ra, %rb, !%pc;", 'p', E { UNUSED; return U(a) == U(b) || !(c & 1); }},
      {"setp.gt.xor.u32 %p0, %ra, %rb, %pc;", 'p', E { UNUSED; return (U(a) > U(b)) != (c & 1); }},
      {"setp.lt.f32 %p0, %fa, %fb;", 'p', E { UNUSED; return F(a) < F(b); }, Values::kFloats},
      {"setp.ltu.f32 %p0, %fa, %fb;", 'p', E { UNUSED; return !(F(a) >= F(b)); }, Values::kFloats},
      {"setp.ne.f32 %p0, %fa, %fb;", 'p', E { UNUSED; return F(a) < F(b) || F(a) > F(b); }, Values::kFloats},
      {"setp.neu.f32 %p0, %fa, %fb;", 'p', E { UNUSED; return F(a) != F(b); }, Values::kFloats},
      {"setp.num.f32 %p0, %fa, %fb;", 'p', E { UNUSED; return !std::isnan(F(a)) && !std::isnan(F(b)); }, Values::kFloats},
      {"setp.nan.f64 %p0, %da, %db;", 'p', E { UNUSED; return std::isnan(D(a)) || std::isnan(D(b)); }, Values::kDoubles},
      {"setp.gt.f16 %p0, %ha, %hb;", 'p', E { UNUSED; return H(a & 0xFFFF) > H(b & 0xFFFF); }, Values::kHalves},
      {"setp.le.bf16x2 %p1|%p0, %ra, %rb;", 'p', E { UNUSED; return BF(a >> 16) <= BF(b >> 16); }, Values::kBf16},
      {"set.lt.u32.s32 %r0, %ra, %rb;", 'r', E { UNUSED; return S(a) < S(b) ? ~0u : 0; }},
      {"set.gt.f32.f32 %r0, %fa, %fb;", 'r', E { UNUSED; return F(a) > F(b) ? B(1.0f) : 0; }, Values::kFloats},
      {"selp.b32 %r0, %ra, %rb, %pc;", 'r', E { UNUSED; return c & 1 ? a : b; }},
      {"selp.s64 %d0, %da, 5, !%pc;", 'd', E { UNUSED; return c & 1 ? 5 : a; }},
      {"slct.u32.s32 %r0, %ra, %rb, %rc;", 'r', E { UNUSED; return S(c) >= 0 ? a : b; }},
      {"slct.b64.f32 %d0, %da, %db, %fc;", 'd', E { UNUSED; return F(c) >= 0 ? a : b; }, Values::kFloats},
      {"testp.finite.f32 %p0, %fa;", 'p', E { UNUSED; return std::isfinite(F(a)); }, Values::kFloats},
      {"testp.subnormal.f32 %p0, %fa;", 'p', E { UNUSED; return std::fpclassify(F(a)) == FP_SUBNORMAL; }, Values::kFloats},
      {"testp.notanumber.f64 %p0, %da;", 'p', E { UNUSED; return std::isnan(D(a)); }, Values::kDoubles},
  });
}

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
      {"add.f32 %f0, %fa, %fb;", 'f', E { UNUSED; return B(F(a) + F(b)); }, Values::kFloats},
      {"add.rz.f32 %f0, %fa, %fb;", 'f', E { UNUSED; return B(rounded([](float x, float y) { return x + y; }, FE_TOWARDZERO, F(a), F(b))); }, Values::kFloats},
      {"add.rp.f32 %f0, %fa, %fb;", 'f', E { UNUSED; return B(rounded([](float x, float y) { return x + y; }, FE_UPWARD, F(a), F(b))); }, Values::kFloats},
      {"add.ftz.f32 %f0, %fa, %fb;", 'f', E { UNUSED; return B(ftz(ftz(F(a)) + ftz(F(b)))); }, Values::kFloats},
      {"add.sat.f32 %f0, %fa, %fb;", 'f', E { UNUSED; const float x = F(a) + F(b); return B(x > 0 ? std::min(x, 1.0f) : 0.0f); }, Values::kFloats},
      {"sub.f32 %f0, %fa, %fb;", 'f', E { UNUSED; return B(F(a) - F(b)); }, Values::kFloats},
      {"mul.f32 %f0, %fa, %fb;", 'f', E { UNUSED; return B(F(a) * F(b)); }, Values::kFloats},
      {"mul.rm.f32 %f0, %fa, %fb;", 'f', E { UNUSED; return B(rounded([](float x, float y) { return x * y; }, FE_DOWNWARD, F(a), F(b))); }, Values::kFloats},
      {"fma.rn.f32 %f0, %fa, %fb, %fc;", 'f', E { UNUSED; return B(std::fma(F(a), F(b), F(c))); }, Values::kFloats},
      {"mad.rn.f32 %f0, %fa, %fb, %fc;", 'f', E { UNUSED; return B(std::fma(F(a), F(b), F(c))); }, Values::kFloats},
      {"div.rn.f32 %f0, %fa, %fb;", 'f', E { UNUSED; return B(F(a) / F(b)); }, Values::kFloats},
      {"div.approx.f32 %f0, %fa, %fb;", 'f', E { UNUSED; return B(F(a) / F(b)); }, Values::kFloats, 1e-6},
      {"min.f32 %f0, %fa, %fb;", 'f', E { UNUSED; return B(std::fmin(F(a), F(b)) == 0 && F(a) == F(b) ? (std::signbit(F(a)) ? F(a) : F(b)) : std::fmin(F(a), F(b))); }, Values::kFloats},
      {"max.f32 %f0, %fa, %fb;", 'f', E { UNUSED; return B(F(a) == F(b) ? (std::signbit(F(a)) ? F(b) : F(a)) : std::fmax(F(a), F(b))); }, Values::kFloats},
      {"max.NaN.f32 %f0, %fa, %fb;", 'f', E { UNUSED; return std::isnan(F(a)) || std::isnan(F(b)) ? 0x7FFFFFFF : B(F(a) == F(b) ? (std::signbit(F(a)) ? F(b) : F(a)) : std::max(F(a), F(b))); }, Values::kFloats},
      {"max.xorsign.abs.f32 %f0, %fa, %fb;", 'f', E { UNUSED; const float m = std::fmax(std::fabs(F(a)), std::fabs(F(b))); return B(std::signbit(F(a)) != std::signbit(F(b)) ? -m : m); }, Values::kSmall},
      {"abs.f32 %f0, %fa;", 'f', E { UNUSED; return B(std::fabs(F(a))); }, Values::kFloats},
      {"neg.f32 %f0, %fa;", 'f', E { UNUSED; return B(-F(a)); }, Values::kFloats},
      {"copysign.f32 %f0, %fa, %fb;", 'f', E { UNUSED; return B(std::copysign(F(b), F(a))); }, Values::kSmall},
      {"rcp.rn.f32 %f0, %fa;", 'f', E { UNUSED; return B(1.0f / F(a)); }, Values::kFloats},
      {"rcp.approx.ftz.f32 %f0, %fa;", 'f', E { UNUSED; return B(ftz(1.0f / ftz(F(a)))); }, Values::kFloats, 1e-6},
      {"sqrt.rn.f32 %f0, %fa;", 'f', E { UNUSED; return B(std::sqrt(F(a))); }, Values::kFloats},
      {"rsqrt.approx.f32 %f0, %fa;", 'f', E { UNUSED; return B(1.0f / std::sqrt(F(a))); }, Values::kFloats, 1e-6},
      {"sin.approx.f32 %f0, %fa;", 'f', E { UNUSED; return B(std::sin(F(a))); }, Values::kSmall, 1e-5},
      {"cos.approx.f32 %f0, %fa;", 'f', E { UNUSED; return B(std::cos(F(a))); }, Values::kSmall, 1e-4},
      {"lg2.approx.f32 %f0, %fa;", 'f', E { UNUSED; return B(std::log2(F(a))); }, Values::kSmall, 1e-5},
      {"ex2.approx.f32 %f0, %fa;", 'f', E { UNUSED; return B(std::exp2(F(a))); }, Values::kSmall, 1e-6},
      {"tanh.approx.f32 %f0, %fa;", 'f', E { UNUSED; return B(std::tanh(F(a))); }, Values::kSmall, 1e-5},
      {"add.f64 %d0, %da, %db;", 'd', E { UNUSED; return BD(D(a) + D(b)); }, Values::kDoubles},
      {"mul.rn.f64 %d0, %da, %db;", 'd', E { UNUSED; return BD(D(a) * D(b)); }, Values::kDoubles},
      {"fma.rn.f64 %d0, %da, %db, %dc;", 'd', E { UNUSED; return BD(std::fma(D(a), D(b), D(c))); }, Values::kDoubles},
      {"div.rn.f64 %d0, %da, %db;", 'd', E { UNUSED; return BD(D(a) / D(b)); }, Values::kDoubles},
      {"sqrt.rn.f64 %d0, %da;", 'd', E { UNUSED; return BD(std::sqrt(D(a))); }, Values::kDoubles},
      {"mov.b64 %d1, {%fa, %fb}; mov.b64 %d2, {%fc, %fa}; add.rn.f32x2 %d0, %d1, %d2;", 'd', E { UNUSED; return u64{B(F(b) + F(a))} << 32 | B(F(a) + F(c)); }, Values::kSmall},
      {"mov.b64 %d1, {%fa, %fb}; fma.rn.f32x2 %d0, %d1, %d1, %d1;", 'd', E { UNUSED; return u64{B(std::fma(F(b), F(b), F(b)))} << 32 | B(std::fma(F(a), F(a), F(a))); }, Values::kSmall},
  });
}

TEST(half_arithmetic) {
  const auto lo = [](u64 v) { return H(v & 0xFFFF); };
  const auto hi = [](u64 v) { return H(v >> 16 & 0xFFFF); };
  run_all_cases({
      {"add.f16 %h0, %ha, %hb;", 'h', [=](u64 a, u64 b, u64) -> u64 { return half(lo(a) + lo(b)); }, Values::kHalves},
      {"sub.f16x2 %r0, %ra, %rb;", 'r', [=](u64 a, u64 b, u64) -> u64 { return pair(half(hi(a) - hi(b)), half(lo(a) - lo(b))); }, Values::kHalves},
      {"mul.f16x2 %r0, %ra, %rb;", 'r', [=](u64 a, u64 b, u64) -> u64 { return pair(half(hi(a) * hi(b)), half(lo(a) * lo(b))); }, Values::kHalves},
      {"fma.rn.f16 %h0, %ha, %hb, %hc;", 'h', [=](u64 a, u64 b, u64 c) -> u64 { return half(lo(a) * lo(b) + lo(c)); }, Values::kHalves},
      {"fma.rn.relu.f16 %h0, %ha, %hb, %hc;", 'h', [=](u64 a, u64 b, u64 c) -> u64 { return half(std::max(lo(a) * lo(b) + lo(c), 0.0)); }, Values::kHalves},
      {"min.f16x2 %r0, %ra, %rb;", 'r', [=](u64 a, u64 b, u64) -> u64 { return pair(hi(a) < hi(b) ? a >> 16 : b >> 16, lo(a) < lo(b) ? a : b); }, Values::kHalves},
      {"abs.f16x2 %r0, %ra;", 'r', [=](u64 a, u64, u64) -> u64 { return a & 0x7FFF7FFF; }, Values::kHalves},
      {"neg.bf16x2 %r0, %ra;", 'r', [=](u64 a, u64, u64) -> u64 { return a ^ 0x80008000; }, Values::kBf16},
      {"add.rn.bf16x2 %r0, %ra, %rb;", 'r', [=](u64 a, u64 b, u64) -> u64 { return pair(bf16(BF(a >> 16) + BF(b >> 16)), bf16(BF(a) + BF(b))); }, Values::kBf16},
      {"mul.bf16 %h0, %ha, %hb;", 'h', [=](u64 a, u64 b, u64) -> u64 { return bf16(BF(a) * BF(b)); }, Values::kBf16},
      {"fma.rn.bf16x2 %r0, %ra, %rb, %rc;", 'r', [=](u64 a, u64 b, u64 c) -> u64 { return pair(bf16(BF(a >> 16) * BF(b >> 16) + BF(c >> 16)), bf16(BF(a) * BF(b) + BF(c))); }, Values::kBf16},
      {"max.bf16 %h0, %ha, %hb;", 'h', [=](u64 a, u64 b, u64) -> u64 { return BF(a) > BF(b) ? a : b; }, Values::kBf16},
      {"tanh.approx.f16 %h0, %ha;", 'h', [=](u64 a, u64, u64) -> u64 { return half(static_cast<float>(std::tanh(lo(a)))); }, Values::kHalves},
      {"ex2.approx.ftz.bf16 %h0, %ha;", 'h', [=](u64 a, u64, u64) -> u64 { return bf16(static_cast<float>(std::exp2(BF(a)))); }, Values::kBf16},
      {"add.f32.bf16 %f0, %ha, %fb;", 'f', [=](u64 a, u64 b, u64) -> u64 { return B(static_cast<float>(BF(a)) + F(b)); }, Values::kBf16},
      {"fma.rn.f32.f16 %f0, %ha, %hb, %fc;", 'f', [=](u64 a, u64 b, u64 c) -> u64 { return B(std::fma(static_cast<float>(lo(a)), static_cast<float>(lo(b)), F(c))); }, Values::kHalves},
  });
}

u64 to_int(double value, double low, double high) { return std::isnan(value) ? 0 : static_cast<u64>(static_cast<s64>(std::clamp(value, low, high))); }

TEST(conversion) {
  run_all_cases({
      {"cvt.u64.u32 %d0, %ra;", 'd', E { UNUSED; return U(a); }},
      {"cvt.s64.s32 %d0, %ra;", 'd', E { UNUSED; return static_cast<u64>(s64{S(a)}); }},
      {"cvt.u32.u64 %r0, %da;", 'r', E { UNUSED; return a; }},
      {"cvt.u32.u16 %r0, %ha;", 'r', E { UNUSED; return a & 0xFFFF; }},
      {"cvt.s32.s16 %r0, %ha;", 'r', E { UNUSED; return static_cast<u64>(S16(a)); }},
      {"cvt.u16.u32 %h0, %ra;", 'h', E { UNUSED; return a; }},
      {"cvt.s32.s8 %r0, %ra;", 'r', E { UNUSED; return static_cast<u64>(static_cast<int8_t>(a)); }},
      {"cvt.u8.u32 %r0, %ra;", 'r', E { UNUSED; return a & 255; }},
      {"cvt.sat.u8.s32 %r0, %ra;", 'r', E { UNUSED; return static_cast<u64>(std::clamp(S(a), 0, 255)); }},
      {"cvt.sat.s16.s64 %h0, %da;", 'h', E { UNUSED; return static_cast<u64>(std::clamp<s64>(static_cast<s64>(a), -32768, 32767)); }},
      {"cvt.sat.s32.u32 %r0, %ra;", 'r', E { UNUSED; return std::min(U(a), 0x7FFFFFFFu); }},
      {"cvt.rn.f32.s32 %f0, %ra;", 'f', E { UNUSED; return B(static_cast<float>(S(a))); }},
      {"cvt.rn.f32.u64 %f0, %da;", 'f', E { UNUSED; return B(static_cast<float>(a)); }},
      {"cvt.rz.f32.u32 %f0, %ra;", 'f', E { UNUSED; float f = static_cast<float>(U(a)); if (static_cast<double>(f) > U(a)) f = std::nextafter(f, 0.0f); return B(f); }},
      {"cvt.rn.f64.s64 %d0, %da;", 'd', E { UNUSED; return BD(static_cast<double>(static_cast<s64>(a))); }},
      {"cvt.rzi.s32.f32 %r0, %fa;", 'r', E { UNUSED; return to_int(std::trunc(F(a)), INT32_MIN, INT32_MAX); }, Values::kFloats},
      {"cvt.rni.s32.f32 %r0, %fa;", 'r', E { UNUSED; return to_int(std::nearbyint(F(a)), INT32_MIN, INT32_MAX); }, Values::kFloats},
      {"cvt.rmi.s32.f32 %r0, %fa;", 'r', E { UNUSED; return to_int(std::floor(F(a)), INT32_MIN, INT32_MAX); }, Values::kFloats},
      {"cvt.rpi.u32.f32 %r0, %fa;", 'r', E { UNUSED; return to_int(std::ceil(F(a)), 0, UINT32_MAX); }, Values::kFloats},
      {"cvt.rzi.s64.f64 %d0, %da;", 'd', E { UNUSED; const double v = std::trunc(D(a)); return std::isnan(v) ? u64{1} << 63 : v >= 0x1p63 ? u64{INT64_MAX} : v < -0x1p63 ? u64{1} << 63 : static_cast<u64>(static_cast<s64>(v)); }, Values::kDoubles},
      {"cvt.rni.f32.f32 %f0, %fa;", 'f', E { UNUSED; return B(std::nearbyint(F(a))); }, Values::kFloats},
      {"cvt.sat.f32.f32 %f0, %fa;", 'f', E { UNUSED; return B(F(a) > 0 ? std::min(F(a), 1.0f) : 0.0f); }, Values::kFloats},
      {"cvt.f64.f32 %d0, %fa;", 'd', E { UNUSED; return BD(F(a)); }, Values::kSmall},
      {"cvt.rn.f32.f64 %f0, %da;", 'f', E { UNUSED; return B(static_cast<float>(D(a))); }, Values::kDoubles},
      {"cvt.rm.f32.f64 %f0, %da;", 'f', E { UNUSED; float f = static_cast<float>(D(a)); if (static_cast<double>(f) > D(a)) f = std::nextafter(f, -INFINITY); return B(f); }, Values::kDoubles},
      {"cvt.rn.f16.f32 %h0, %fa;", 'h', E { UNUSED; return half(F(a)); }, Values::kFloats},
      {"cvt.rz.f16.f32 %h0, %fa;", 'h', E { UNUSED; u16 h = half(F(a)); if (std::fabs(H(h)) > std::fabs(F(a))) --h; return h; }, Values::kSmall},
      {"cvt.f32.f16 %f0, %ha;", 'f', E { UNUSED; return B(static_cast<float>(H(a & 0xFFFF))); }, Values::kHalves},
      {"cvt.rn.bf16.f32 %h0, %fa;", 'h', E { UNUSED; return bf16(F(a)); }, Values::kFloats},
      {"cvt.f32.bf16 %f0, %ha;", 'f', E { UNUSED; return B(static_cast<float>(BF(a))); }, Values::kBf16},
      {"cvt.rn.bf16x2.f32 %r0, %fa, %fb;", 'r', E { UNUSED; return pair(bf16(F(a)), bf16(F(b))); }, Values::kFloats},
      {"cvt.rn.f16x2.f32 %r0, %fa, %fb;", 'r', E { UNUSED; return pair(half(F(a)), half(F(b))); }, Values::kFloats},
      {"cvt.rn.relu.bf16x2.f32 %r0, %fa, %fb;", 'r', E { UNUSED; return pair(bf16(F(a) < 0 ? 0 : F(a)), bf16(F(b) < 0 ? 0 : F(b))); }, Values::kSmall},
      {"cvt.rn.satfinite.e4m3x2.f32 %h0, %fa, %fb;", 'h', E { UNUSED; return e4m3(F(a)) << 8 | e4m3(F(b)); }, Values::kFloats},
      {"cvt.rn.satfinite.e4m3x2.f16x2 %h0, %ra;", 'h', E { UNUSED; return e4m3(H(a >> 16 & 0xFFFF)) << 8 | e4m3(H(a & 0xFFFF)); }, Values::kHalves},
      {"and.b16 %ha, %ha, 0x7b7b; cvt.rn.f16x2.e5m2x2 %r0, %ha;", 'r', E { UNUSED; return pair(static_cast<u16>(a & 0x7B00), static_cast<u16>((a & 0x7B) << 8)); }},
      {"and.b16 %ha, %ha, 0x7b7b; cvt.rn.f16x2.e4m3x2 %r0, %ha;", 'r', E { UNUSED; return pair(half(E4M3(a >> 8 & 0x7B)), half(E4M3(a & 0x7B))); }},
      {"cvt.rna.tf32.f32 %r0, %fa;", 'r', E { UNUSED; return std::isnan(F(a)) ? 0x7FFFFFFF : std::isinf(F(a)) ? B(F(a)) : (U(a) + 0x1000) & ~0x1FFFu; }, Values::kFloats},
      {"cvt.pack.sat.s16.s32 %r0, %ra, %rb;", 'r', E { UNUSED; return pair(static_cast<u16>(std::clamp(S(a), -32768, 32767)), static_cast<u16>(std::clamp(S(b), -32768, 32767))); }},
      {"cvt.pack.sat.u8.s32.b32 %r0, %ra, %rb, %rc;", 'r', E { UNUSED; return U(c) << 16 | static_cast<u32>(std::clamp(S(a), 0, 255)) << 8 | static_cast<u32>(std::clamp(S(b), 0, 255)); }},
  });
}

TEST(moves) {
  run_all_cases({
      {"mov.b32 %r0, %ra;", 'r', E { UNUSED; return a; }},
      {"mov.b64 %d0, {%ra, %rb};", 'd', E { UNUSED; return u64{U(b)} << 32 | U(a); }},
      {"mov.b32 %r0, {%ha, %hb};", 'r', E { UNUSED; return pair(static_cast<u16>(b), static_cast<u16>(a)); }},
      {"mov.b64 {%r1, %r0}, %da;", 'r', E { UNUSED; return a >> 32; }},
      {"mov.b32 {_, %h0}, %ra;", 'h', E { UNUSED; return a >> 16; }},
      {"mov.b64 %d0, {%ha, %hb, %hc, %ha};", 'd', E { UNUSED; return (a & 0xFFFF) | (b & 0xFFFF) << 16 | (c & 0xFFFF) << 32 | (a & 0xFFFF) << 48; }},
      {"mov.b128 %q0, {%da, %db}; mov.b128 %q1, %q0; mov.b128 {_, %d0}, %q1;", 'd', E { UNUSED; return b; }},
      {"mov.pred %p0, %pa;", 'p', E { UNUSED; return a & 1; }},
      {"@%pa mov.u32 %r0, 7; @!%pa mov.u32 %r0, 9;", 'r', E { UNUSED; return a & 1 ? 7 : 9; }},
      {"mov.f32 %f0, 0f3FC00000;", 'f', E { UNUSED; return B(1.5f); }},
      {"mov.f64 %d0, 0d4008000000000000;", 'd', E { UNUSED; return BD(3.0); }},
      {"mov.u32 %r0, %ntid.x;", 'r', E { UNUSED; return 32; }},
      {"mov.u32 %r1, %laneid; mov.u32 %r2, %lanemask_lt; popc.b32 %r2, %r2; sub.u32 %r0, %r1, %r2;", 'r', E { UNUSED; return 0; }},
      {"activemask.b32 %r0;", 'r', E { UNUSED; return ~0u; }},
      {"mov.u64 %d1, %clock64; mov.u64 %d2, %clock64; setp.gt.u64 %p0, %d2, %d1;", 'p', E { UNUSED; return 1; }},
  });
}

TEST(memory_spaces) {
  run_all_cases({
      {".shared .align 16 .b8 s[1024]; mov.u32 %r1, s; mad.lo.u32 %r1, %tid, 16, %r1; st.shared.v2.u64 [%r1], {%da, %db}; ld.shared.v4.u32 {%r2, %r3, %r4, %r0}, [%r1];", 'r', E { UNUSED; return b >> 32; }},
      {".shared .align 8 .b8 s[256]; mov.u32 %r1, s; mad.lo.u32 %r1, %tid, 8, %r1; cvt.u64.u32 %d1, %r1; cvta.shared.u64 %d1, %d1; st.u64 [%d1], %da; ld.shared.u64 %d0, [%r1]; isspacep.shared %p0, %d1; cvta.to.shared.u64 %d2, %d1; ld.b64 %d0, [%d1];", 'd', E { UNUSED; return a; }},
      {".local .align 8 .b8 l[16]; mov.u64 %d1, l; st.local.u64 [%d1+8], %da; cvta.local.u64 %d2, %d1; ld.u64 %d0, [%d2+8];", 'd', E { UNUSED; return a; }},
      {".local .align 8 .b8 l[16]; st.local.b16 [l+2], %ha; ld.local.s16 %r0, [l+2];", 'r', E { UNUSED; return static_cast<u64>(S16(a)); }},
      {".local .align 8 .b8 l[16]; st.local.u32 [l], %ra; ld.local.s8 %r0, [l+1];", 'r', E { UNUSED; return static_cast<u64>(static_cast<int8_t>(a >> 8)); }},
      {".local .align 8 .b8 l[16]; st.local.u32 [l], %ra; ld.local.s8 %d0, [l];", 'd', E { UNUSED; return static_cast<u64>(static_cast<int8_t>(a)); }},
      {".local .align 16 .b8 l[16]; st.local.v2.u64 [l], {%da, %db}; ld.local.b128 %q0, [l]; mov.b128 {_, %d0}, %q0;", 'd', E { UNUSED; return b; }},
      {"ld.param.u64 %d1, [in]; sub.u64 %d0, %d1, %in;", 'd', E { UNUSED; return 0; }},
      {"mov.b64 %d1, in; cvta.param.u64 %d1, %d1; ld.u64 %d2, [%d1]; sub.u64 %d0, %d2, %in;", 'd', E { UNUSED; return 0; }},
      {"mov.u64 %d1, %in; ld.global.nc.L1::no_allocate.L2::128B.u64 %d2, [%d1]; ld.volatile.global.u64 %d3, [%in]; sub.u64 %d0, %d2, %d3;", 'd', E { UNUSED; return 0; }},
  });
}

// Lanes see each other's values: expected values need the index of the lane, which body and expectation both derive from %tid.
struct WarpCase {
  const char* body;
  std::function<u32(const u32* a, int lane)> expect;
};

void run_warp(const WarpCase& c) {
  Launcher launcher;
  launcher.block = {kLanes, 1, 1};
  Buffer in(3 * kLanes * 8), out(kLanes * 32);
  fill(Values::kInts, in.as<u64>());
  u32 a[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) a[lane] = U(in.as<u64>()[3 * lane]);
  launcher.add(in, false, "in");
  launcher.add(out, true, "out");
  const LaunchResult result = launcher.run(text(c.body), Params().u64(in.address()).u64(out.address()));
  if (!result.ok) return fail(__FILE__, __LINE__, std::string(c.body) + ": " + result.error);
  for (int lane = 0; lane < kLanes; ++lane) {
    u32 got;
    std::memcpy(&got, out.data() + 32 * lane + 8, 4);
    const u32 want = c.expect(a, lane);
    if (got != want) {
      char message[200];
      std::snprintf(message, sizeof message, "%s: lane %d gave 0x%x, expected 0x%x", c.body, lane, got, want);
      return fail(__FILE__, __LINE__, message);
    }
  }
}

TEST(warp) {
  const auto sum_if = [](const u32* a, auto keep) {
    u32 mask = 0;
    for (int i = 0; i < 32; ++i) mask |= static_cast<u32>(keep(a[i])) << i;
    return mask;
  };
  const WarpCase cases[] = {
      {"shfl.sync.idx.b32 %r0, %ra, 5, 31, -1;", [](const u32* a, int) { return a[5]; }},
      {"shfl.sync.up.b32 %r0, %ra, 3, 0, -1;", [](const u32* a, int lane) { return lane >= 3 ? a[lane - 3] : a[lane]; }},
      {"shfl.sync.down.b32 %r0|%p1, %ra, 2, 0x1c03, -1; @!%p1 mov.u32 %r0, 77;", [](const u32* a, int lane) { return lane % 4 < 2 ? a[lane + 2] : 77; }},
      {"shfl.sync.bfly.b32 %r0, %ra, 16, 31, -1;", [](const u32* a, int lane) { return a[lane ^ 16]; }},
      {"vote.sync.ballot.b32 %r0, %pa, -1;", [=](const u32* a, int) { return sum_if(a, [](u32 v) { return (v & 1) != 0; }); }},
      {"vote.sync.any.pred %p1, %pa, -1; selp.u32 %r0, 1, 0, %p1;", [](const u32*, int) { return 1u; }},
      {"vote.sync.all.pred %p1, %pa, -1; selp.u32 %r0, 1, 0, %p1;", [](const u32*, int) { return 0u; }},
      {"vote.sync.uni.pred %p1, %p0, -1; selp.u32 %r0, 1, 0, %p1;", [](const u32*, int) { return 1u; }},
      {"match.any.sync.b32 %r0, %ra, -1;", [=](const u32* a, int lane) { return sum_if(a, [&](u32 v) { return v == a[lane]; }); }},
      {"match.all.sync.b32 %r0|%p1, 3, -1;", [](const u32*, int) { return ~0u; }},
      {"redux.sync.add.s32 %r0, %ra, -1;", [](const u32* a, int) { u32 s = 0; for (int i = 0; i < 32; ++i) s += a[i]; return s; }},
      {"redux.sync.min.s32 %r0, %ra, -1;", [](const u32* a, int) { s32 s = S(a[0]); for (int i = 1; i < 32; ++i) s = std::min(s, S(a[i])); return U(static_cast<u64>(s)); }},
      {"redux.sync.xor.b32 %r0, %ra, -1;", [](const u32* a, int) { u32 s = 0; for (int i = 0; i < 32; ++i) s ^= a[i]; return s; }},
      {"elect.sync %r0|%p1, -1; @%p1 add.u32 %r0, %r0, 100;", [](const u32*, int lane) { return lane == 0 ? 100u : 0u; }},
      {"setp.lt.u32 %p1, %tid, 8; @%p1 bra SKIP; elect.sync %r0|%p2, 0xffffff00; SKIP: bar.warp.sync -1;", [](const u32*, int lane) { return lane < 8 ? 0u : 8u; }},
      {".shared .align 16 .b8 s[512]; mov.u32 %r1, s; mad.lo.u32 %r2, %tid, 4, %r1; st.shared.u32 [%r2], %ra; bar.warp.sync -1; and.b32 %r3, %tid, 7; mad.lo.u32 %r3, %r3, 16, %r1; ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r0}, [%r3];",
       [](const u32* a, int lane) { return a[lane]; }},
      {".shared .align 16 .b8 s[512]; mov.u32 %r1, s; mad.lo.u32 %r2, %tid, 4, %r1; st.shared.u32 [%r2], %ra; bar.warp.sync -1; and.b32 %r3, %tid, 7; mad.lo.u32 %r3, %r3, 16, %r1; ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%r0}, [%r3];",
       [](const u32* a, int lane) {
         const auto at = [&](int row, int col) { return static_cast<u16>(a[4 * row + col / 2] >> (16 * (col % 2))); };
         return pair(at(2 * (lane % 4) + 1, lane / 4), at(2 * (lane % 4), lane / 4));
       }},
      {".shared .align 16 .b8 s[512]; mov.u32 %r1, s; and.b32 %r3, %tid, 7; mad.lo.u32 %r3, %r3, 16, %r1; stmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [%r3], {%ra}; bar.warp.sync -1; ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%r0}, [%r3];",
       [](const u32* a, int lane) { return a[lane]; }},
      {"movmatrix.sync.aligned.m8n8.trans.b16 %r1, %ra; movmatrix.sync.aligned.m8n8.trans.b16 %r0, %r1;", [](const u32* a, int lane) { return a[lane]; }},
      {"bar.sync 0; bar.red.popc.u32 %r0, 1, %pa;", [](const u32* a, int) { u32 n = 0; for (int i = 0; i < 32; ++i) n += a[i] & 1; return n; }},
      {"bar.red.or.pred %p1, 1, 32, %pa; selp.u32 %r0, 1, 0, %p1;", [](const u32*, int) { return 1u; }},
      {".shared .align 4 .u32 s; setp.eq.u32 %p1, %tid, 0; @%p1 st.shared.u32 [s], 0; bar.sync 0; atom.shared.add.u32 %r1, [s], 2; bar.sync 0; ld.shared.u32 %r0, [s];", [](const u32*, int) { return 64u; }},
      {".shared .align 4 .u32 s; setp.eq.u32 %p1, %tid, 0; @%p1 st.shared.u32 [s], 5; bar.sync 0; red.shared.max.u32 [s], %tid; bar.sync 0; atom.shared.exch.b32 %r1, [s], 31; ld.shared.u32 %r0, [s];", [](const u32*, int) { return 31u; }},
      {".shared .align 4 .u32 s; setp.eq.u32 %p1, %tid, 0; @%p1 st.shared.u32 [s], 3; bar.sync 0; atom.shared.cas.b32 %r1, [s], 3, 9; bar.sync 0; ld.shared.u32 %r0, [s];", [](const u32*, int) { return 9u; }},
      {".shared .align 4 .u32 s; setp.eq.u32 %p1, %tid, 0; @%p1 st.shared.u32 [s], 0; bar.sync 0; atom.shared.inc.u32 %r1, [s], 4; bar.sync 0; ld.shared.u32 %r0, [s];", [](const u32*, int) { return 2u; }},
      {".shared .align 8 .b8 s[8]; setp.eq.u32 %p1, %tid, 0; @%p1 st.shared.u32 [s], 0; bar.sync 0; mov.b32 %r1, 0x3c003c00; red.shared.add.noftz.f16x2 [s], %r1; bar.sync 0; ld.shared.u32 %r0, [s];", [](const u32*, int) { return 0x50005000u; }},
  };
  for (const WarpCase& c : cases) run_warp(c);
}

// mma.sync against plain sums: every lane gets packed ones and small integers.
TEST(mma_sync) {
  const WarpCase cases[] = {
      // A = lane-independent rows of 1.0 (f16), B = 2.0, C = 3: 16 * 2 + 3.
      {"mov.b32 %r1, 0x3c003c00; mov.b32 %r2, 0x40004000; mov.f32 %f1, 0f40400000; mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f0, %f2, %f3, %f4}, {%r1, %r1, %r1, %r1}, {%r2, %r2}, {%f1, %f1, %f1, %f1}; mov.b32 %r0, %f0;",
       [](const u32*, int) { return B(35.0f); }},
      {"mov.b32 %r1, 0x3f803f80; mov.b32 %r2, 0x40004000; mov.f32 %f1, 0f40400000; mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%f0, %f2, %f3, %f4}, {%r1, %r1}, {%r2}, {%f1, %f1, %f1, %f1}; mov.b32 %r0, %f4;",
       [](const u32*, int) { return B(19.0f); }},
      {"mov.b32 %r1, 0x3f801fff; mov.b32 %r2, 0x40000000; mov.f32 %f1, 0f00000000; mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%f0, %f2, %f3, %f4}, {%r1, %r1, %r1, %r1}, {%r2, %r2}, {%f1, %f1, %f1, %f1}; mov.b32 %r0, %f0;",
       [](const u32*, int) { return B(16.0f); }},
      // Row g of A holds g (bytes), B ones: D = 32 g + 7.
      {"shr.u32 %r1, %tid, 2; mul.lo.u32 %r1, %r1, 0x01010101; mov.b32 %r2, 0x01010101; mov.u32 %r3, 7; mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%r0, %r4, %r5, %r6}, {%r1, %r1, %r1, %r1}, {%r2, %r2}, {%r3, %r3, %r3, %r3};",
       [](const u32*, int lane) { return 32 * static_cast<u32>(lane / 4) + 7; }},
      // Column g of B holds g: D column 2 t.
      {"shr.u32 %r1, %tid, 2; mul.lo.u32 %r1, %r1, 0x01010101; mov.b32 %r2, 0x01010101; mov.u32 %r3, 0; mma.sync.aligned.m16n8k32.row.col.s32.u8.u8.s32 {%r0, %r4, %r5, %r6}, {%r2, %r2, %r2, %r2}, {%r1, %r1}, {%r3, %r3, %r3, %r3};",
       [](const u32*, int lane) { return 32 * static_cast<u32>(2 * (lane % 4)); }},
      {"mov.b32 %r1, 0x38383838; mov.f32 %f1, 0f00000000; mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%f0, %f2, %f3, %f4}, {%r1, %r1, %r1, %r1}, {%r1, %r1}, {%f1, %f1, %f1, %f1}; mov.b32 %r0, %f0;",
       [](const u32*, int) { return B(32.0f); }},
      {"mov.b32 %r1, 0x3c003c00; mov.b32 %r2, 0; mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%r0, %r4}, {%r1, %r1, %r1, %r1}, {%r1, %r1}, {%r2, %r2};",
       [](const u32*, int) { return 0x4C004C00u; }},
      // Columns of A weighted by k against B rows weighted by k: sum of k^2, k = 0..15, with k = 8 b + 2 t + i in register b.
      {"and.b32 %r5, %tid, 3; shl.b32 %r5, %r5, 1; cvt.rn.f32.u32 %f1, %r5; add.f32 %f2, %f1, 0f3F800000; cvt.rn.f16x2.f32 %r1, %f2, %f1; add.f32 %f1, %f1, 0f41000000; add.f32 %f2, %f2, 0f41000000; cvt.rn.f16x2.f32 %r2, %f2, %f1; mov.f32 %f3, 0f00000000;"
       "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f0, %f4, %f5, %f6}, {%r1, %r1, %r2, %r2}, {%r1, %r2}, {%f3, %f3, %f3, %f3}; mov.b32 %r0, %f5;",
       [](const u32*, int) { return B(1240.0f); }},
  };
  for (const WarpCase& c : cases) run_warp(c);
}

}  // namespace

int main(int argc, char** argv) { return run_all(argc, argv); }
