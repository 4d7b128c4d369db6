#include "emulator/tensor/tensor_map.h"

#include <cstring>

namespace bwgemm::emulator {
namespace {

constexpr uint64_t kMagic = 0x32304d4154455742;  // says that the bytes are ours, and which version

// Byte layout of the encoding; sizes are natural, so there is no padding to leak.
//
// Host code may change a map that it has encoded: CuTe of CUTLASS 4.7 clears bit 21 of the second
// 64-bit word where a tensor is small. Nothing lies in that word's bits 16 to 31.
struct Encoded {
  uint64_t magic;
  uint8_t type;
  uint8_t rank;
  uint16_t untouched;
  uint8_t interleave;
  uint8_t swizzle;
  uint8_t l2;
  uint8_t fill;
  uint64_t address;
  uint64_t strides[4];  // bytes, dimensions 1 to 4
  uint32_t dims[5];     // extent minus one: 2^32 is allowed
  uint16_t box[5];
  uint8_t element_strides[5];
  uint8_t reserved[37];
};
static_assert(sizeof(Encoded) == kTensorMapBytes, "a tensor map has 128 bytes");

std::string at(const char* field, int i) {
  return std::string(field) + "[" + std::to_string(i) + "]";
}

std::string was(uint64_t value) { return ", got " + std::to_string(value); }

}  // namespace

int element_bits(TensorMapType type) {
  static constexpr int kBits[16] = {8, 16, 32, 32, 64, 64, 16, 32, 64, 16, 32, 32, 32, 4, 4, 6};
  return kBits[static_cast<int>(type)];
}

bool is_padded(TensorMapType type) {
  return type == TensorMapType::k16U4Align16B || type == TensorMapType::k16U6Align16B;
}

uint32_t shared_row_bytes(const TensorMap& map) {
  if (is_padded(map.type)) return map.box[0] / kPaddedElements * 16;
  return map.box[0] * static_cast<uint32_t>(element_bits(map.type)) / 8;
}

bool is_floating(TensorMapType type) {
  const int t = static_cast<int>(type);
  return t >= static_cast<int>(TensorMapType::kF16) &&
         t <= static_cast<int>(TensorMapType::kTF32Ftz);
}

const char* type_name(TensorMapType type) {
  static constexpr const char* kNames[16] = {
      "u8",       "u16",          "u32",           "s32",          "u64",     "s64",
      "f16",      "f32",          "f64",           "bf16",         "f32.ftz", "tf32",
      "tf32.ftz", "16u4_align8b", "16u4_align16b", "16u6_align16b"};
  return kNames[static_cast<int>(type)];
}

std::string validate(const TensorMap& map) {
  if (static_cast<int>(map.type) > 15) return "tensorDataType is not a known type";
  if (map.rank < 1 || map.rank > 5) {
    return "tensorRank must be 1 to 5, got " + std::to_string(map.rank);
  }
  if (static_cast<int>(map.interleave) > 2) return "interleave is not a known mode";
  if (static_cast<int>(map.swizzle) > 6) return "swizzle is not a known mode";
  if (static_cast<int>(map.l2) > 3) return "l2Promotion is not a known mode";
  if (static_cast<int>(map.fill) > 1) return "oobFill is not a known mode";
  if (map.interleave != TensorMapInterleave::kNone) {
    return "interleaved layouts are not implemented";
  }
  if (map.swizzle == TensorMapSwizzle::k128BAtom32BFlip8B) {
    return "swizzle 128B_ATOM_32B_FLIP_8B is not implemented";
  }
  const bool padded = is_padded(map.type);
  const uint64_t align = padded ? 32 : 16;
  const std::string multiple = " must be a multiple of " + std::to_string(align);
  if (map.address % align != 0) return "globalAddress" + multiple + was(map.address);
  const int bits = element_bits(map.type);
  for (int i = 0; i < map.rank; ++i) {
    if (map.dims[i] == 0 || map.dims[i] > (uint64_t{1} << 32)) {
      return at("globalDim", i) + " must be 1 to 2^32" + was(map.dims[i]);
    }
    if (map.box[i] == 0 || map.box[i] > 256) {
      return at("boxDim", i) + " must be 1 to 256" + was(map.box[i]);
    }
    if (map.element_strides[i] == 0 || map.element_strides[i] > 8) {
      return at("elementStrides", i) + " must be 1 to 8" + was(map.element_strides[i]);
    }
    if (i > 0 && (map.strides[i] % align != 0 || map.strides[i] >= (uint64_t{1} << 40))) {
      return at("globalStrides", i - 1) + multiple + " below 2^40" + was(map.strides[i]);
    }
  }
  if (padded) {
    if (map.dims[0] % 128 != 0 || map.box[0] != 128) {
      return std::string(type_name(map.type)) +
             " needs a globalDim[0] that is a multiple of 128 and a boxDim[0] of 128" +
             was(map.dims[0]) + " and " + std::to_string(map.box[0]);
    }
    const bool atom_64 = map.swizzle == TensorMapSwizzle::k128BAtom64B;
    if (map.swizzle == TensorMapSwizzle::k32B || map.swizzle == TensorMapSwizzle::k64B ||
        (atom_64 && map.type == TensorMapType::k16U4Align16B)) {
      return std::string(type_name(map.type)) + " does not have this swizzle";
    }
  } else if (bits < 8 && map.dims[0] % 2 != 0) {
    return "globalDim[0] must be even for packed 4-bit elements" + was(map.dims[0]);
  }
  const uint64_t inner_bits = static_cast<uint64_t>(map.box[0]) * bits;
  if (inner_bits % 128 != 0) {
    return "boxDim[0] must cover a multiple of 16 bytes, got " + std::to_string(inner_bits) +
           " bits";
  }
  const uint32_t row = shared_row_bytes(map);
  if (map.swizzle != TensorMapSwizzle::kNone && row > swizzle_span(swizzle_of(map))) {
    return "boxDim[0] covers " + std::to_string(row) + " bytes, more than the " +
           std::to_string(swizzle_span(swizzle_of(map))) + " bytes of the swizzle";
  }
  if (map.fill == TensorMapFill::kNan && !is_floating(map.type)) {
    return "oobFill NaN needs a floating-point element type";
  }
  return "";
}

Swizzle swizzle_of(const TensorMap& map) {
  static constexpr Swizzle kPatterns[7] = {
      Swizzle::kNone,        Swizzle::k32B, Swizzle::k64B, Swizzle::k128B, Swizzle::k128BAtom32B,
      Swizzle::k128BAtom32B,  // flipping is refused by `validate`
      Swizzle::k128BAtom64B};
  return kPatterns[static_cast<int>(map.swizzle)];
}

void encode(const TensorMap& map, uint8_t out[kTensorMapBytes]) {
  Encoded e{};
  e.magic = kMagic;
  e.address = map.address;
  for (int i = 0; i < 5; ++i) {
    if (i > 0) e.strides[i - 1] = map.strides[i];
    e.dims[i] = static_cast<uint32_t>(map.dims[i] - 1);
    e.box[i] = static_cast<uint16_t>(map.box[i]);
    e.element_strides[i] = static_cast<uint8_t>(map.element_strides[i]);
  }
  e.type = static_cast<uint8_t>(map.type);
  e.rank = static_cast<uint8_t>(map.rank);
  e.interleave = static_cast<uint8_t>(map.interleave);
  e.swizzle = static_cast<uint8_t>(map.swizzle);
  e.l2 = static_cast<uint8_t>(map.l2);
  e.fill = static_cast<uint8_t>(map.fill);
  std::memcpy(out, &e, sizeof(e));
}

bool decode(const uint8_t in[kTensorMapBytes], TensorMap* out) {
  Encoded e;
  std::memcpy(&e, in, sizeof(e));
  if (e.magic != kMagic) return false;
  // Enumerators are range-checked by `validate`, ahead of any table look-up, except the type.
  if (e.type > 15 || e.rank < 1 || e.rank > 5 || e.swizzle > 6) return false;
  out->type = static_cast<TensorMapType>(e.type);
  out->rank = e.rank;
  out->address = e.address;
  out->strides[0] = static_cast<uint64_t>(element_bits(out->type)) / 8;
  for (int i = 0; i < 5; ++i) {
    if (i > 0) out->strides[i] = e.strides[i - 1];
    out->dims[i] = static_cast<uint64_t>(e.dims[i]) + 1;
    out->box[i] = e.box[i];
    out->element_strides[i] = e.element_strides[i];
  }
  out->interleave = static_cast<TensorMapInterleave>(e.interleave);
  out->swizzle = static_cast<TensorMapSwizzle>(e.swizzle);
  out->l2 = static_cast<TensorMapL2>(e.l2);
  out->fill = static_cast<TensorMapFill>(e.fill);
  return true;
}

}  // namespace bwgemm::emulator
