// The consumers' epilogue with a function linked in, of kernels without swapped operands.
//
// What it reads is on its way while the main loop runs: rows in shared memory of their own, a
// matrix in the store buffers, where its values and then the results take the same places. What it
// stores leaves by TMA, D's values and those of another result side by side.
#pragma once

#include "cute/arch/copy_sm90_desc.hpp"
#include "dense/sm90/epilogue.h"

namespace bwgemm::dense::sm90 {

template <class C>
struct LinkedEpilogue {
  using Accumulator = typename C::template Accumulator<C::kTileN>;
  using Full = cutlass::arch::ClusterTransactionBarrier;
  static constexpr int kColumns = C::kStoreColumns, kChunks = C::kTileN / kColumns;
  static constexpr int kSteps = C::kOwnBlocks * kChunks;  // of a tile, for one consumer
  static constexpr int kPairs = kColumns / 4;             // of a step, for one thread
  static_assert(kColumns == 64 && C::kTileN % 64 == 0 && C::Q::kUnitRows == 64);
  static_assert(C::P::kUnitRows == kBlock && C::kStoreBuffers <= 4);

  const Params& base;
  bwgemm::sm90::StoreBuffers<C> buffers;  // `buffer`: the set to fill next
  uint32_t phases = 0;                    // bit i: of set i's barrier; bit 4: of the rows'

  __device__ static void InitBarriers(typename C::Shared& shared) {
    for (int i = 0; i < bwgemm::sm90::kConsumers; ++i) {
      Full::init(&shared.epilogue.rows_full[i], 1);
      for (auto& barrier : shared.epilogue.loaded[i]) Full::init(&barrier, 1);
    }
  }

  __device__ __forceinline__ void Begin(const Tile& tile) {
    buffers.RereadThread();
    if (buffers.thread != 0) return;
    LoadRows(tile);
    if (Loads()) {
      cute::tma_store_wait<0>();
      CUTE_UNROLL
      for (int step = 0; step < C::kStoreBuffers && step < kSteps; ++step) {
        if (step < Sets()) Load(tile, step, buffers.buffer + step);
      }
    }
  }

  __device__ __forceinline__ void StoreTile(const Tile& tile, Accumulator& accumulator) {
    buffers.RereadThread();
    if (RowOf(0) >= 0) Await(&shared().epilogue.rows_full[buffers.consumer], 4);
    CUTE_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      Step(tile, accumulator, step);
    }
  }

  __device__ __forceinline__ void Finish() { buffers.Finish(); }

 private:
  __device__ __forceinline__ typename C::Shared& shared() { return buffers.shared; }
  __device__ __forceinline__ const LinkedParams& params() {
    return static_cast<const LinkedParams&>(base);
  }

  // Constants, once the epilogue is inlined.
  __device__ static bool Loads() { return bwgemm_epilogue_plan(kStagedOperand) >= 0; }
  __device__ static bool StoresTwo() { return bwgemm_epilogue_plan(kStagedResult) >= 0; }
  __device__ static int RowOf(int i) { return bwgemm_epilogue_plan(kFirstRow + i); }
  // Buffers that one step fills are a set.
  __device__ static int Sets() { return C::kStoreBuffers / (StoresTwo() ? 2 : 1); }

  __device__ __forceinline__ uint8_t* Lines(int set, int result) {
    const int first = StoresTwo() ? 2 * set : set;
    return shared().store[buffers.consumer][first + result];
  }

  __device__ __forceinline__ Place PlaceOfStep(const Tile& tile, int step) {
    const int block = C::FirstBlock(buffers.consumer) + step / kChunks;
    return PlaceOf<C>(base, PRow<C>(tile) + block * kBlock,
                      QRow<C>(tile) + step % kChunks * kColumns);
  }

