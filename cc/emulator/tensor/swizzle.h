// Shared-memory swizzles, as XORs of address bits. The same patterns serve TMA boxes
// (PTX ISA 5.5.6, swizzle modes) and matrix descriptors (9.7.15.5.1, 9.7.16.10.6).
#pragma once

#include <cstdint>

namespace bwgemm::emulator {

enum class Swizzle : uint8_t {
  kNone,
  k32B,
  k64B,
  k128B,
  k128BAtom32B,  // 128-byte rows, moved in units of 32 bytes
  k128BAtom64B,  // 128-byte rows, moved in units of 64 bytes
};

// Bytes of one swizzled row; 16 where nothing moves.
constexpr uint32_t swizzle_span(Swizzle swizzle) {
  switch (swizzle) {
    case Swizzle::kNone:
      return 16;
    case Swizzle::k32B:
      return 32;
    case Swizzle::k64B:
      return 64;
    default:
      return 128;
  }
}

// Address at which the byte with linear address `address` is kept. The pattern is anchored to
// absolute shared-memory addresses (repeats of 256, 512 or 1024 bytes), minus `base_rows` rows of
// 128 bytes when a descriptor says that its pattern starts elsewhere.
constexpr uint32_t swizzle_address(Swizzle swizzle, uint32_t address, uint32_t base_rows = 0) {
  const uint32_t row = (address >> 7) - base_rows;
  switch (swizzle) {
    case Swizzle::kNone:
      return address;
    case Swizzle::k32B:
      return address ^ ((row & 1) << 4);
    case Swizzle::k64B:
      return address ^ ((row & 3) << 4);
    case Swizzle::k128B:
      return address ^ ((row & 7) << 4);
    case Swizzle::k128BAtom32B:
      return address ^ ((row & 3) << 5);
    case Swizzle::k128BAtom64B:
      return address ^ ((row & 1) << 6);
  }
  return address;
}

}  // namespace bwgemm::emulator
