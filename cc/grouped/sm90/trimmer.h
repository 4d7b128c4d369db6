// How k-grouped kernels keep the rows of other groups out of a group's sums.
#pragma once

#include "cutlass/arch/barrier.h"
#include "grouped/sm90/load.h"
#include "grouped/sm90/ring_reader.h"
#include "sm90/arrive.h"

namespace bwgemm::grouped::sm90 {

// K-major: a line has all rows of a block, in 16-byte chunks at 8 places that the swizzle permutes.
// A warp keeps the bytes [first, last) of kLines lines and zeroes the others. Places of a lane are
// at constant distances, since its lines are all the same modulo 8, or modulo 4.
template <int kLines>
struct LineEnds {
  static constexpr int kChunk = sizeof(uint4), kChunks = kRowBytes / kChunk, kWarp = 32;
  static_assert(kLines % kWarp == 0);
  uint8_t* lines;
  int lane;

  __device__ __forceinline__ void Keep(int first, int last) const {
    ZeroChunks(first, last);
    if (first % kChunk != 0) KeepInChunk(first / kChunk, first % kChunk, kChunk);
    if (last % kChunk != 0) KeepInChunk(last / kChunk, 0, last % kChunk);
  }

 private:
  __device__ __forceinline__ uint4* At(int line, int chunk) const {
    return reinterpret_cast<uint4*>(lines + line * kRowBytes) + (chunk ^ (line % kChunks));
  }

  // Chunks without any byte to keep. Each lane has the same chunk of every fourth line.
  __device__ __forceinline__ void ZeroChunks(int first, int last) const {
    const int chunk = lane % kChunks, line = lane / kChunks, at = chunk * kChunk;
    if (first < at + kChunk && at < last) return;
    uint4 *even = At(line, chunk), *odd = At(line + kChunks / 2, chunk);
    CUTE_UNROLL
    for (int i = 0; i < kLines; i += kChunks) {
      even[i * kChunks] = make_uint4(0, 0, 0, 0);
      odd[i * kChunks] = make_uint4(0, 0, 0, 0);
    }
  }

  // Of one chunk of every line, bytes [first, last).
  __device__ __forceinline__ void KeepInChunk(int chunk, int first, int last) const {
    auto mask = [&](int word) {
      auto below = [](int bytes) {  // bits of a word's first bytes, as many as it has
        return bytes >= 4 ? ~0u : (1u << (8 * max(bytes, 0))) - 1;
      };
      return below(last - 4 * word) & ~below(first - 4 * word);
    };
    const uint4 keep = make_uint4(mask(0), mask(1), mask(2), mask(3));
    uint4* chunks = At(lane, chunk);
#pragma unroll 4
    for (int i = 0; i < kLines; i += kWarp) {
      uint4 v = chunks[i * kChunks];
      v.x &= keep.x;
      v.y &= keep.y;
      v.z &= keep.z;
      v.w &= keep.w;
      chunks[i * kChunks] = v;
    }
  }
};

// A warp that zeroes what a tile's first and last block have of other groups, in both operands (in
// one would not do: 0 x inf is NaN). The bytes of such a block arrive at a barrier that only this
// warp waits for; for the consumers, the block arrives when it has been trimmed.
template <class C>
struct Trimmer {
  using Barrier = cutlass::arch::ClusterBarrier;
  static constexpr int kWarp = 32;
  static_assert(C::kPKMajor == C::kQKMajor);
  const Params& params;
  typename C::Shared& shared;

  __device__ __forceinline__ static void InitBarriers(typename C::Shared& shared) {
    for (auto& barrier : shared.untrimmed) Barrier::init(&barrier, 1);  // the thread that loads
  }

  __device__ __forceinline__ void Run() {
    RingReader<C> ring{shared};
    RingState<C::kStages> state;
    uint32_t phases = 0;  // bit i: of stage i's barrier
    static_assert(C::kStages <= 32);
    for (;;) {
      const grouped::Tile tile = ring.template Next<true>();
      if (tile.batch < 0) return;
      const int k_blocks = KBlocks<C>(tile, params);
      const GroupEnds<C> ends(tile, k_blocks);
      if (k_blocks > 1) {
        Trim(ends, k_blocks, state.index, phases);
        state.Skip(k_blocks - 1);
      }
      if (k_blocks > 0) {
        Trim(ends, 1, state.index, phases);
        state.Advance();
      }
    }
  }

 private:
  // A block, if it has rows of other groups. left: as of GroupEnds.
  __device__ __forceinline__ void Trim(const GroupEnds<C>& ends, int left, uint32_t stage,
                                       uint32_t& phases) const {
    if (ends.Whole(left)) return;
    const int lane = threadIdx.x % kWarp;
    Barrier::wait(&shared.untrimmed[stage], phases >> stage & 1);
    phases ^= 1u << stage;
    Keep<C::kPBytes>(shared.p[stage], ends.First(left), ends.Last(left), lane);
    Keep<C::kQBytes>(shared.q[stage], ends.First(left), ends.Last(left), lane);
    cutlass::arch::fence_view_async_shared();  // MMAs read through the async proxy
    __syncwarp();
    bwgemm::sm90::ArriveForWarp(&shared.full[stage], lane);
  }

  // Of a block's rows, those in [begin, end).
  template <int kBytes>
  __device__ __forceinline__ static void Keep(uint8_t* lines, int begin, int end, int lane) {
    if constexpr (C::kPKMajor) {
      constexpr int kElement = sizeof(typename C::InP);
      LineEnds<kBytes / kRowBytes>{lines, lane}.Keep(begin * kElement, end * kElement);
    } else {  // a row is one line of each box, and begin is 0
      for (int i = end * kRowBytes + lane * 16; i < kBlock * kRowBytes; i += kWarp * 16) {
        CUTE_UNROLL
        for (int box = 0; box < kBytes; box += kBlock * kRowBytes) {
          *reinterpret_cast<uint4*>(lines + box + i) = make_uint4(0, 0, 0, 0);
        }
      }
    }
  }
};

}  // namespace bwgemm::grouped::sm90
