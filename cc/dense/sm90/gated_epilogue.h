// The consumers' epilogue of gated kernels: all results leave through the store buffers, by TMA.
#pragma once

#include "dense/sm90/epilogue.h"
#include "dense/sm90/gated.h"

namespace bwgemm::dense::sm90 {

template <class C>
struct GatedEpilogue {
  using Accumulator = typename C::template Accumulator<C::kTileN>;
  using Buffers = bwgemm::sm90::StoreBuffers<C>;
  static constexpr int kRows = C::kStoreRows;            // of D, in a buffer
  static constexpr int kHalfBlocks = C::kOwnBlocks / 2;  // of 64 columns of D
  static_assert(Buffers::kTransposedParts == 1 && C::kStores * kRows == C::Q::kBoxRows);

  const Params& base;
  Buffers buffers;

  __device__ __forceinline__ void Begin(const Tile&) {}
  __device__ __forceinline__ void Finish() { buffers.Finish(); }

  __device__ __forceinline__ void StoreTile(const Tile& tile, Accumulator& acc) {
    buffers.RereadThread();
    const uint32_t p = PRow<C>(tile), q = QRow<C>(tile);
    CUTE_UNROLL
    for (int i = 0; i < C::kTileN / kRows * kHalfBlocks; ++i) {
      const int chunk = i / kHalfBlocks, block = i % kHalfBlocks;
      const int box = chunk / C::kStores * C::Q::kBoxRows, in_box = chunk % C::kStores * kRows;
      Place place = PlaceOf<C>(base, p + block * kBlock, q + box);
      place.row += in_box;
      place.inside &= place.row < base.q_rows;  // an operand may have fewer rows than a box
      const int first = (block * C::kTileN + box + in_box) / 2;
      // D last: its function needs the most registers, and by then sums are needed no longer.
      CUTE_UNROLL
      for (int result = kMaxEpilogueResults; result >= 0; --result) {
        if (result < bwgemm_gated_results()) Store(acc, first, place, tile.batch, result);
      }
    }
  }

 private:
  __device__ __forceinline__ void Store(const Accumulator& acc, int first, const Place& place,
                                        int matrix, int result) {
    constexpr int kOther = kHalfBlocks * C::kTileN / 2;  // registers to the other matrix's sum
    const auto& params = static_cast<const GatedParams&>(base);
    const int lane = buffers.thread % 32;
    const int column = place.column + buffers.thread / 32 * 16 + lane / 4;
    const int row = place.row + lane % 4 * 2;
    uint32_t pairs[kRows / 4];
    CUTE_UNROLL
    for (int i = 0; i < kRows / 4; ++i) {
      const int a = first + 2 * i, b = a + kOther;
      pairs[i] = bwgemm_gated_epilogue(acc(a), acc(a + 1), acc(b), acc(b + 1), row + i / 2 * 8,
                                       column + i % 2 * 8, &params.epilogue, result);
    }
    buffers.template FillTransposedPairs<kRows>([&](int i) { return pairs[i]; });
    if (buffers.thread == 0) {
      if (place.inside) {
        const CUtensorMap& map = result == 0 ? base.d : params.results[max(result - 1, 0)];
        cute::SM90_TMA_STORE_3D::copy(&map, buffers.Lines(0), place.column, place.row, matrix);
      }
      cute::tma_store_arrive();  // without a store too: the wait for a buffer counts groups
    }
    buffers.Next();
  }
};

}  // namespace bwgemm::dense::sm90
