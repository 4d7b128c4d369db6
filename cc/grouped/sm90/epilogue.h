// The consumers' epilogue: registers -> shared memory -> D.
//
// A warpgroup has 64 x kColumns results of each of its blocks, in the MMA's fragment layout (PTX
// ISA "wgmma register fragments"): thread t holds, for every 8 columns j and half h, the pair of
// row 16 * (t / 32) + 8 * h + (t % 32) / 4 and columns 8 * j + 2 * (t % 4) + {0, 1}. Results go
// through lines of 128 bytes, swizzled like TMA's 128-byte mode: the 16-byte chunk c of line r lies
// at c ^ (r % 8), which spreads both the writes and the reads over all banks.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "cute/arch/copy_sm90.hpp"
#include "cute/arch/copy_sm90_tma.hpp"
#include "grouped/sm90/mma.h"

namespace bwgemm::grouped::sm90 {

template <class Out>
__device__ __forceinline__ uint32_t Pack(float low, float high) {
  if constexpr (std::is_same_v<Out, cutlass::bfloat16_t>) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return reinterpret_cast<const uint32_t&>(pair);
  } else {
    const __half2 pair = __floats2half2_rn(low, high);
    return reinterpret_cast<const uint32_t&>(pair);
  }
}

template <class C>
struct Epilogue {
  using Out = typename C::Out;
  template <int kColumns>
  using Accumulator = typename C::template Accumulator<kColumns>;
  static constexpr bool kWide = C::kOut == DType::kF32;
  static constexpr int kChunk = C::kStoreColumns;
  const Params& params;
  typename C::Shared& shared;
  int consumer;
  int thread;
  uint32_t cta_rank;
  int buffer = 0;  // 16-bit and straight results: the one to fill next

  // kColumns: as many of the tile's columns as were computed.
  template <int kColumns>
  __device__ __forceinline__ void Tile(const grouped::Tile& tile,
                                       const Accumulator<kColumns>& accumulator) {
    // Asked for again, and volatile: else everything that follows from it is computed once ahead of
    // the loop over tiles, in registers that the widest ping-pong tile's main loop does not have.
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    thread %= 128;
    const int matrix = tile.batch * params.d_batch + tile.expert * params.d_expert;
    if constexpr (C::kContract) {
      Straight<kColumns>(accumulator, tile.n_tile * C::kTileN, FirstOfP(tile.m_tile), matrix);
    } else {
      Transposed<kColumns>(accumulator, FirstOfP(tile.n_tile), tile.row, tile.rows, matrix);
    }
  }

  // No thread may leave while TMA still reads its buffers.
  __device__ __forceinline__ void Finish() {
    if (thread == 0) cute::tma_store_wait<0>();
  }

 private:
  __device__ __forceinline__ int FirstOfP(int tile) const {
    return (tile * C::kCluster + cta_rank) * C::kTileM + C::FirstBlock(consumer) * kBlock;
  }

  __device__ __forceinline__ void Sync() {
    cutlass::arch::NamedBarrier::sync(128, kStoreBarrier + consumer);
  }

  // The accumulator's rows are rows of D, and a matrix of D is one of its tensor map: TMA clips at
  // its end.
  template <int kColumns>
  __device__ __forceinline__ void Straight(const Accumulator<kColumns>& acc, int column, int row,
                                           int matrix) {
    constexpr int kChunks = kColumns / kChunk;
    CUTE_UNROLL
    for (int i = 0; i < C::kOwnBlocks * kChunks; ++i) {
      const int block = i / kChunks, chunk = i % kChunks;
      const int first = (block * kColumns + chunk * kChunk) / 2;
      uint8_t* lines = shared.store[consumer][buffer];
      buffer ^= 1;
      if (thread == 0) cute::tma_store_wait<1>();
      Sync();
      if constexpr (kWide) {
        WriteWide(acc, first, lines);
      } else {
        WritePacked(acc, first, lines);
      }
      cute::tma_store_fence();
      Sync();
      Send(lines, column + chunk * kChunk, row + block * kBlock, C::kStoreRows, matrix);
    }
  }

  // 64 columns of 16 bits, whose registers begin with `first`: four 8 x 8 matrices an instruction,
  // lane l gives the address of line l % 8 of matrix l / 8.
  template <class Registers>
  __device__ __forceinline__ void WritePacked(const Registers& acc, int first, uint8_t* lines) {
    const int lane = thread % 32;
    const int line = thread / 32 * 16 + (lane / 8 % 2) * 8 + lane % 8;
    CUTE_UNROLL
    for (int j = 0; j < kChunk / 8; j += 2) {
      const int a = first + j * 4;
      const int chunk = (j + lane / 16) ^ (line % 8);
      cute::SM90_U32x4_STSM_N::copy(
          Pack<Out>(acc(a), acc(a + 1)), Pack<Out>(acc(a + 2), acc(a + 3)),
          Pack<Out>(acc(a + 4), acc(a + 5)), Pack<Out>(acc(a + 6), acc(a + 7)),
          *reinterpret_cast<cute::uint128_t*>(lines + line * kRowBytes + chunk * 16));
    }
  }

