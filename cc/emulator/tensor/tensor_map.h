// Tensor maps: the 128-byte objects that describe a global tensor to the TMA unit (PTX ISA 5.5.8).
// NVIDIA's encoding is opaque; this one is the emulator's own and keeps every field. Emulated
// cuTensorMapEncodeTiled produces it, TMA instructions and tensormap.replace read and change it.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "emulator/tensor/swizzle.h"

namespace bwgemm::emulator {

constexpr int kTensorMapBytes = 128;
constexpr int kTensorMapAlignment = 64;

// The enumerators carry the values of the CUDA driver's CUtensorMap enums.
enum class TensorMapType : uint8_t {
  kU8 = 0,
  kU16 = 1,
  kU32 = 2,
  kS32 = 3,
  kU64 = 4,
  kS64 = 5,
  kF16 = 6,
  kF32 = 7,
  kF64 = 8,
  kBF16 = 9,
  kF32Ftz = 10,
  kTF32 = 11,
  kTF32Ftz = 12,
  k16U4Align8B = 13,
  k16U4Align16B = 14,
  k16U6Align16B = 15,
};

enum class TensorMapInterleave : uint8_t { kNone = 0, k16B = 1, k32B = 2 };

enum class TensorMapSwizzle : uint8_t {
  kNone = 0,
  k32B = 1,
  k64B = 2,
  k128B = 3,
  k128BAtom32B = 4,
  k128BAtom32BFlip8B = 5,
  k128BAtom64B = 6,
};

enum class TensorMapL2 : uint8_t { kNone = 0, k64B = 1, k128B = 2, k256B = 3 };

enum class TensorMapFill : uint8_t { kZero = 0, kNan = 1 };

struct TensorMap {
  TensorMapType type = TensorMapType::kU8;
  int rank = 0;
  uint64_t address = 0;
  std::array<uint64_t, 5> dims{};             // elements, innermost first
  std::array<uint64_t, 5> strides{};          // bytes; strides[0] is the element size
  std::array<uint32_t, 5> box{};              // elements
  std::array<uint32_t, 5> element_strides{};  // traversal strides, elements
  TensorMapInterleave interleave = TensorMapInterleave::kNone;
  TensorMapSwizzle swizzle = TensorMapSwizzle::kNone;
  TensorMapL2 l2 = TensorMapL2::kNone;
  TensorMapFill fill = TensorMapFill::kZero;
};

// Bits of one element in global memory.
int element_bits(TensorMapType type);
// Sixteen elements of 4 or 6 bits, packed in global memory, get 16 bytes of shared memory each,
// whose upper bytes stay as they were.
bool is_padded(TensorMapType type);
constexpr uint32_t kPaddedElements = 16;
// Bytes of shared memory from the first element of a box's row to behind the last one.
uint32_t shared_row_bytes(const TensorMap& map);
bool is_floating(TensorMapType type);
const char* type_name(TensorMapType type);

// Empty where cuTensorMapEncodeTiled accepts these fields, else what it would refuse.
std::string validate(const TensorMap& map);

// Swizzle of a validated map as address pattern.
Swizzle swizzle_of(const TensorMap& map);

void encode(const TensorMap& map, uint8_t out[kTensorMapBytes]);

// False where the bytes were never written by `encode` (a pointer to something else, or poison).
bool decode(const uint8_t in[kTensorMapBytes], TensorMap* out);

}  // namespace bwgemm::emulator
