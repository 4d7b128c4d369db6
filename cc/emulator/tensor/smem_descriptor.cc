#include "emulator/tensor/smem_descriptor.h"

namespace bwgemm::emulator {
namespace {

// Fields are kept without their four low bits, out of an 18-bit address space.
uint32_t field_bytes(uint64_t bits, int position) {
  return static_cast<uint32_t>((bits >> position) & 0x3fff) << 4;
}

SmemDescriptor common_fields(uint64_t bits) {
  SmemDescriptor d;
  d.start = field_bytes(bits, 0);
  d.leading_offset = field_bytes(bits, 16);
  d.stride_offset = field_bytes(bits, 32);
  d.base_offset = static_cast<uint32_t>((bits >> 49) & 7);
  return d;
}

}  // namespace

bool decode_wgmma_descriptor(uint64_t bits, SmemDescriptor* out, std::string* error) {
  (void)error;  // every value of the two-bit layout field is defined
  static constexpr Swizzle kLayouts[4] = {Swizzle::kNone, Swizzle::k128B, Swizzle::k64B,
                                          Swizzle::k32B};
  *out = common_fields(bits);
  out->swizzle = kLayouts[bits >> 62];
  return true;
}

bool decode_tcgen05_descriptor(uint64_t bits, SmemDescriptor* out, std::string* error) {
  *out = common_fields(bits);
  out->leading_is_address = (bits >> 52) & 1;
  const int version = static_cast<int>((bits >> 46) & 7);
  if (version != 1) {
    *error = "shared-memory descriptor: bits 46-48 must be 0b001, got " + std::to_string(version);
    return false;
  }
  if (out->leading_is_address) {
    *error =
        "shared-memory descriptor: absolute leading-dimension mode (bit 52) is not implemented";
    return false;
  }
  const int layout = static_cast<int>(bits >> 61);
  switch (layout) {
    case 0:
      out->swizzle = Swizzle::kNone;
      return true;
    case 1:
      out->swizzle = Swizzle::k128BAtom32B;
      return true;
    case 2:
      out->swizzle = Swizzle::k128B;
      return true;
    case 4:
      out->swizzle = Swizzle::k64B;
      return true;
    case 6:
      out->swizzle = Swizzle::k32B;
      return true;
    default:
      *error = "shared-memory descriptor: layout type " + std::to_string(layout) + " is reserved";
      return false;
  }
}

}  // namespace bwgemm::emulator
