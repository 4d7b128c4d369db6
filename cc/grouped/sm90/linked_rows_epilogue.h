// The consumers' epilogue with a function linked in, of m-grouped kernels without swapped operands.
//
// A chunk is 64 rows and 64 columns of D. The function reads and writes memory itself: four lanes
// of a warp have 8 neighbouring columns of a row. D's values are stored as without a function.
#pragma once

#include "grouped/linked.h"
#include "grouped/sm90/epilogue.h"

namespace bwgemm::grouped::sm90 {

// C::LinkedParams: the kernel's parameters, with `epilogue`.
template <class C>
struct LinkedRowsEpilogue : Epilogue<C> {
  using Base = Epilogue<C>;
  using Base::buffers, Base::cta_rank, Base::params;
  static constexpr int kChunk = Base::kChunk, kPairs = kChunk / 4;  // of a thread in a chunk
  static_assert(C::kRowsOnP && sizeof(typename C::Out) == 2);

  // kColumns: as many of the tile's columns as were computed.
  template <int kColumns>
  __device__ __forceinline__ void Tile(
      const grouped::Tile& tile, const typename C::template Accumulator<kColumns>& accumulator) {
    constexpr int kChunks = kColumns / kChunk;  // of a block
    const int own = C::FirstBlock(buffers.consumer) * kBlock;
    CUTE_UNROLL
    for (int i = 0; i < C::kOwnBlocks * kChunks; ++i) {
      buffers.RereadThread();  // what follows from it is not kept from chunk to chunk
      const int line = own + i / kChunks * kBlock;
      const int row = FirstOfP<C>(tile, cta_rank) + line;
      const int column = FirstOfQ<C>(tile, cta_rank) + i % kChunks * kChunk;
      if (tile.rows <= line || column >= params.n) continue;
      Values values;
      CUTE_UNROLL
      for (int v = 0; v < 2 * kPairs; ++v) values.of[v] = accumulator(i * 2 * kPairs + v);
      Apply(tile, row, column, values);
      buffers.template Await<1>();
      uint8_t* lines = buffers.shared.store[buffers.consumer][buffers.buffer];
      bwgemm::sm90::WriteRows<typename C::Out>(values, 0, lines, buffers.thread);
      buffers.Filled();
      Base::Send(lines, column, row, min(tile.rows - line, kBlock), tile.batch * params.d_batch);
      buffers.Next();
    }
  }

 private:
  // A thread's values of a chunk: pairs of columns, of row 0 and row 8 by turns.
  struct Values {
    float of[2 * kPairs];
    __device__ __forceinline__ float operator()(int i) const { return of[i]; }
  };

  // row, column: where the chunk begins.
  __device__ __forceinline__ void Apply(const grouped::Tile& tile, int row, int column,
                                        Values& values) {
    const auto& epilogue = static_cast<const typename C::LinkedParams&>(params).epilogue;
    CUTE_UNROLL
    for (int i = 0; i < kPairs; ++i) {
      // Nor is what is read for all of a chunk, in registers that the sums need.
      if (i % 4 == 0) buffers.RereadThread();
      const int warp = buffers.thread / 32, lane = buffers.thread % 32;
      const int m = row + warp * 16 + lane / 4 + i % 2 * 8;
      const int n = column + lane % 4 * 2 + i / 2 * 8;
      float *x = &values.of[2 * i], *y = x + 1;
      const float2 pair =
          bwgemm_grouped_row_epilogue(*x, *y, m, n, tile.expert, tile.row + tile.rows, &epilogue);
      *x = pair.x;
      *y = pair.y;
    }
  }
};

}  // namespace bwgemm::grouped::sm90
