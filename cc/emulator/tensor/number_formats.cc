#include "emulator/tensor/number_formats.h"

#include <array>
#include <cmath>
#include <limits>
#include <vector>

namespace bwgemm::emulator {
namespace {

// A small float: sign, `exponent` bits, `mantissa` bits. Which bit patterns are special differs.
struct SmallFloat {
  int exponent;
  int mantissa;
  int bias;
  bool ieee_specials;  // all-ones exponent means infinity or NaN
  bool nan_all_ones;   // only the all-ones pattern is NaN
};

float decode_small(const SmallFloat& f, uint32_t bits) {
  const uint32_t mantissa_mask = (1u << f.mantissa) - 1;
  const uint32_t exponent_mask = (1u << f.exponent) - 1;
  const uint32_t mantissa = bits & mantissa_mask;
  const uint32_t exponent = (bits >> f.mantissa) & exponent_mask;
  const float sign = (bits >> (f.mantissa + f.exponent)) & 1 ? -1.0f : 1.0f;
  if (f.ieee_specials && exponent == exponent_mask) {
    return mantissa ? std::numeric_limits<float>::quiet_NaN()
                    : sign * std::numeric_limits<float>::infinity();
  }
  if (f.nan_all_ones && exponent == exponent_mask && mantissa == mantissa_mask) {
    return std::numeric_limits<float>::quiet_NaN();
  }
  if (exponent == 0) {
    return sign * std::ldexp(static_cast<float>(mantissa), 1 - f.bias - f.mantissa);
  }
  return sign * std::ldexp(static_cast<float>(mantissa | (1u << f.mantissa)),
                           static_cast<int>(exponent) - f.bias - f.mantissa);
}

std::vector<float> small_table(const SmallFloat& f, int bits) {
  std::vector<float> table(size_t{1} << bits);
  for (uint32_t i = 0; i < table.size(); ++i) table[i] = decode_small(f, i);
  return table;
}

std::vector<float> ue8m0_table() {
  std::vector<float> table(256);
  for (int i = 0; i < 255; ++i) table[static_cast<size_t>(i)] = std::ldexp(1.0f, i - 127);
  table[255] = std::numeric_limits<float>::quiet_NaN();
  return table;
}

// One lookup table per format narrower than 32 bits; built on first use.
const float* table_of(NumberFormat format) {
  static const std::vector<float> f16 = small_table({5, 10, 15, true, false}, 16);
  static const std::vector<float> e4m3 = small_table({4, 3, 7, false, true}, 8);
  static const std::vector<float> e5m2 = small_table({5, 2, 15, true, false}, 8);
  static const std::vector<float> e2m3 = small_table({2, 3, 1, false, false}, 6);
  static const std::vector<float> e3m2 = small_table({3, 2, 3, false, false}, 6);
  static const std::vector<float> e2m1 = small_table({2, 1, 1, false, false}, 4);
  static const std::vector<float> ue8m0 = ue8m0_table();
  switch (format) {
    case NumberFormat::kF16:
      return f16.data();
    case NumberFormat::kE4M3:
      return e4m3.data();
    case NumberFormat::kE5M2:
      return e5m2.data();
    case NumberFormat::kE2M3:
      return e2m3.data();
    case NumberFormat::kE3M2:
      return e3m2.data();
    case NumberFormat::kE2M1:
    case NumberFormat::kE2M1Packed:
      return e2m1.data();
    case NumberFormat::kUE8M0:
      return ue8m0.data();
    case NumberFormat::kUE4M3:
      return e4m3.data();
    default:
      return nullptr;
  }
}

}  // namespace

const char* format_name(NumberFormat format) {
  static constexpr std::array<const char*, 18> kNames = {
      "f16",  "bf16",  "tf32",  "f32", "e4m3", "e5m2", "e2m3", "e3m2", "e2m1",
      "e2m1", "ue8m0", "ue4m3", "f64", "u4",   "s4",   "u8",   "s8",   "s32"};
  return kNames[static_cast<size_t>(format)];
}

std::optional<NumberFormat> format_named(std::string_view name,
                                         std::initializer_list<NumberFormat> of) {
  for (const NumberFormat format : of) {
    if (format_name(format) == name) return format;
  }
  return std::nullopt;
}

float decode(NumberFormat format, uint32_t bits) {
  switch (format) {
    case NumberFormat::kBF16:
      return float_from_bits(bits << 16);
    case NumberFormat::kTF32:
      return float_from_bits(bits & 0xffffe000u);
    case NumberFormat::kF32:
      return float_from_bits(bits);
    case NumberFormat::kUE4M3:
      return table_of(format)[bits & 0x7fu];
    case NumberFormat::kU4:
      return static_cast<float>(bits & 0xfu);
    case NumberFormat::kS4:
      return static_cast<float>(static_cast<int32_t>(bits << 28) >> 28);
    case NumberFormat::kU8:
      return static_cast<float>(bits & 0xffu);
    case NumberFormat::kS8:
      return static_cast<float>(static_cast<int8_t>(bits));
    case NumberFormat::kS32:
      return static_cast<float>(static_cast<int32_t>(bits));
    default:
      return table_of(format)[bits & ((1u << format_bits(format)) - 1)];
  }
}

double decode_exactly(NumberFormat format, uint64_t bits) {
  if (format == NumberFormat::kS32) return static_cast<int32_t>(bits);
  if (format != NumberFormat::kF64) return decode(format, static_cast<uint32_t>(bits));
  double value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

uint16_t encode_f16(float value) {
  const uint32_t bits = bits_from_float(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // rounds past 65504
  const int exponent = static_cast<int>(magnitude >> 23) - 127;
  if (exponent < -25) return static_cast<uint16_t>(sign);
  // Significand with its implicit bit; `shift` low bits fall away.
  const uint32_t significand = (magnitude & 0x7fffffu) | 0x800000u;
  const int shift = exponent < -14 ? 13 + (-14 - exponent) : 13;
  uint32_t kept = significand >> shift;
  const uint32_t rest = significand & ((1u << shift) - 1);
  const uint32_t half = 1u << (shift - 1);
  if (rest > half || (rest == half && (kept & 1))) ++kept;
  // For normals `kept` still holds the implicit bit, which adds one to the exponent field.
  const uint32_t exponent_field = exponent < -14 ? 0 : static_cast<uint32_t>(exponent + 14) << 10;
  return static_cast<uint16_t>(sign | (exponent_field + kept));
}

int decode_chunk(NumberFormat format, const uint8_t* chunk, float* out) {
  switch (format) {
    case NumberFormat::kBF16: {
      uint16_t raw[8];
      std::memcpy(raw, chunk, 16);
      for (int i = 0; i < 8; ++i) out[i] = float_from_bits(static_cast<uint32_t>(raw[i]) << 16);
      return 8;
    }
    case NumberFormat::kF16: {
      uint16_t raw[8];
      std::memcpy(raw, chunk, 16);
      const float* table = table_of(format);
      for (int i = 0; i < 8; ++i) out[i] = table[raw[i]];
      return 8;
    }
    case NumberFormat::kTF32:
    case NumberFormat::kF32:
    case NumberFormat::kS32: {
      uint32_t raw[4];
      std::memcpy(raw, chunk, 16);
      for (int i = 0; i < 4; ++i) out[i] = decode(format, raw[i]);
      return 4;
    }
    case NumberFormat::kE2M3:
    case NumberFormat::kE3M2: {
      const float* table = table_of(format);
      for (int i = 0; i < 16; ++i) {
        const int bit = i * 6;
        const uint32_t two = chunk[bit / 8] | (static_cast<uint32_t>(chunk[bit / 8 + 1]) << 8);
        out[i] = table[(two >> (bit % 8)) & 0x3f];
      }
      return 16;
    }
    case NumberFormat::kE2M1Packed: {
      const float* table = table_of(format);
      for (int i = 0; i < 32; ++i) out[i] = table[(chunk[i / 2] >> (i % 2 * 4)) & 0xf];
      return 32;
    }
    case NumberFormat::kE2M1: {
      const float* table = table_of(format);
      for (int i = 0; i < 16; ++i) out[i] = table[(chunk[i / 2] >> (i % 2 * 4)) & 0xf];
      return 16;
    }
    default:
      for (int i = 0; i < 16; ++i) out[i] = decode(format, chunk[i]);
      return 16;
  }
}

}  // namespace bwgemm::emulator
