// The consumers' epilogue: registers -> shared memory -> D.
#pragma once

#include "cute/arch/copy_sm90_tma.hpp"
#include "cutlass/arch/barrier.h"
#include "gemm/sm90/tiles.h"
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
    const int p = tile.p * C::kTileM + C::FirstBlock(consumer) * kBlock;
    const int q = tile.q * C::kTileN;
    if constexpr (C::kSwapAb) {
      Transposed(accumulator, p, q, tile.batch);
    } else {
      Straight(accumulator, q, p, tile.batch);
    }
  }

  // No thread may leave while TMA still reads its buffers.
  __device__ __forceinline__ void Finish() {
    if (thread == 0) cute::tma_store_wait<0>();
  }

 private:
  __device__ __forceinline__ void Sync() {
    cutlass::arch::NamedBarrier::sync(128, consumer);
  }

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

  // TMA clips at the edges of D.
  __device__ __forceinline__ void Send(const uint8_t* lines, int column, int row, int matrix) {
    if (thread == 0) {
      cute::SM90_TMA_STORE_3D::copy(&params.d, lines, column, row, matrix);
      cute::tma_store_arrive();
    }
  }

  // The accumulator's rows are rows of D.
  __device__ __forceinline__ void Straight(const Accumulator& acc, int column, int row,
                                           int matrix) {
    constexpr int kChunks = C::kTileN / kColumns;
    static_assert(C::kTileN % kColumns == 0);
    CUTE_UNROLL
    for (int i = 0; i < C::kOwnBlocks * kChunks; ++i) {
      const int block = i / kChunks, chunk = i % kChunks;
      const int first = (block * C::kTileN + chunk * kColumns) / 2;
      uint8_t* lines = shared.store[consumer][buffer];
      buffer ^= 1;
      AwaitBuffer<1>();
      if constexpr (kF32) {
        WriteRowsF32(acc, first, lines, thread);
      } else {
        WriteRows<Out>(acc, first, lines, thread);
      }
      Filled();
      Send(lines, column + chunk * kColumns, row + block * kBlock, matrix);
    }
  }

  // The accumulator's columns are rows of D. f32 fills both buffers at once.
  __device__ __forceinline__ void Transposed(const Accumulator& acc, int column, int row,
                                             int matrix) {
    CUTE_UNROLL
    for (int chunk = 0; chunk < C::kTileN / C::kStoreRows; ++chunk) {
      CUTE_UNROLL
      for (int block = 0; block < C::kOwnBlocks; ++block) {
        const int first = (block * C::kTileN + chunk * C::kStoreRows) / 2;
        const int d_column = column + block * kBlock, d_row = row + chunk * C::kStoreRows;
        AwaitBuffer<kF32 ? 0 : 1>();
        uint8_t* lines = shared.store[consumer][buffer];
        if constexpr (kF32) {
          uint8_t* others = shared.store[consumer][1];
          WriteColumnsF32<C::kStoreRows>(acc, first, lines, others, thread);
          Filled();
          Send(lines, d_column, d_row, matrix);
          Send(others, d_column + kColumns, d_row, matrix);
        } else {
          WriteColumns<Out, C::kStoreRows>(acc, first, lines, thread);
          Filled();
          Send(lines, d_column, d_row, matrix);
          buffer ^= 1;
        }
      }
    }
  }
};

}  // namespace bwgemm::sm90
