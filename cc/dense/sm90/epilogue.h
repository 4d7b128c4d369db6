// The consumers' epilogue: registers -> shared memory -> D.
#pragma once

#include "cute/arch/copy_sm90_tma.hpp"
#include "cutlass/arch/barrier.h"
#include "dense/sm90/tiles.h"
#include "sm90/lines.h"

namespace bwgemm::sm90 {

template <class C>
struct Epilogue {
  using Out = typename C::Out;
  using Accumulator = typename C::template Accumulator<C::kTileN>;
  static constexpr bool kF32 = C::kOut == DType::kF32;
  static constexpr int kColumns = C::kStoreColumns;  // of a line
  const Params& params;
  typename C::Shared& shared;
  int consumer;
  int thread;
  int buffer = 0;  // the one to fill next

  __device__ __forceinline__ void StoreTile(const Tile& tile, const Accumulator& accumulator) {
    // Asked for again, and volatile: else everything that follows from it is computed once ahead of
    // the loop over tiles, in registers that the widest ping-pong tile's main loop does not have.
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    thread %= 128;
    const uint32_t p = PRow<C>(tile) + C::FirstBlock(consumer) * kBlock, q = QRow<C>(tile);
    if constexpr (C::kSwapAb) {
      Transposed(accumulator, p, q, tile.batch);
    } else {
      Straight(accumulator, p, q, tile.batch);
    }
  }

  // No thread may leave while TMA still reads its buffers.
  __device__ __forceinline__ void Finish() {
    if (thread == 0) cute::tma_store_wait<0>();
  }

 private:
  __device__ __forceinline__ void Sync() { cutlass::arch::NamedBarrier::sync(128, consumer); }

  // Waits until TMA has read all but the last kPending buffers that were sent.
  template <int kPending>
  __device__ __forceinline__ void AwaitBuffer() {
    if (thread == 0) cute::tma_store_wait<kPending>();
    Sync();
  }

  __device__ __forceinline__ void Filled() {
    cute::tma_store_fence();
    Sync();
  }

  // Where in D the results of a box of P and one of Q go; of boxes beside D: nowhere.
  struct Place {
    int column, row;
    bool inside;
  };
  __device__ __forceinline__ Place PlaceOf(uint32_t p, uint32_t q) {
    const int in_p = C::P::BoxRow(p, params.p_rows), in_q = C::Q::BoxRow(q, params.q_rows);
    const bool inside =
        p < static_cast<uint32_t>(params.p_rows) && q < static_cast<uint32_t>(params.q_rows);
    return {C::kSwapAb ? in_p : in_q, C::kSwapAb ? in_q : in_p, inside};
  }

  // TMA clips what a box has beyond the edge of D.
  __device__ __forceinline__ void Send(const uint8_t* lines, const Place& place, int offset,
                                       int matrix) {
    if (thread == 0) {
      if (place.inside) {
        cute::SM90_TMA_STORE_3D::copy(&params.d, lines, place.column + offset, place.row, matrix);
      }
      cute::tma_store_arrive();  // without a store too: the wait for a buffer counts groups
    }
  }

  // The accumulator's rows are rows of D.
  __device__ __forceinline__ void Straight(const Accumulator& acc, uint32_t p, uint32_t q,
                                           int matrix) {
    constexpr int kChunks = C::kTileN / kColumns, kChunksOfBox = C::Q::kBoxRows / kColumns;
    static_assert(C::kTileN % kColumns == 0 && C::Q::kBoxRows % kColumns == 0);
    CUTE_UNROLL
    for (int i = 0; i < C::kOwnBlocks * kChunks; ++i) {
      const int block = i / kChunks, chunk = i % kChunks;
      const int first = (block * C::kTileN + chunk * kColumns) / 2;
      // Known before the wait: what comes after it delays the store.
      const Place place = PlaceOf(p + block * kBlock, q + chunk / kChunksOfBox * C::Q::kBoxRows);
      uint8_t* lines = shared.store[consumer][buffer];
      buffer ^= 1;
      AwaitBuffer<1>();
      if constexpr (kF32) {
        WriteRowsF32(acc, first, lines, thread);
      } else {
        WriteRows<Out>(acc, first, lines, thread);
      }
      Filled();
      Send(lines, place, chunk % kChunksOfBox * kColumns, matrix);
    }
  }

  // The accumulator's columns are rows of D. f32 fills both buffers at once.
  __device__ __forceinline__ void Transposed(const Accumulator& acc, uint32_t p, uint32_t q,
                                             int matrix) {
    CUTE_UNROLL
    for (int i = 0; i < C::Q::kRowBoxes * C::kStores * C::kOwnBlocks; ++i) {
      const int chunk = i / C::kOwnBlocks, block = i % C::kOwnBlocks;
      const int box = chunk / C::kStores * C::Q::kBoxRows;
      const int in_box = chunk % C::kStores * (C::Q::kBoxRows - C::kStoreRows);
      const int first = (block * C::kTileN + box + in_box) / 2;
      Place place = PlaceOf(p + block * kBlock, q + box);
      place.row += in_box;
      place.inside &= place.row < params.q_rows;  // an operand may have fewer rows than a box
      AwaitBuffer<kF32 ? 0 : 1>();
      uint8_t* lines = shared.store[consumer][buffer];
      if constexpr (kF32) {
        uint8_t* others = shared.store[consumer][1];
        WriteColumnsF32<C::kStoreRows>(acc, first, lines, others, thread);
        Filled();
        Send(lines, place, 0, matrix);
        Send(others, place, kColumns, matrix);
      } else {
        WriteColumns<Out, C::kStoreRows>(acc, first, lines, thread);
        Filled();
        Send(lines, place, 0, matrix);
        buffer ^= 1;
      }
    }
  }
};

}  // namespace bwgemm::sm90
