// The consumers' epilogue: registers -> shared memory -> D.
#pragma once

#include "cute/arch/copy_sm90_tma.hpp"
#include "grouped/sm90/tail.h"
#include "sm90/lines.h"

namespace bwgemm::grouped::sm90 {

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
        bwgemm::sm90::WriteRowsF32(acc, first, lines, thread);
      } else {
        bwgemm::sm90::WriteRows<Out>(acc, first, lines, thread);
      }
      cute::tma_store_fence();
      Sync();
      Send(lines, column + chunk * kChunk, row + block * kBlock, C::kStoreRows, matrix);
    }
  }

  // The accumulator's columns are rows of D: a line is 64 (16 bits) or half of the 64 (f32) columns
  // of one row.
  template <int kColumns>
  __device__ __forceinline__ void Transposed(const Accumulator<kColumns>& acc, int column, int row,
                                             int rows, int matrix) {
    CUTE_UNROLL
    for (int line = 0; line < kColumns / C::kStoreRows * C::kStoreRows; line += C::kStoreRows) {
      Lines<C::kStoreRows, kColumns>(acc, column, row, line, rows - line, matrix);
    }
    constexpr int kRest = kColumns % C::kStoreRows;
    if constexpr (kRest != 0) {
      Lines<kRest, kColumns>(acc, column, row, kColumns - kRest, rows - kColumns + kRest, matrix);
    }
  }

  // kLines of the accumulator's columns, from `line` on, of which `valid` belong to the group.
  template <int kLines, int kColumns>
  __device__ __forceinline__ void Lines(const Accumulator<kColumns>& acc, int column, int row,
                                        int line, int valid, int matrix) {
    CUTE_UNROLL
    for (int block = 0; block < C::kOwnBlocks; ++block) {
      const int first = (block * kColumns + line) / 2;
      if (thread == 0) cute::tma_store_wait<kWide ? 0 : 1>();
      Sync();
      if constexpr (kWide) {
        bwgemm::sm90::WriteColumnsF32<kLines>(acc, first, shared.store[consumer][0],
                                              shared.store[consumer][1], thread);
      } else {
        bwgemm::sm90::WriteColumns<Out, kLines>(acc, first, shared.store[consumer][buffer], thread);
      }
      cute::tma_store_fence();
      Sync();
      CUTE_NO_UNROLL
      for (int i = 0; i < kBlock / kChunk; ++i) {
        Send(shared.store[consumer][kWide ? i : buffer], column + block * kBlock + i * kChunk,
             row + line, min(valid, kLines), matrix);
      }
      buffer ^= !kWide;
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
