// Shared-memory matrix descriptors of tensor-core instructions: PTX ISA 9.7.15.5.1 (wgmma) and
// 9.7.16.4.1 (tcgen05). A descriptor names, for an operand tile of MN rows by K columns, where each
// 16-byte chunk of the tile lies. Offsets are shared-memory addresses of the owning CTA.
#pragma once

#include <cstdint>
#include <string>

#include "emulator/tensor/swizzle.h"

namespace bwgemm::emulator {

// Which dimension of an operand is contiguous in memory.
enum class Major : uint8_t { kK, kMN };

struct SmemDescriptor {
  uint32_t start = 0;               // bytes
  uint32_t leading_offset = 0;      // LBO, bytes
  uint32_t stride_offset = 0;       // SBO, bytes
  uint32_t base_offset = 0;         // rows of 128 bytes by which the swizzle pattern is displaced
  bool leading_is_address = false;  // LBO mode 1 of sm_103: not executed, reported
  Swizzle swizzle = Swizzle::kNone;
};

// Both return false and set `error` where a field has no meaning.
bool decode_wgmma_descriptor(uint64_t bits, SmemDescriptor* out, std::string* error);
bool decode_tcgen05_descriptor(uint64_t bits, SmemDescriptor* out, std::string* error);

// Address of the chunk that holds, for K-major operands, row `outer` and bytes [16*inner,
// 16*inner+16) of its K extent; for MN-major operands, K index `outer` and the 16 bytes of MN
// elements number `inner`. Canonical layouts: PTX ISA 9.7.15.5.1.2 and 9.7.16.3.3.
inline uint32_t chunk_address(const SmemDescriptor& d, Major major, uint32_t outer,
                              uint32_t inner) {
  const uint32_t span = swizzle_span(d.swizzle);
  uint32_t linear = d.start;
  if (major == Major::kK) {
    linear += (outer % 8) * span + (outer / 8) * d.stride_offset;
    linear += inner * (d.swizzle == Swizzle::kNone ? d.leading_offset : 16);
  } else if (d.swizzle == Swizzle::kNone) {
    linear += inner * d.stride_offset + (outer % 8) * 16 + (outer / 8) * d.leading_offset;
  } else {
    const uint32_t chunks_per_row = span / 16;
    const uint32_t rows = d.swizzle == Swizzle::k128BAtom32B ? 4 : 8;  // K rows of one atom
    linear += (inner % chunks_per_row) * 16 + (inner / chunks_per_row) * d.leading_offset;
    linear += (outer % rows) * span + (outer / rows) * d.stride_offset;
  }
  return swizzle_address(d.swizzle, linear, d.base_offset);
}

}  // namespace bwgemm::emulator
