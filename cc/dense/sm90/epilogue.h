// The consumers' epilogue: registers -> shared memory -> D.
#pragma once

#include <algorithm>

#include "dense/sm90/linked.h"
#include "dense/sm90/tiles.h"
#include "sm90/store.h"

namespace bwgemm::dense::sm90 {

// Where in D the results of a unit of P's rows and one of Q's rows go. inside: whether they do.
struct Place {
  int column, row;
  bool inside;
};
template <class C>
__device__ __forceinline__ Place PlaceOf(const Params& params, uint32_t p, uint32_t q) {
  const int in_p = C::P::UnitRow(p, params.p_rows), in_q = C::Q::UnitRow(q, params.q_rows);
  const bool inside =
      p < static_cast<uint32_t>(params.p_rows) && q < static_cast<uint32_t>(params.q_rows);
  return {C::kSwapAb ? in_p : in_q, C::kSwapAb ? in_q : in_p, inside};
}

template <class C>
struct Epilogue {
  using Accumulator = typename C::template Accumulator<C::kTileN>;
  using Buffers = bwgemm::sm90::StoreBuffers<C>;
  static constexpr int kColumns = C::kStoreColumns;  // of a line
  const Params& params;
  Buffers buffers;

  // Ahead of a tile's main loop.
  __device__ __forceinline__ void Begin(const Tile&) {}

  __device__ __forceinline__ void StoreTile(const Tile& tile, Accumulator& accumulator) {
    buffers.RereadThread();
    const uint32_t p = PRow<C>(tile) + C::FirstBlock(buffers.consumer) * kBlock;
    const uint32_t q = QRow<C>(tile);
    if constexpr (C::kSwapAb) {
      Transposed(accumulator, p, q, tile.batch);
    } else {
      Straight(accumulator, p, q, tile.batch);
    }
  }

  __device__ __forceinline__ void Finish() { buffers.Finish(); }

 private:
  // TMA drops the part of a box that lies beyond the edge of D.
  __device__ __forceinline__ void Send(const uint8_t* lines, const Place& place, int offset,
                                       int matrix) {
    if (buffers.thread == 0) {
      if (place.inside) {
        cute::SM90_TMA_STORE_3D::copy(&params.d, lines, place.column + offset, place.row, matrix);
      }
      cute::tma_store_arrive();  // even without a store: the wait for a buffer counts groups
    }
  }

  // Applies the linked epilogue of swapped operands, in place, to 64 rows of P from p on and kWidth
  // rows of Q from q on. Called before the wait for a buffer, which hides its loads. Rows beyond D
  // get arbitrary values: TMA drops them.
  template <int kWidth>
  __device__ __forceinline__ void Apply(Accumulator& acc, int first, int p, int q, int matrix) {
    const EpilogueArguments& arguments = static_cast<const LinkedParams&>(params).epilogue;
    const int lane = buffers.thread % 32;
    p += buffers.thread / 32 * 16 + lane / 4;
    q += lane % 4 * 2;
    CUTE_UNROLL
    for (int i = 0; i < kWidth / 2; i += 2) {
      const int a = first + i, in_p = p + i / 2 % 2 * 8, in_q = q + i / 4 * 8;
      const float2 pair = bwgemm_epilogue(acc(a), acc(a + 1), in_q, in_p, matrix, &arguments,
                                          nullptr, nullptr, nullptr, 0, nullptr);
      acc(a) = pair.x;
      acc(a + 1) = pair.y;
    }
  }

  __device__ __forceinline__ void Straight(Accumulator& acc, uint32_t p, uint32_t q, int matrix) {
    static_assert(C::Q::kMovedRows % kColumns == 0, "all columns of a chunk are moved together");
    constexpr int kUnit = std::max(C::Q::kMovedRows, 1);  // 1: no columns are moved
    struct At {
      Place place;
      int offset;
    };
    buffers.template Straight<C::kTileN>(
        acc,
        [&](int block, int column) {
          const int in_unit = column % kUnit;
          return At{PlaceOf<C>(params, p + block * kBlock, q + column - in_unit), in_unit};
        },
        [&](const uint8_t* lines, const At& at) { Send(lines, at.place, at.offset, matrix); });
  }

  __device__ __forceinline__ void Transposed(Accumulator& acc, uint32_t p, uint32_t q, int matrix) {
    static_assert(!C::kLinked || C::kStores * C::kStoreRows == C::Q::kBoxRows,
                  "an epilogue is applied in place, once");
    CUTE_UNROLL
    for (int i = 0; i < C::Q::kRowBoxes * C::kStores * C::kOwnBlocks; ++i) {
      const int chunk = i / C::kOwnBlocks, block = i % C::kOwnBlocks;
      const int box = chunk / C::kStores * C::Q::kBoxRows;
      const int in_box = chunk % C::kStores * (C::Q::kBoxRows - C::kStoreRows);
      const int first = (block * C::kTileN + box + in_box) / 2;
      Place place = PlaceOf<C>(params, p + block * kBlock, q + box);
      place.row += in_box;
      place.inside &= place.row < params.q_rows;  // an operand may have fewer rows than a box
      if constexpr (C::kLinked) Apply<C::kStoreRows>(acc, first, place.column, place.row, matrix);
      buffers.template FillTransposed<C::kStoreRows>(acc, first);
      CUTE_UNROLL
      for (int part = 0; part < Buffers::kTransposedParts; ++part) {
        Send(buffers.Lines(part), place, part * kColumns, matrix);
      }
      buffers.Next();
    }
  }
};

}  // namespace bwgemm::dense::sm90