  template <class Registers>
  __device__ __forceinline__ void WriteWide(const Registers& acc, int first, uint8_t* lines) {
    const int lane = thread % 32;
    CUTE_UNROLL
    for (int j = 0; j < kChunk / 8; ++j) {
      CUTE_UNROLL
      for (int half = 0; half < 2; ++half) {
        const int a = first + j * 4 + half * 2;
        const int line = thread / 32 * 16 + half * 8 + lane / 4;
        const int chunk = (2 * j + lane % 4 / 2) ^ (line % 8);
        *reinterpret_cast<float2*>(lines + line * kRowBytes + chunk * 16 + lane % 2 * 8) =
            make_float2(acc(a), acc(a + 1));
      }
    }
  }

  // The accumulator's columns are rows of D: a line is 64 (16 bits) or half of the 64 (f32) columns
  // of one row.
  template <int kColumns>
  __device__ __forceinline__ void Transposed(const Accumulator<kColumns>& acc, int column, int row,
                                             int rows, int matrix) {
    CUTE_UNROLL
    for (int chunk = 0; chunk < kColumns / C::kStoreRows; ++chunk) {
      const int valid = min(rows - chunk * C::kStoreRows, C::kStoreRows);
      if (valid <= 0) break;
      CUTE_UNROLL
      for (int block = 0; block < C::kOwnBlocks; ++block) {
        const int first = (block * kColumns + chunk * C::kStoreRows) / 2;
        if (thread == 0) cute::tma_store_wait<kWide ? 0 : 1>();
        Sync();
        if constexpr (kWide) {
          WriteTransposedWide(acc, first);
        } else {
          WriteTransposed(acc, first, shared.store[consumer][buffer]);
        }
        cute::tma_store_fence();
        Sync();
        CUTE_NO_UNROLL
        for (int i = 0; i < kBlock / kChunk; ++i) {
          Send(shared.store[consumer][kWide ? i : buffer], column + block * kBlock + i * kChunk,
               row + chunk * C::kStoreRows, valid, matrix);
        }
        buffer ^= !kWide;
      }
    }
  }

  // Transposed 8 x 8 matrices: lane l gives the address of column l % 8 of matrix l / 8.
  template <class Registers>
  __device__ __forceinline__ void WriteTransposed(const Registers& acc, int first, uint8_t* lines) {
    const int lane = thread % 32, warp = thread / 32;
    CUTE_UNROLL
    for (int j = 0; j < C::kStoreRows / 8; j += 2) {
      const int line = (j + lane / 16) * 8 + lane % 8;
      const int chunk = (warp * 2 + lane / 8 % 2) ^ (line % 8);
      const int a = first + j * 4;
      cute::SM90_U16x8_STSM_T::copy(
          Pack<Out>(acc(a), acc(a + 1)), Pack<Out>(acc(a + 2), acc(a + 3)),
          Pack<Out>(acc(a + 4), acc(a + 5)), Pack<Out>(acc(a + 6), acc(a + 7)),
          *reinterpret_cast<cute::uint128_t*>(lines + line * kRowBytes + chunk * 16));
    }
  }

  // Warps 0 and 1 hold the first 32 columns of D, 2 and 3 the others: a buffer each.
  template <class Registers>
  __device__ __forceinline__ void WriteTransposedWide(const Registers& acc, int first) {
    const int lane = thread % 32, warp = thread / 32;
    uint8_t* lines = shared.store[consumer][warp / 2];
    CUTE_UNROLL
    for (int i = 0; i < 4; ++i) {  // the same place in every 8 x 8 matrix
      const int line = lane % 4 * 2 + i % 2;
      const int d_column = warp % 2 * 16 + i / 2 * 8 + lane / 4;
      uint8_t* to = lines + line * kRowBytes + ((d_column / 4) ^ line) * 16 + d_column % 4 * 4;
      CUTE_UNROLL
      for (int j = 0; j < C::kStoreRows / 8; ++j) {
        *reinterpret_cast<float*>(to + j * 8 * kRowBytes) = acc(first + j * 4 + i);
      }
    }
  }

  // Whole tiles leave by TMA, which clips at the edges of D. TMA cannot stop at the end of a group.
  __device__ __forceinline__ void Send(const uint8_t* lines, int column, int row, int valid,
                                       int matrix) {
    const bool whole = C::kContract || valid == C::kStoreRows;
    if (thread == 0) {
      if (whole) cute::SM90_TMA_STORE_3D::copy(&params.d, lines, column, row, matrix);
      cute::tma_store_arrive();  // without a store too: the wait for a buffer counts groups
    }
    if (whole) return;
    Out* d = static_cast<Out*>(params.d_data) +
             (static_cast<int64_t>(matrix) * params.m + row) * params.n + column;
    constexpr int kElements = 16 / sizeof(Out);
    for (int i = thread; i < valid * (kRowBytes / 16); i += 128) {
      const int line = i / 8, chunk = i % 8;
      if (column + chunk * kElements < params.n) {
        const uint4 v =
            *reinterpret_cast<const uint4*>(lines + line * kRowBytes + (chunk ^ (line % 8)) * 16);
        *reinterpret_cast<uint4*>(d + static_cast<int64_t>(line) * params.n + chunk * kElements) =
            v;
      }
    }
  }
};

}  // namespace bwgemm::grouped::sm90
