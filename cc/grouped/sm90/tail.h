// What the grouped kernels add to the main loop: the end of a group and, where blocks of rows do
// not begin with it, its beginning.
#pragma once

#include "grouped/sm90/load.h"

namespace bwgemm::grouped::sm90 {

// Named barrier of ZeroOthers, plus the consumer for ping-pong: after those of StoreBuffers.
constexpr uint32_t kTailBarrier = kConsumers;

// Of 16 bytes, those from `first` to `last` stay; the others become zeros.
__device__ __forceinline__ void KeepBytes(uint4* chunk, int first, int last) {
  auto below = [](int bytes) {  // bits of a word's first bytes, as many as it has
    return bytes >= 4 ? ~0u : (1u << (8 * max(bytes, 0))) - 1;
  };
  uint4 v = *chunk;
  v.x &= below(last) & ~below(first);
  v.y &= below(last - 4) & ~below(first - 4);
  v.z &= below(last - 8) & ~below(first - 8);
  v.w &= below(last - 12) & ~below(first - 12);
  *chunk = v;
}

// K-major: a line has all rows of a block, in 16-byte chunks at 8 places that the swizzle permutes.
// Bytes [first, last) are the group's. Only chunks with others are touched, and neighbouring
// threads have neighbouring lines: then a chunk is at 8 different places, that is in all banks.
__device__ __forceinline__ void ZeroLine(uint8_t* lines, int line, int first, int last) {
  constexpr int kChunk = sizeof(uint4), kChunks = kRowBytes / kChunk;
  uint4* chunks = reinterpret_cast<uint4*>(lines + line * kRowBytes);
  const int swizzle = line % kChunks;
  CUTE_NO_UNROLL
  for (int i = 0; i < first / kChunk; ++i) chunks[i ^ swizzle] = make_uint4(0, 0, 0, 0);
  CUTE_NO_UNROLL
  for (int i = (last + kChunk - 1) / kChunk; i < kChunks; ++i) {
    chunks[i ^ swizzle] = make_uint4(0, 0, 0, 0);
  }
  if (first % kChunk != 0) KeepBytes(&chunks[first / kChunk ^ swizzle], first % kChunk, kChunk);
  if (last % kChunk != 0) KeepBytes(&chunks[last / kChunk ^ swizzle], 0, last % kChunk);
}

// Of a block of contracted rows, [begin, end) are the group's: the others become zeros in both
// operands (in one would not do: 0 x inf is NaN). Called by all consumers of a tile.
template <class C>
__device__ __forceinline__ void ZeroOthers(typename C::Shared& shared, uint32_t stage, int begin,
                                           int end, int consumer, int thread) {
  constexpr int kOwners = C::kTileConsumers * 128;  // threads
  const int id = C::kPingpong ? thread : consumer * 128 + thread;
  auto zero = [&](uint8_t* lines, int count) {
    if constexpr (C::kPKMajor) {
      constexpr int kBytes = sizeof(typename C::InP);
      for (int line = id; line < count; line += kOwners) {
        ZeroLine(lines, line, begin * kBytes, end * kBytes);
      }
    } else {  // a row is one line of each box
      constexpr int kChunks = kRowBytes / 16;
      for (int i = id; i < count * kChunks; i += kOwners) {
        if (i / kChunks % kBlock >= end) {
          *reinterpret_cast<uint4*>(lines + i * 16) = make_uint4(0, 0, 0, 0);
        }
      }
    }
  };
  zero(shared.p[stage], C::kPBytes / kRowBytes);
  zero(shared.q[stage], C::kQBoxes * kBlock);
  cutlass::arch::fence_view_async_shared();  // the MMA reads through the async proxy
  cutlass::arch::NamedBarrier::sync(kOwners, kTailBarrier + (C::kPingpong ? consumer : 0));
}

// Called for every block of a tile that has arrived, before its MMAs: zeroes what the first and the
// last block of a k-grouped tile have of other groups.
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
