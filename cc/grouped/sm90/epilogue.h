// The consumers' epilogue: registers -> shared memory -> D.
#pragma once

#include "grouped/sm90/load.h"
#include "sm90/store.h"

namespace bwgemm::grouped::sm90 {

// Stores `valid` lines of 128 bytes into `matrix` of an array of D's shape whose rows are `pitch`
// elements apart, since TMA cannot stop at the end of a group. Called by all threads of a
// warpgroup.
template <class Out>
__device__ __forceinline__ void StoreLines(void* data, const Params& params, int pitch,
                                           const uint8_t* lines, int column, int row, int valid,
                                           int matrix, int thread) {
  Out* d =
      static_cast<Out*>(data) + (static_cast<int64_t>(matrix) * params.m + row) * pitch + column;
  constexpr int kElements = 16 / sizeof(Out);
  CUTE_NO_UNROLL
  for (int i = thread; i < valid * (kRowBytes / 16); i += 128) {
    const int line = i / 8, chunk = i % 8;
    if (column + chunk * kElements < params.n) {
      const uint4 v =
          *reinterpret_cast<const uint4*>(lines + line * kRowBytes + (chunk ^ (line % 8)) * 16);
      *reinterpret_cast<uint4*>(d + static_cast<int64_t>(line) * pitch + chunk * kElements) = v;
    }
  }
}

template <class C>
struct Epilogue {
  using Out = typename C::Out;
  template <int kColumns>
  using Accumulator = typename C::template Accumulator<kColumns>;
  using Buffers = bwgemm::sm90::StoreBuffers<C>;
  static constexpr int kChunk = C::kStoreColumns;
  const Params& params;
  uint32_t cta_rank;
  Buffers buffers;

  // kColumns: how many of the tile's columns were computed.
  template <int kColumns>
  __device__ __forceinline__ void Tile(const grouped::Tile& tile,
                                       const Accumulator<kColumns>& accumulator) {
    buffers.RereadThread();
    const int matrix = tile.batch * params.d_batch + tile.expert * params.d_expert;
    const int own = C::FirstBlock(buffers.consumer) * kBlock;
    // Read again where it would take a register throughout the main loop.
    const uint32_t rank = C::kKeepsTiles ? cute::block_rank_in_cluster() : cta_rank;
    const int p = FirstOfP<C>(tile, rank) + own, q = FirstOfQ<C>(tile, rank);
    if constexpr (C::kSwapAb) {
      Transposed<kColumns>(accumulator, p, q, tile.rows, matrix);
    } else {
      Straight<kColumns>(accumulator, q, p, tile.rows - own, matrix);
    }
  }

  __device__ __forceinline__ void Finish() { buffers.Finish(); }

 protected:
  // Whole chunks leave by TMA, which stops at the edges of D.
  __device__ __forceinline__ void Send(const uint8_t* lines, int column, int row, int valid,
                                       int matrix) {
    const bool whole = C::kKGrouped || valid == C::kStoreRows;
    if (buffers.thread == 0) {
      if (whole) cute::SM90_TMA_STORE_3D::copy(&params.d, lines, column, row, matrix);
      cute::tma_store_arrive();  // even without a store: the wait for a buffer counts groups
    }
    if (whole) return;
    StoreLines<Out>(params.d_data, params, params.n, lines, column, row, valid, matrix,
                    buffers.thread);
  }

 private:
  // rows: m-grouped: how many rows from `row` on belong to the group. k-grouped: unused, as every
  // matrix of D is one of the tensor map's, and TMA stops at its end.
  template <int kColumns>
  __device__ __forceinline__ void Straight(const Accumulator<kColumns>& acc, int column, int row,
                                           int rows, int matrix) {
    struct At {
      int column, row, valid;
    };
    buffers.template Straight<kColumns>(
        acc,
        [&](int block, int in_tile) {
          const int left = rows - block * kBlock;
          return At{column + in_tile, row + block * kBlock,
                    C::kKGrouped ? C::kStoreRows : min(left, C::kStoreRows)};
        },
        [&](const uint8_t* lines, const At& at) {
          Send(lines, at.column, at.row, at.valid, matrix);
        });
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

  // Stores kLines of the accumulator's columns, from `line` on, of which `valid` belong to the
  // group.
  template <int kLines, int kColumns>
  __device__ __forceinline__ void Lines(const Accumulator<kColumns>& acc, int column, int row,
                                        int line, int valid, int matrix) {
    CUTE_UNROLL
    for (int block = 0; block < C::kOwnBlocks; ++block) {
      const int first = (block * kColumns + line) / 2;
      buffers.template FillTransposed<kLines>(acc, first);
      CUTE_NO_UNROLL
      for (int i = 0; i < Buffers::kTransposedParts; ++i) {
        Send(buffers.Lines(i), column + block * kBlock + i * kChunk, row + line, min(valid, kLines),
             matrix);
      }
      buffers.Next();
    }
  }
};

}  // namespace bwgemm::grouped::sm90
