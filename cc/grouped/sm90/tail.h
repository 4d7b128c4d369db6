// What the grouped kernels add to the main loop: the end of a group and, where blocks of rows do
// not begin with it, its beginning.
#pragma once

#include "grouped/sm90/load.h"

namespace bwgemm::grouped::sm90 {

// Named barrier of ZeroOthers, plus the consumer for ping-pong: after those of StoreBuffers.
constexpr uint32_t kTailBarrier = kConsumers;

// A chunk of 16 bytes of a block's contracted rows. MN-major: a row is one line of each box, 128
// bytes. K-major: all rows are in each line, at 8 places that the swizzle permutes.
template <class C>
__device__ __forceinline__ void ZeroChunk(uint8_t* base, int i, int begin, int end) {
  constexpr int kChunks = kRowBytes / 16;
  uint8_t* chunk = base + i * 16;
  const int line = i / kChunks;
  if constexpr (!C::kPKMajor) {
    if (line % kBlock >= end) *reinterpret_cast<uint4*>(chunk) = make_uint4(0, 0, 0, 0);
  } else {
    constexpr int kElements = 16 / sizeof(typename C::InP);
    const int first = (i % kChunks ^ line % kChunks) * kElements;
    if (first >= begin && first + kElements <= end) return;
    if (first >= end || first + kElements <= begin) {
      *reinterpret_cast<uint4*>(chunk) = make_uint4(0, 0, 0, 0);
      return;
    }
    CUTE_NO_UNROLL
    for (int byte = 0; byte < 16; ++byte) {
      const int row = first + byte / static_cast<int>(sizeof(typename C::InP));
      if (row < begin || row >= end) chunk[byte] = 0;
    }
  }
}

// Of a block of contracted rows, [begin, end) are the group's: the others become zeros in both
// operands (in one would not do: 0 x inf is NaN). Called by all consumers of a tile.
template <class C>
__device__ __forceinline__ void ZeroOthers(typename C::Shared& shared, uint32_t stage, int begin,
                                           int end, int consumer, int thread) {
  constexpr int kOwners = C::kTileConsumers * 128;  // threads
  const int id = C::kPingpong ? thread : consumer * 128 + thread;
  auto zero = [&](uint8_t* base, int lines) {
    for (int i = id; i < lines * (kRowBytes / 16); i += kOwners) ZeroChunk<C>(base, i, begin, end);
  };
  zero(shared.p[stage], C::kPBytes / kRowBytes);
  zero(shared.q[stage], C::kQBoxes * kBlock);
  cutlass::arch::fence_view_async_shared();  // the MMA reads through the async proxy
  cutlass::arch::NamedBarrier::sync(kOwners, kTailBarrier + (C::kPingpong ? consumer : 0));
}

// Called for every block of a tile that has arrived, ahead of its MMAs: the first and the last one
// of a k-grouped tile lose what is not the group's.
template <class C>
struct GroupEnds {
  typename C::Shared& shared;
  int consumer, thread;
  int k_blocks;  // of the tile
  int head;      // rows ahead of the group in its first block
  int end;       // where the group ends in its last block

  // For a tile of k_blocks; both are the same in a warp.
  __device__ __forceinline__ GroupEnds(typename C::Shared& shared, int consumer, int thread,
                                       const grouped::Tile& tile, int k_blocks)
      : shared(shared), consumer(consumer), thread(thread), k_blocks(k_blocks), head(0), end(0) {
    if constexpr (C::kKGrouped) {
      head = __shfl_sync(0xffffffffu, tile.row - FirstOfK<C>(tile), 0);
      end = head + __shfl_sync(0xffffffffu, tile.rows, 0) - (k_blocks - 1) * C::kTileK;
    }
  }

  // left: blocks from this one to the last.
  __device__ __forceinline__ void operator()(uint32_t stage, int left) const {
    if constexpr (C::kKGrouped) {
      const int first = C::kFixedBlocks && left == k_blocks ? head : 0;
      const int last = left == 1 ? end : C::kTileK;
      if (first != 0 || last != C::kTileK) {
        ZeroOthers<C>(shared, stage, first, last, consumer, thread);
      }
    }
  }
};

}  // namespace bwgemm::grouped::sm90
