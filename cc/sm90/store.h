// What the epilogues of the SM90 kernels share: results from registers through shared-memory
// buffers to TMA stores.
#pragma once

#include "core/types.h"
#include "cute/arch/copy_sm90_tma.hpp"
#include "cutlass/arch/barrier.h"
#include "sm90/lines.h"
#include "sm90/stage.h"

namespace bwgemm::sm90 {

// The store buffers of one consumer warpgroup. C says what they look like: Out, kOut,
// kOwnBlocks, kStoreColumns (elements of a 128-byte line), Shared with `store`. Named barriers 0
// and 1 belong to the consumers.
template <class C>
struct StoreBuffers {
  using Out = typename C::Out;
  static constexpr bool kF32 = C::kOut == DType::kF32;
  static constexpr int kChunk = C::kStoreColumns;
  typename C::Shared& shared;
  int consumer;
  int thread;      // of the warpgroup
  int buffer = 0;  // the one to fill next; transposed f32 results always fill both

  // Called for each tile. Reads the thread's number again, by a volatile instruction. Otherwise the
  // compiler computes what follows from it once, before the loop over tiles, and keeps it in
  // registers that the main loop of the widest ping-pong tile needs.
  __device__ __forceinline__ void RereadThread() {
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    thread %= 128;
  }

  // No thread may leave while TMA still reads its buffers.
  __device__ __forceinline__ void Finish() {
    if (thread == 0) cute::tma_store_wait<0>();
  }

  // Stores an accumulator, kColumns wide, whose rows are rows of D. place(block, column) says where
  // 64 rows of it, and kChunk columns from `column` on, go; it is called before the wait for a
  // buffer, since anything after the wait delays the store. send(lines, place) stores them. The
  // last chunk may overlap the one before it and writes those columns again, with the same values.
  template <int kColumns, class Accumulator, class Place, class Send>
  __device__ __forceinline__ void Straight(const Accumulator& acc, Place&& place, Send&& send) {
    static_assert(kColumns >= kChunk && kColumns % 16 == 0);
    constexpr int kChunks = (kColumns + kChunk - 1) / kChunk;
    CUTE_UNROLL
    for (int i = 0; i < C::kOwnBlocks * kChunks; ++i) {
      const int block = i / kChunks, column = min(i % kChunks * kChunk, kColumns - kChunk);
      const int first = (block * kColumns + column) / 2;
      const auto to = place(block, column);
      uint8_t* lines = shared.store[consumer][buffer];
      buffer ^= 1;
      Await<1>();
      if constexpr (kF32) {
        WriteRowsF32(acc, first, lines, thread);
      } else {
        WriteRows<Out>(acc, first, lines, thread);
      }
      Filled();
      send(lines, to);
    }
  }

  // Waits until TMA has read all but the last kPending groups that were sent.
  template <int kPending>
  __device__ __forceinline__ void Await() {
    if (thread == 0) cute::tma_store_wait<kPending>();
    Sync();
  }

  // All threads have filled a buffer, which TMA may read now.
  __device__ __forceinline__ void Filled() {
    cute::tma_store_fence();
    Sync();
  }

  // Columns of the accumulator are rows of D. Fills kLines lines from register `first` on: 16-bit
  // results one buffer, f32 both, 32 columns of D in each. The caller sends Lines(i) for each part
  // i, then calls Next().
  static constexpr int kTransposedParts = kBlock / kChunk;
  template <int kLines, class Accumulator>
  __device__ __forceinline__ void FillTransposed(const Accumulator& acc, int first) {
    Await<kF32 ? 0 : 1>();
    if constexpr (kF32) {
      WriteColumnsF32<kLines>(acc, first, shared.store[consumer][0], shared.store[consumer][1],
                              thread);
    } else {
      WriteColumns<Out, kLines>(acc, first, shared.store[consumer][buffer], thread);
    }
    Filled();
  }
  // The same of 16-bit results that are packed already: pair(i) as WriteColumnPairs takes it.
  template <int kLines, class Pair>
  __device__ __forceinline__ void FillTransposedPairs(Pair&& pair) {
    Await<1>();
    WriteColumnPairs<kLines>(pair, shared.store[consumer][buffer], thread);
    Filled();
  }
  __device__ __forceinline__ const uint8_t* Lines(int part) const {
    return shared.store[consumer][kF32 ? part : buffer];
  }
  __device__ __forceinline__ void Next() { buffer ^= !kF32; }

 private:
  __device__ __forceinline__ void Sync() { cutlass::arch::NamedBarrier::sync(128, consumer); }
};

}  // namespace bwgemm::sm90
