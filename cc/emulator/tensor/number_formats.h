// Number formats of tensor-core operands, wmma and mma.sync included: widths, names and exact
// conversion to float.
// Formats: PTX ISA 5.2.3 (alternate floating-point types), 9.7.16.2.1 (tcgen05 kinds)
// and 9.7.16.10.7 (types of scales).
#pragma once

#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <optional>
#include <string_view>

namespace bwgemm::emulator {

enum class NumberFormat : uint8_t {
  kF16,
  kBF16,
  kTF32,  // stored in 32 bits, the low 13 are ignored by the tensor core
  kF32,
  kE4M3,
  kE5M2,
  kE2M3,
  kE3M2,
  kE2M1,        // of kind f8f6f4: sixteen elements to a 16-byte chunk
  kE2M1Packed,  // of kinds mxf4 and mxf4nvf4: thirty-two
  kUE8M0,       // scales: powers of two, all ones is NaN
  kUE4M3,       // scales: e4m3 whose sign is ignored
  kF64,
  kU4,
  kS4,
  kU8,
  kS8,
  kS32,
};

const char* format_name(NumberFormat format);

// The one of these that PTX calls so.
std::optional<NumberFormat> format_named(std::string_view name,
                                         std::initializer_list<NumberFormat> of);

constexpr bool is_integer(NumberFormat format) { return format >= NumberFormat::kU4; }

// Bits an element takes when it is packed densely.
constexpr int format_bits(NumberFormat format) {
  switch (format) {
    case NumberFormat::kF16:
    case NumberFormat::kBF16:
      return 16;
    case NumberFormat::kTF32:
    case NumberFormat::kF32:
    case NumberFormat::kS32:
      return 32;
    case NumberFormat::kE2M3:
    case NumberFormat::kE3M2:
      return 6;
    case NumberFormat::kE2M1:
    case NumberFormat::kE2M1Packed:
    case NumberFormat::kU4:
    case NumberFormat::kS4:
      return 4;
    case NumberFormat::kF64:
      return 64;
    default:
      return 8;
  }
}

inline float float_from_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

inline uint32_t bits_from_float(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

// Exact value of one element given its bits (right-aligned); integers convert as integers, s32 to
// the nearest float. Not of f64.
float decode(NumberFormat format, uint32_t bits);
// Of s32 and f64, too.
double decode_exactly(NumberFormat format, uint64_t bits);

// Round to nearest even.
uint16_t encode_f16(float value);

constexpr int kMaxChunkElements = 32;

// Decodes the elements of one 16-byte chunk of shared memory into `out` and returns how many there
// are. Four- and six-bit elements of kind f8f6f4 come sixteen to a chunk, packed at its low end
// (PTX ISA 9.7.16.10.3, "unpacked" sub-byte types).
int decode_chunk(NumberFormat format, const uint8_t* chunk, float* out);

// Elements of one 16-byte chunk in the sense of decode_chunk.
constexpr int elements_per_chunk(NumberFormat format) {
  if (format == NumberFormat::kE2M1Packed) return 32;
  return format_bits(format) >= 8 ? 128 / format_bits(format) : 16;
}

}  // namespace bwgemm::emulator
