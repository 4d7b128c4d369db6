// What the grouped kernels add to the main loop: the end of a group.
#pragma once

#include "grouped/sm90/config.h"

namespace bwgemm::grouped::sm90 {

// Named barrier of ZeroTail, plus the consumer for ping-pong: after those of StoreBuffers.
constexpr uint32_t kTailBarrier = kConsumers;

// The last block of a group's rows runs into its neighbour's: those rows become zeros in both
// operands (in one would not do: 0 x inf is NaN). Operands are MN-major here, a row is one line
// of 128 bytes in each box. Called by all consumers of a tile.
template <class C>
__device__ __forceinline__ void ZeroTail(typename C::Shared& shared, uint32_t stage, int valid,
                                         int consumer, int thread) {
  constexpr int kOwners = C::kTileConsumers * 128;  // threads
  const int id = C::kPingpong ? thread : consumer * 128 + thread;
  auto zero = [&](uint8_t* base, int boxes) {
    for (int i = id; i < boxes * kBlock * (kRowBytes / 16); i += kOwners) {
      const int line = i / (kRowBytes / 16);
      if (line % kBlock >= valid) reinterpret_cast<uint4*>(base)[i] = make_uint4(0, 0, 0, 0);
    }
  };
  zero(shared.p[stage], C::kPBlocks);
  zero(shared.q[stage], C::kQBoxes);
  cutlass::arch::fence_view_async_shared();  // the MMA reads through the async proxy
  cutlass::arch::NamedBarrier::sync(kOwners, kTailBarrier + (C::kPingpong ? consumer : 0));
}

}  // namespace bwgemm::grouped::sm90
