// Matrix descriptors: where wgmma finds a tile of an operand in shared memory (PTX ISA, "Matrix
// Descriptor Format" of wgmma).
#pragma once

#include <cstdint>

#include "cute/arch/util.hpp"

namespace bwgemm::sm90 {

// A tile of kRows x kTileK in swizzled lines of kLineBytes. K-major: a line holds 128 or 64
// bytes of K of one row; the lines of all rows come one after the other, then those of the next K.
// MN-major: a line holds rows at one k; boxes of kTileK lines follow one another along the rows.
//
// Addresses in descriptors count units of 16 bytes. An MMA may begin inside of a swizzled line: the
// hardware swizzles the address that it computes.
template <class Element, bool kKMajor, int kLineBytes, int kRows, int kTileK>
struct TileDescriptor {
  static constexpr int kLineElements = kLineBytes / static_cast<int>(sizeof(Element));
  static constexpr int kBytes = kRows * kTileK * static_cast<int>(sizeof(Element));
  static constexpr int kBoxBytes = kLineBytes * kTileK;  // MN-major
  static_assert(kKMajor ? (kLineBytes == 128 || kLineBytes == 64) && kTileK % kLineElements == 0
                        : kLineBytes == 128 || kLineBytes == 64 || kLineBytes == 32);
  static_assert(kKMajor || kRows % kLineElements == 0);

  // For a tile at `tile`, which is aligned to the swizzle's period. `Tile` tiles follow one
  // another. The address of a CTA in a cluster has the CTA's rank above the bits that count here.
  __device__ __forceinline__ explicit TileDescriptor(const void* tile)
      : low_((cute::cast_smem_ptr_to_uint(tile) >> 4 & 0x3fff) | kBoxes << 16) {}

  // The descriptor of tile number `tile` from element k of K on.
  __device__ __forceinline__ uint64_t At(uint32_t tile, int k) const {
    return kHigh << 32 | (low_ + tile * (kBytes / 16) + BytesTo(k) / 16);
  }

 private:
  static constexpr int BytesTo(int k) {
    if (!kKMajor) return k * kLineBytes;
    return k / kLineElements * kRows * kLineBytes +
           k % kLineElements * static_cast<int>(sizeof(Element));
  }
  // Between groups of eight lines; between boxes, which K-major tiles in swizzled lines do not use.
  static constexpr uint64_t kStride = 8 * kLineBytes / 16;
  static constexpr uint32_t kBoxes = kKMajor ? 1 : kBoxBytes / 16;
  static constexpr uint64_t kSwizzle = kLineBytes == 128 ? 1 : kLineBytes == 64 ? 2 : 3;
  static constexpr uint64_t kHigh = kStride | kSwizzle << 30;

  const uint32_t low_;  // of the first tile's
};

}  // namespace bwgemm::sm90
