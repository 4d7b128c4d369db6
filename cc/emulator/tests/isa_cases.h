// One-instruction checks: a PTX body runs on 32 lanes of edge cases and random values, and every
// lane is compared with the value that the test computes.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "emulator/tests/tensor_kernel.h"

namespace bwgemm::emulator::testing {

using u8 = uint8_t;
using u16 = uint16_t;
using u32 = uint32_t;
using u64 = uint64_t;
using s16 = int16_t;
using s32 = int32_t;
using s64 = int64_t;

inline float F(u64 bits) {
  const u32 low = static_cast<u32>(bits);
  float value;
  std::memcpy(&value, &low, 4);
  return value;
}
inline u32 B(float value) {
  u32 bits;
  std::memcpy(&bits, &value, 4);
  return std::isnan(value) ? 0x7FFFFFFF : bits;
}
inline double D(u64 bits) {
  double value;
  std::memcpy(&value, &bits, 8);
  return value;
}
inline u64 BD(double value) {
  u64 bits;
  std::memcpy(&bits, &value, 8);
  return bits;
}
// Half precision through double, straight from the definition.
inline double H(u64 bits) {
  const int sign = bits >> 15 & 1, exponent = bits >> 10 & 31, mantissa = bits & 1023;
  const double magnitude = exponent == 31  ? (mantissa != 0 ? NAN : INFINITY)
                           : exponent == 0 ? std::ldexp(mantissa, -24)
                                           : std::ldexp(1024 + mantissa, exponent - 25);
  return sign ? -magnitude : magnitude;
}
// Nearest even by trying both neighbours: the two candidates around the value among all 65536.
inline u16 nearest(double value, double (*decode)(u64), u16 infinity) {
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
inline u16 half(double value) { return nearest(value, H, 0x7C00); }
inline double BF(u64 bits) { return F((bits & 0xFFFF) << 16); }
inline u16 bf16(double value) { return nearest(value, BF, 0x7F80); }
inline double E4M3(u64 bits) {
  const int exponent = bits >> 3 & 15, mantissa = bits & 7;
  if ((bits & 0x7F) == 0x7F) return NAN;
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return bits & 0x80 ? -magnitude : magnitude;
}
inline u32 e4m3(double value) {
  if (std::isnan(value)) return 0x7F;
  const u32 sign = std::signbit(value) ? 0x80 : 0;
  u32 best = 0;
  for (u32 i = 0; i <= 0x7E; ++i) {
    const double here = std::fabs(E4M3(i) - std::fabs(value)),
                 there = std::fabs(E4M3(best) - std::fabs(value));
    if (here < there || (here == there && (i & 1) == 0)) best = i;
  }
  return sign | best;
}
inline u32 pair(u16 high, u16 low) { return static_cast<u32>(high) << 16 | low; }

constexpr int kLanes = 32;
enum class Values { kInts, kFloats, kHalves, kDoubles, kSmall, kBf16 };

struct Case {
  const char* body;
  char out;  // d, r, h: register of 64, 32, 16 bits; p: predicate
  std::function<u64(u64, u64, u64)> expect;
  Values values = Values::kInts;
  double tolerance = 0;  // relative, for approximate functions (f32)
};

// Inputs a, b, c as %da %db %dc (64 bits), %ra .. (32), %fa .. (f32), %ha .. (16), %pa .. (bit 0).
// Results in %d0, %r0, %f0, %h0, %p0.
inline std::string text(const std::string& body) {
  return ".version 9.2\n.target sm_100a\n.address_size 64\n.visible .entry k(.param .u64 in, "
         ".param .u64 out) {\n"
         ".reg .b64 %da, %db, %dc, %d<8>, %in, %out;\n.reg .b32 %ra, %rb, %rc, %r<8>, "
         "%thread;\n.reg "
         ".f32 %fa, %fb, %fc, %f<8>;\n"
         ".reg .b16 %ha, %hb, %hc, %h<8>;\n.reg .pred %pa, %pb, %pc, %p<8>;\n.reg .b64 "
         "%address;\n.reg .b128 %q<4>;\n"
         "ld.param.u64 %in, [in];\nld.param.u64 %out, [out];\nmov.u32 %thread, "
         "%tid.x;\nmul.wide.u32 "
         "%address, %thread, 24;\n"
         "add.s64 %address, %address, %in;\nld.global.u64 %da, [%address];\nld.global.u64 %db, "
         "[%address+8];\nld.global.u64 %dc, [%address+16];\n"
         "cvt.u32.u64 %ra, %da;\ncvt.u32.u64 %rb, %db;\ncvt.u32.u64 %rc, %dc;\nmov.b32 %fa, "
         "%ra;\nmov.b32 %fb, %rb;\nmov.b32 %fc, %rc;\n"
         "cvt.u16.u64 %ha, %da;\ncvt.u16.u64 %hb, %db;\ncvt.u16.u64 %hc, %dc;\n"
         "and.b32 %r7, %ra, 1;\nsetp.ne.b32 %pa, %r7, 0;\nand.b32 %r7, %rb, 1;\nsetp.ne.b32 %pb, "
         "%r7, 0;\nand.b32 %r7, %rc, 1;\nsetp.ne.b32 %pc, %r7, 0;\n"
         "mov.u64 %d0, 0;\nmov.u32 %r0, 0;\nmov.u16 %h0, 0;\nmov.b32 %f0, %r0;\nsetp.ne.u32 %p0, "
         "0, 0;\n" +
         body +
         "\nmul.wide.u32 %address, %thread, 32;\nadd.s64 %address, %address, %out;\nst.global.u64 "
         "[%address], %d0;\nst.global.u32 [%address+8], %r0;\n"
         "st.global.u16 [%address+16], %h0;\nselp.u32 %r7, 1, 0, %p0;\nst.global.u32 "
         "[%address+24], %r7;\nst.global.f32 [%address+12], %f0;\nret;\n}\n";
}

inline void fill(Values values, u64* in) {
  std::mt19937_64 random(7);
  static const u64 kEdges[] = {0,
                               1,
                               2,
                               31,
                               32,
                               33,
                               0x7F,
                               0x80,
                               0x7FFF,
                               0x8000,
                               0x7FFFFFFF,
                               0x80000000,
                               0xFFFFFFFF,
                               0x7FFFFFFFFFFFFFFF,
                               0x8000000000000000,
                               ~u64{0}};
  static const float kFloats[] = {0.0f, -0.0f, 1.0f,   -1.0f,   0.5f,  1.5f,  2.5f,     -2.5f,
                                  3.7f, -3.7f, 1e-40f, -1e-40f, 3e38f, 1e10f, INFINITY, NAN};
  for (int i = 0; i < 3 * kLanes; ++i) {
    u64 value = random();
    const bool edge = random() % 2 == 0;
    switch (values) {
      case Values::kInts:
        if (edge) value = kEdges[random() % 16];
        break;
      case Values::kFloats:
        value = B(edge ? kFloats[random() % 16]
                       : std::ldexp(static_cast<float>(static_cast<s32>(random())), -28));
        break;
      case Values::kHalves:
        value = pair(static_cast<u16>(random() & 0xFBFF), static_cast<u16>(random() & 0xFBFF));
        break;  // finite
      case Values::kBf16:
        value =
            pair(bf16(static_cast<s16>(random()) / 64.0), bf16(static_cast<s16>(random()) / 64.0));
        break;
      case Values::kDoubles:
        value = BD(edge ? kFloats[random() % 16]
                        : std::ldexp(static_cast<double>(static_cast<s64>(random())), -58));
        break;
      case Values::kSmall:
        value = B(std::ldexp(static_cast<float>(static_cast<s32>(random())), -29));
        break;  // |x| < 4
    }
    in[i] = value;
  }
}

// With BWGEMM_ISA_RECORD=FILE each case is appended to FILE as a line of JSON, for
// tools/compare_isa_gpu.py, which runs the same texts on a GPU.
inline void record(const std::string& body, char kind, double tolerance, Buffer& in, Buffer& out) {
  const char* path = std::getenv("BWGEMM_ISA_RECORD");
  if (path == nullptr) return;
  const auto hex = [](Buffer& buffer) {
    std::string digits;
    for (size_t i = 0; i < buffer.size(); ++i) {
      digits += "0123456789abcdef"[buffer.data()[i] >> 4];
      digits += "0123456789abcdef"[buffer.data()[i] & 15];
    }
    return digits;
  };
  const auto quoted = [](const std::string& text) {
    std::string out = "\"";
    for (const char c : text) out += c == '\n' ? std::string("\\n") : std::string(1, c);
    return out + "\"";
  };
  if (std::FILE* file = std::fopen(path, "a")) {
    std::fprintf(file,
                 "{\"body\": %s, \"kind\": \"%c\", \"tolerance\": %g, \"ptx\": %s, \"in\": \"%s\", "
                 "\"out\": \"%s\"}\n",
                 quoted(body).c_str(), kind, tolerance, quoted(text(body)).c_str(), hex(in).c_str(),
                 hex(out).c_str());
    std::fclose(file);
  }
}

inline void run(const Case& c) {
  Launcher launcher;
  launcher.block = {kLanes, 1, 1};
  Buffer in(3 * kLanes * 8), out(kLanes * 32);
  fill(c.values, in.as<u64>());
  launcher.add(in, false, "in");
  launcher.add(out, true, "out");
  const LaunchResult result =
      launcher.run(text(c.body), Params().u64(in.address()).u64(out.address()));
  if (!result.ok) {
    fail(__FILE__, __LINE__, std::string(c.body) + ": " + result.error);
    return;
  }
  record(c.body, c.out, c.tolerance, in, out);
  for (int lane = 0; lane < kLanes; ++lane) {
    const u64* v = in.as<u64>() + 3 * lane;
    u64 got = 0;
    const uint8_t* at = out.data() + 32 * lane;
    switch (c.out) {
      case 'd':
        std::memcpy(&got, at, 8);
        break;
      case 'r':
        std::memcpy(&got, at + 8, 4);
        break;
      case 'f':
        std::memcpy(&got, at + 12, 4);
        break;
      case 'h':
        std::memcpy(&got, at + 16, 2);
        break;
      default:
        std::memcpy(&got, at + 24, 4);
        break;
    }
    u64 want = c.expect(v[0], v[1], v[2]);
    if (c.out == 'r' || c.out == 'f') want = static_cast<u32>(want);
    if (c.out == 'h') want = static_cast<u16>(want);
    bool same = got == want;
    if (c.out == 'f' && !same) {
      same = std::isnan(F(got)) && std::isnan(F(want));
      if (c.tolerance > 0)
        same = same || F(got) == F(want) ||
               std::fabs(F(got) - F(want)) <= c.tolerance * std::fabs(F(want));
    }
    // Approximate functions of 16-bit types may be off by one in the last place.
    if (c.out == 'h' && c.tolerance > 0) same = got + 1 >= want && got <= want + 1;
    if (c.out == 'd' && c.values == Values::kDoubles && !same)
      same = std::isnan(D(got)) && std::isnan(D(want));
    if (!same) {
      char message[256];
      std::snprintf(message, sizeof message,
                    "%s: lane %d (0x%llx, 0x%llx, 0x%llx) gave 0x%llx, expected 0x%llx", c.body,
                    lane, static_cast<unsigned long long>(v[0]),
                    static_cast<unsigned long long>(v[1]), static_cast<unsigned long long>(v[2]),
                    static_cast<unsigned long long>(got), static_cast<unsigned long long>(want));
      fail(__FILE__, __LINE__, message);
      return;
    }
  }
}

inline void run_all_cases(const std::vector<Case>& cases) {
  for (const Case& c : cases) run(c);
}

inline s32 S(u64 v) { return static_cast<s32>(v); }
inline u32 U(u64 v) { return static_cast<u32>(v); }
inline s16 S16(u64 v) { return static_cast<s16>(v); }
inline __int128 I128(s64 v) { return v; }
inline unsigned __int128 U128(u64 v) { return v; }

}  // namespace bwgemm::emulator::testing
