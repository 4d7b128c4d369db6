// Conversions between float and the narrow formats of ordinary instructions: f16, bf16, tf32, e4m3,
// e5m2, e2m3, e3m2, e2m1 (PTX ISA 5.2.3).
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace bwgemm::emulator {

enum class Rounding : uint8_t { kNearestEven, kZero, kDown, kUp, kNearestAway };

inline float f32_of(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}
inline uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}
inline double f64_of(uint64_t bits) {
  double value;
  std::memcpy(&value, &bits, 8);
  return value;
}
inline uint64_t bits_of(double value) {
  uint64_t bits;
  std::memcpy(&bits, &value, 8);
  return bits;
}

// A binary floating-point format with `exponent` and `mantissa` bits. finite_only: no infinities,
// NaN is all ones (e4m3). numbers_only: no NaN either, which becomes the largest number.
struct FloatFormat {
  int exponent, mantissa;
  bool finite_only;
  bool numbers_only = false;
  int bias() const { return (1 << (exponent - 1)) - 1; }
  uint32_t sign_bit() const { return 1u << (exponent + mantissa); }
  uint32_t nan() const { return (1u << (exponent + mantissa)) - 1; }
  uint32_t infinity() const { return ((1u << exponent) - 1) << mantissa; }
  uint32_t largest() const {
    return numbers_only ? nan() : finite_only ? nan() - 1 : infinity() - 1;
  }
};
constexpr FloatFormat kF16Format{5, 10, false};
constexpr FloatFormat kBf16Format{8, 7, false};
constexpr FloatFormat kE4m3Format{4, 3, true};
constexpr FloatFormat kE5m2Format{5, 2, false};
constexpr FloatFormat kE2m3Format{2, 3, true, true};
constexpr FloatFormat kE3m2Format{3, 2, true, true};
constexpr FloatFormat kE2m1Format{2, 1, true, true};

// Rounds once, from the exact double. Overflow: infinity or the largest number as the mode says;
// with `saturate`, or in a format without infinities, the largest number (for e4m3 without
// saturate: NaN).
inline uint32_t encode_float(double value, FloatFormat f, Rounding mode, bool saturate = false) {
  const uint32_t sign = std::signbit(value) ? f.sign_bit() : 0;
  if (std::isnan(value)) return f.nan();
  const double magnitude = std::fabs(value);
  if (std::isinf(value))
    return sign | (saturate ? f.largest() : f.finite_only ? f.nan() : f.infinity());
  if (magnitude == 0) return sign;
  int exponent;
  std::frexp(magnitude, &exponent);                // magnitude = m * 2^exponent, m in [0.5, 1)
  int unit = exponent - 1 - f.mantissa;            // weight of the last mantissa bit
  const int smallest = 1 - f.bias() - f.mantissa;  // of subnormals
  if (unit < smallest) unit = smallest;
  const double scaled = std::ldexp(magnitude, -unit);  // exact: a power of two
  double integer = std::floor(scaled);
  const double rest = scaled - integer;
  bool up = false;
  switch (mode) {
    case Rounding::kNearestEven:
      up = rest > 0.5 || (rest == 0.5 && std::fmod(integer, 2.0) != 0);
      break;
    case Rounding::kNearestAway:
      up = rest >= 0.5;
      break;
    case Rounding::kZero:
      break;
    case Rounding::kDown:
      up = rest > 0 && sign != 0;
      break;
    case Rounding::kUp:
      up = rest > 0 && sign == 0;
      break;
  }
  if (up) integer += 1;
  // The bit patterns of positive numbers are ordered and consecutive, also from subnormals to
  // normals.
  const double hidden = std::ldexp(1.0, f.mantissa);
  const double pattern = integer + (unit - smallest) * hidden;
  if (pattern > f.largest()) {
    if (saturate) return sign | f.largest();
    if (f.finite_only) return sign | f.nan();
    const bool toward_zero = mode == Rounding::kZero || (mode == Rounding::kDown && sign == 0) ||
                             (mode == Rounding::kUp && sign != 0);
    return sign | (toward_zero ? f.largest() : f.infinity());
  }
  return sign | static_cast<uint32_t>(pattern);
}

inline float decode_float(uint32_t bits, FloatFormat f) {
  const bool negative = (bits & f.sign_bit()) != 0;
  const uint32_t magnitude = bits & (f.sign_bit() - 1);
  float value;
  if (!f.numbers_only && (f.finite_only ? magnitude == f.nan() : magnitude > f.infinity())) {
    return NAN;
  }
  if (!f.finite_only && magnitude == f.infinity()) {
    value = INFINITY;
  } else {
    const int exponent = static_cast<int>(magnitude >> f.mantissa);
    const int mantissa = static_cast<int>(magnitude & ((1u << f.mantissa) - 1));
    value = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), 1 - f.bias() - f.mantissa)
                          : std::ldexp(static_cast<float>(mantissa + (1 << f.mantissa)),
                                       exponent - f.bias() - f.mantissa);
  }
  return negative ? -value : value;
}

// The frequent ones without the general machinery.
inline float f16_to_f32(uint32_t h) {
  const uint32_t sign = (h & 0x8000u) << 16;
  const uint32_t rest = h & 0x7FFFu;
  if (rest >= 0x7C00u) return f32_of(sign | 0x7F800000u | (rest & 0x3FFu) << 13);
  if (rest < 0x400u) {
    const float value = static_cast<float>(rest) * 0x1p-24f;
    return sign != 0 ? -value : value;
  }
  return f32_of(sign | ((rest << 13) + 0x38000000u));
}
inline float bf16_to_f32(uint32_t b) { return f32_of(b << 16); }
inline uint32_t f32_to_bf16_rn(float value) {
  const uint32_t bits = bits_of(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return 0x7FFF;
  return (bits + 0x7FFFu + (bits >> 16 & 1)) >> 16;
}
inline uint32_t f32_to_f16_rn(float value) {
  const uint32_t bits = bits_of(value);
  const uint32_t sign = bits >> 16 & 0x8000u;
  const uint32_t rest = bits & 0x7FFFFFFFu;
  if (rest > 0x7F800000u) return 0x7FFF;
  if (rest >= 0x477FF000u) return sign | 0x7C00u;  // rounds to 65536 or more
  if (rest < 0x38800000u) {  // subnormal: adding 0.5 leaves the rounded mantissa in the low bits
    return sign | (bits_of(f32_of(rest) + 0.5f) - 0x3F000000u);
  }
  return sign | ((rest - 0x38000000u + 0xFFFu + (rest >> 13 & 1)) >> 13);
}
// tf32 keeps 10 mantissa bits of a float.
inline uint32_t f32_to_tf32(float value, Rounding mode) {
  const uint32_t bits = bits_of(value);
  const uint32_t rest = bits & 0x7FFFFFFFu;
  if (rest > 0x7F800000u) return 0x7FFFE000u;
  if (rest == 0x7F800000u) return bits;
  uint32_t rounded = bits;
  if (mode == Rounding::kNearestEven) rounded = bits + 0xFFFu + (bits >> 13 & 1);
  if (mode == Rounding::kNearestAway) rounded = bits + 0x1000u;
  return rounded & ~0x1FFFu;
}

}  // namespace bwgemm::emulator