  // Each by one thread. Everyone has read what was there: see Step's last wait.
  __device__ __forceinline__ void LoadRows(const Tile& tile) {
    uint64_t* full = &shared().epilogue.rows_full[buffers.consumer];
    int bytes = 0;
    CUTE_UNROLL
    for (int i = 0; i < kMaxRows; ++i) {
      if (RowOf(i) >= 0) bytes += (RowOf(i) >> 8) * C::kTileN;
    }
    if (bytes == 0) return;
    Full::arrive_and_expect_tx(full, bytes);
    uint8_t* to = shared().epilogue.rows[buffers.consumer];
    CUTE_UNROLL
    for (int i = 0; i < kMaxRows; ++i) {
      if (RowOf(i) < 0) continue;
      const int element = RowOf(i) >> 8;
      auto* from = static_cast<const uint8_t*>(params().epilogue.operands[RowOf(i) & 255]);
      CUTE_UNROLL
      for (int chunk = 0; chunk < kChunks; ++chunk) {
        const int column = PlaceOfStep(tile, chunk).column;
        cute::SM90_BULK_COPY_G2S::copy(from + int64_t{column} * element, full, to,
                                       kColumns * element);
        to += kColumns * element;
      }
    }
  }

  __device__ __forceinline__ void Load(const Tile& tile, int step, int set) {
    set %= Sets();
    const Place place = PlaceOfStep(tile, step);
    uint64_t* full = &shared().epilogue.loaded[buffers.consumer][set];
    Full::arrive_and_expect_tx(full, C::kStoreBytes);
    cute::SM90_TMA_LOAD_3D::copy(&params().staged, full,
                                 static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_NORMAL),
                                 Lines(set, 0), place.column, place.row, tile.batch);
  }

  __device__ __forceinline__ void Await(uint64_t* barrier, int bit) {
    Full::wait(barrier, phases >> bit & 1);
    phases ^= 1u << bit;
  }

  __device__ __forceinline__ void AwaitStores(bool all) {
    constexpr int kMost = C::kStoreBuffers;
    if (all) {
      buffers.template Await<0>();
    } else if (StoresTwo()) {
      buffers.template Await<kMost / 2 - 1>();
    } else {
      buffers.template Await<kMost - 1>();
    }
  }

  // 64 rows and columns of D.
  __device__ __forceinline__ void Step(const Tile& tile, Accumulator& acc, int step) {
    const Place place = PlaceOfStep(tile, step);
    const int set = buffers.buffer, first = step * kPairs * 2;
    uint32_t staged[kPairs] = {}, stored[kPairs];
    if (Loads()) {
      Await(&shared().epilogue.loaded[buffers.consumer][set], set);
      bwgemm::sm90::ReadPairs(staged, Lines(set, 0), buffers.thread);
    }
    const int lane = buffers.thread % 32;
    const int row = place.row + buffers.thread / 32 * 16 + lane / 4, column = lane % 4 * 2;
    CUTE_UNROLL
    for (int i = 0; i < kPairs; ++i) {
      const int a = first + 2 * i, n = column + i / 2 * 8;
      const float2 pair = bwgemm_epilogue(
          acc(a), acc(a + 1), row + i % 2 * 8, place.column + n, &params().epilogue, staged[i],
          &stored[i], shared().epilogue.rows[buffers.consumer], step % kChunks * kColumns + n);
      acc(a) = pair.x;
      acc(a + 1) = pair.y;
    }
    // A set that was loaded is free, since its load waited for that.
    if (!Loads()) AwaitStores(false);
    bwgemm::sm90::WriteRows<typename C::Out>(acc, first, Lines(set, 0), buffers.thread);
    if (StoresTwo()) bwgemm::sm90::WritePairs(stored, Lines(set, 1), buffers.thread);
    buffers.Filled();
    if (buffers.thread == 0) {
      if (place.inside) {
        cute::SM90_TMA_STORE_3D::copy(&base.d, Lines(set, 0), place.column, place.row, tile.batch);
        if (StoresTwo()) {
          cute::SM90_TMA_STORE_3D::copy(&params().stored, Lines(set, 1), place.column, place.row,
                                        tile.batch);
        }
      }
      cute::tma_store_arrive();  // without a store too: the wait for a buffer counts groups
      if (Loads()) LoadNext(tile, step, set);
    }
    buffers.buffer = (set + 1) % Sets();
  }

  // The next load goes to the set before this one, whose store has had a step's time; of few sets
  // to this one.
  __device__ __forceinline__ void LoadNext(const Tile& tile, int step, int set) {
    const int lag = Sets() > 2 ? 1 : 0, next = step - lag + Sets();
    if (step < lag || next >= kSteps) return;
    if (lag == 1) {
      cute::tma_store_wait<1>();
    } else {
      cute::tma_store_wait<0>();
    }
    Load(tile, next, set + next - step);
  }
};

}  // namespace bwgemm::dense::sm90
