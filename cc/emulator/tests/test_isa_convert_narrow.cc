// cvt to and from pairs of 4- and 6-bit floats and of scales.
#include "emulator/tests/isa_cases.h"

using namespace bwgemm::emulator;
using namespace bwgemm::emulator::testing;

namespace {

// Magnitudes of e2m1, by the list of the format's numbers.
constexpr double kE2M1[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};

double e2m3(u32 bits) {
  return bits < 8 ? bits / 8.0 : std::ldexp(8 + (bits & 7), static_cast<int>(bits >> 3) - 4);
}
double e3m2(u32 bits) {
  return bits < 4 ? bits / 16.0 : std::ldexp(4 + (bits & 3), static_cast<int>(bits >> 2) - 5);
}

// The nearest of `count` ascending magnitudes, even patterns on a tie; NaN becomes the largest.
template <class Decode>
u32 nearest_of(double value, u32 count, Decode decode) {
  if (std::isnan(value)) return count - 1;
  const double magnitude = std::min(std::fabs(value), double{decode(count - 1)});
  u32 best = 0;
  for (u32 i = 1; i < count; ++i) {
    const double here = std::fabs(decode(i) - magnitude);
    const double there = std::fabs(decode(best) - magnitude);
    if (here < there || (here == there && i % 2 == 0)) best = i;
  }
  return best + (std::signbit(value) ? count : 0);
}
u32 to_e2m1(double v) {
  return nearest_of(v, 8, [](u32 i) { return kE2M1[i]; });
}
u32 to_e2m3(double v) { return nearest_of(v, 32, e2m3); }
u32 to_e3m2(double v) { return nearest_of(v, 32, e3m2); }

double signed_of(u32 bits, u32 count, double (*decode)(u32)) {
  const double magnitude = decode(bits % count);
  return bits & count ? -magnitude : magnitude;
}

// The power of two at or below, or at or above, |value|.
u32 to_ue8m0(double value, bool up, bool saturate) {
  if (std::isnan(value)) return 0xff;
  if (std::isinf(value)) return saturate ? 0xfe : 0xff;
  int exponent = -127;
  while (exponent < 128 && std::ldexp(1.0, exponent + (up ? 0 : 1)) <= std::fabs(value)) {
    if (up && std::ldexp(1.0, exponent) == std::fabs(value)) break;
    ++exponent;
  }
  const u32 code = static_cast<u32>(exponent + 127);
  return saturate ? std::min(code, 0xfeu) : code;
}

TEST(four_bits) {
  for (const Values values : {Values::kFloats, Values::kSmall}) {
    run_all_cases(
        {{".reg .b8 %byte; cvt.rn.satfinite.e2m1x2.f32 %byte, %fa, %fb; mov.b16 %h0, {%byte, 0};",
          'h', [](u64 a, u64 b, u64) -> u64 { return to_e2m1(F(a)) << 4 | to_e2m1(F(b)); },
          values}});
  }
  run_all_cases({
      {".reg .b8 %byte; cvt.rn.satfinite.relu.e2m1x2.f32 %byte, %fa, %fb; mov.b16 %h0, {%byte, 0};",
       'h',
       [](u64 a, u64 b, u64) -> u64 {
         return to_e2m1(F(a) < 0 ? 0 : F(a)) << 4 | to_e2m1(F(b) < 0 ? 0 : F(b));
       },
       Values::kSmall},
      {".reg .b8 %byte; cvt.rn.satfinite.e2m1x2.f16x2 %byte, %ra; mov.b16 %h0, {%byte, 0};", 'h',
       [](u64 a, u64, u64) -> u64 { return to_e2m1(H(a >> 16)) << 4 | to_e2m1(H(a)); },
       Values::kHalves},
      {".reg .b8 %byte; cvt.rn.satfinite.e2m1x2.bf16x2 %byte, %ra; mov.b16 %h0, {%byte, 0};", 'h',
       [](u64 a, u64, u64) -> u64 { return to_e2m1(BF(a >> 16)) << 4 | to_e2m1(BF(a)); },
       Values::kBf16},
      {".reg .b8 %byte, %none; mov.b16 {%byte, %none}, %ha; cvt.rn.f16x2.e2m1x2 %r0, %byte;", 'r',
       [](u64 a, u64, u64) -> u64 {
         const auto decode = [](u32 i) { return kE2M1[i]; };
         return pair(half(signed_of(a >> 4 & 15, 8, decode)), half(signed_of(a & 15, 8, decode)));
       }},
  });
}

TEST(six_bits) {
  run_all_cases({
      {"cvt.rn.satfinite.e2m3x2.f32 %h0, %fa, %fb;", 'h',
       [](u64 a, u64 b, u64) -> u64 { return to_e2m3(F(a)) << 8 | to_e2m3(F(b)); },
       Values::kFloats},
      {"cvt.rn.satfinite.e3m2x2.f32 %h0, %fa, %fb;", 'h',
       [](u64 a, u64 b, u64) -> u64 { return to_e3m2(F(a)) << 8 | to_e3m2(F(b)); }, Values::kSmall},
      {"and.b16 %ha, %ha, 0x3f3f; cvt.rn.f16x2.e2m3x2 %r0, %ha;", 'r',
       [](u64 a, u64, u64) -> u64 {
         return pair(half(signed_of(a >> 8 & 63, 32, e2m3)), half(signed_of(a & 63, 32, e2m3)));
       }},
      {"and.b16 %ha, %ha, 0x3f3f; cvt.rn.f16x2.e3m2x2 %r0, %ha;", 'r',
       [](u64 a, u64, u64) -> u64 {
         return pair(half(signed_of(a >> 8 & 63, 32, e3m2)), half(signed_of(a & 63, 32, e3m2)));
       }},
  });
}

TEST(scales) {
  for (const Values values : {Values::kFloats, Values::kSmall, Values::kInts}) {
    run_all_cases({
        {"cvt.rz.satfinite.ue8m0x2.f32 %h0, %fa, %fb;", 'h',
         [](u64 a, u64 b, u64) -> u64 {
           return to_ue8m0(F(a), false, true) << 8 | to_ue8m0(F(b), false, true);
         },
         values},
        {"cvt.rp.satfinite.ue8m0x2.f32 %h0, %fa, %fb;", 'h',
         [](u64 a, u64 b, u64) -> u64 {
           return to_ue8m0(F(a), true, true) << 8 | to_ue8m0(F(b), true, true);
         },
         values},
        {"cvt.rp.ue8m0x2.f32 %h0, %fa, %fb;", 'h',
         [](u64 a, u64 b, u64) -> u64 {
           return to_ue8m0(F(a), true, false) << 8 | to_ue8m0(F(b), true, false);
         },
         values},
    });
  }
  run_all_cases({
      {"cvt.rp.satfinite.ue8m0x2.bf16x2 %h0, %ra;", 'h',
       [](u64 a, u64, u64) -> u64 {
         return to_ue8m0(BF(a >> 16), true, true) << 8 | to_ue8m0(BF(a), true, true);
       },
       Values::kBf16},
      {"cvt.rn.bf16x2.ue8m0x2 %r0, %ha;", 'r',
       [](u64 a, u64, u64) -> u64 {
         const auto decode = [](u32 e) -> u16 {
           return e == 255 ? 0x7FFF : bf16(std::ldexp(1.0, static_cast<int>(e) - 127));
         };
         return pair(decode(a >> 8 & 255), decode(a & 255));
       }},
  });
}

TEST(refusals) {
  const auto refused = [](const std::string& body, const char* why) {
    Launcher launcher;
    const LaunchResult result = launcher.run(text(body), Params().u64(0).u64(0));
    CHECK(!result.ok);
    CHECK_TEXT(result.error, why);
  };
  refused("cvt.rn.ue8m0x2.f32 %h0, %fa, %fb;", "conversion to ue8m0x2 needs .rz or .rp");
  refused("cvt.rz.satfinite.e2m3x2.f32 %h0, %fa, %fb;", "this conversion needs .rn");
  refused("cvt.rn.e2m3x2.f32 %h0, %fa, %fb;", "conversion to .e2m3x2 needs .satfinite");
  refused("cvt.rz.ue8m0x2.f16x2 %h0, %ra;", "conversion between these types");
  refused("cvt.rn.f16x2.ue8m0x2 %r0, %ha;", "conversion between these types");
}

}  // namespace

int main(int argc, char** argv) { return run_all(argc, argv); }
