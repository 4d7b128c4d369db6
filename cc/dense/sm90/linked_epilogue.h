// The consumers' epilogue with a function linked in, of kernels without swapped operands.
//
// What it reads is loaded while the main loop runs: rows into shared memory of their own, one or
// two matrices into the store buffers, where their values and then the results take the same
// places. What it stores leaves by TMA, D's values and those of another result side by side. Sums
// over rows stay in registers until the tile's last rows are added.
#pragma once

#include "cute/arch/copy_sm90_desc.hpp"
#include "dense/sm90/column_sums.h"
#include "dense/sm90/epilogue.h"

namespace bwgemm::dense::sm90 {

template <class C>
struct LinkedEpilogue {
  using Accumulator = typename C::template Accumulator<C::kTileN>;
  using Full = cutlass::arch::ClusterTransactionBarrier;
  static constexpr int kColumns = C::kStoreColumns, kChunks = C::kTileN / kColumns;
  static constexpr int kAllChunks = C::kOwnBlocks * kChunks;  // of a tile, for one consumer
  static constexpr int kQuarters = 4;                         // of a chunk, 16 columns each
  static constexpr int kPairs = kColumns / 4;                 // of a chunk, for one thread
  static_assert(kColumns == 64 && C::kTileN % 64 == 0 && C::Q::kUnitRows == 64);
  static_assert(C::P::kUnitRows == kBlock && C::kStoreBuffers <= 4);
  static_assert(kAllChunks % (C::kStoreBuffers / 2) == 0, "whole sets of chunks");

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
      for (int ahead = 0; ahead < C::kStoreBuffers; ++ahead) {
        const int first = ahead * SetChunks();
        if (ahead < Sets() && first < kAllChunks) Load(tile, first, buffers.buffer + ahead);
      }
    }
  }

  __device__ __forceinline__ void StoreTile(const Tile& tile, Accumulator& accumulator) {
    buffers.RereadThread();
    if (RowOf(0) >= 0) Await(&shared().epilogue.rows_full[buffers.consumer], 4);
    Sums sums = {};
    CUTE_UNROLL
    for (int chunk = 0; chunk < kAllChunks; ++chunk) {
      const int in_set = chunk % SetChunks();
      Compute(tile, accumulator, chunk, in_set, sums);
      if (chunk >= kAllChunks - kChunks) StoreSums(tile, chunk % kChunks, sums);
      if (in_set + 1 == SetChunks()) Send(tile, chunk - in_set);
    }
  }

  __device__ __forceinline__ void Finish() { buffers.Finish(); }

 private:
  // Of the tile's rows that this warp has, columns 2 * lane and the next of each chunk of columns.
  using Sums = float2[kMaxSums][kChunks];

  __device__ __forceinline__ typename C::Shared& shared() { return buffers.shared; }
  __device__ __forceinline__ const LinkedParams& params() {
    return static_cast<const LinkedParams&>(base);
  }

  // Constants, once the epilogue is inlined.
  __device__ static bool Loads() { return bwgemm_epilogue_plan(kStagedOperand) >= 0; }
  __device__ static bool LoadsTwo() {
    return C::kLoadsTwo && bwgemm_epilogue_plan(kSecondStagedOperand) >= 0;
  }
  __device__ static bool StoresTwo() { return bwgemm_epilogue_plan(kStagedResult) >= 0; }
  __device__ static int RowOf(int i) { return bwgemm_epilogue_plan(kFirstRow + i); }
  __device__ static int ElementOfRow(int i) { return RowOf(i) >> 8 & 255; }  // its bytes
  __device__ static int SumOf(int i) { return bwgemm_epilogue_plan(kFirstSum + i); }
  // Buffers that are filled and leave together are a set: two chunks of D, or one chunk of two
  // matrices or results.
  __device__ static bool TwoOfChunk() { return StoresTwo() || LoadsTwo(); }
  __device__ static int SetBuffers() { return TwoOfChunk() || C::kStoreBuffers > 2 ? 2 : 1; }
  __device__ static int SetChunks() { return TwoOfChunk() ? 1 : SetBuffers(); }
  __device__ static int Sets() { return C::kStoreBuffers / SetBuffers(); }

  __device__ __forceinline__ uint8_t* Lines(int set, int in_set) {
    return shared().store[buffers.consumer][set * SetBuffers() + in_set];
  }

  __device__ __forceinline__ Place PlaceOfChunk(const Tile& tile, int chunk) {
    const int block = C::FirstBlock(buffers.consumer) + chunk / kChunks;
    return PlaceOf<C>(base, PRow<C>(tile) + block * kBlock,
                      QRow<C>(tile) + chunk % kChunks * kColumns);
  }

  // Each by one thread. Everyone has read what was there: see Send's barrier.
  __device__ __forceinline__ void LoadRows(const Tile& tile) {
    uint64_t* full = &shared().epilogue.rows_full[buffers.consumer];
    int bytes = 0;
    CUTE_UNROLL
    for (int i = 0; i < kMaxRows; ++i) {
      if (RowOf(i) >= 0) bytes += ElementOfRow(i) * C::kTileN;
    }
    if (bytes == 0) return;
    Full::arrive_and_expect_tx(full, bytes);
    uint8_t* to = shared().epilogue.rows[buffers.consumer];
    CUTE_UNROLL
    for (int i = 0; i < kMaxRows; ++i) {
      if (RowOf(i) < 0) continue;
      const int element = ElementOfRow(i);
      auto* from = static_cast<const uint8_t*>(params().epilogue.operands[RowOf(i) & 255]);
      if (RowOf(i) & kRowOfMatrix) {
        from += int64_t{tile.batch} * params().epilogue.n * element;
      }
      CUTE_UNROLL
      for (int chunk = 0; chunk < kChunks; ++chunk) {
        const int column = PlaceOfChunk(tile, chunk).column;
        cute::SM90_BULK_COPY_G2S::copy(from + int64_t{column} * element, full, to,
                                       kColumns * element);
        to += kColumns * element;
      }
    }
  }

  // The matrices' values of a set's chunks, of which the first is given.
  __device__ __forceinline__ void Load(const Tile& tile, int first, int set) {
    set %= Sets();
    uint64_t* full = &shared().epilogue.loaded[buffers.consumer][set];
    Full::arrive_and_expect_tx(full, (LoadsTwo() ? 2 : SetChunks()) * C::kStoreBytes);
    CUTE_UNROLL
    for (int i = 0; i < 2; ++i) {
      if (i == SetChunks()) break;
      const Place place = PlaceOfChunk(tile, first + i);
      cute::SM90_TMA_LOAD_3D::copy(&params().staged, full,
                                   static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_NORMAL),
                                   Lines(set, i), place.column, place.row, tile.batch);
    }
    if (!LoadsTwo()) return;
    if constexpr (C::kLoadsTwo) {
      const Place place = PlaceOfChunk(tile, first);
      cute::SM90_TMA_LOAD_3D::copy(&static_cast<const TwoMatrixParams&>(base).staged_too, full,
                                   static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_NORMAL),
                                   Lines(set, 1), place.column, place.row, tile.batch);
    }
  }

  // What follows the set that begins with chunk `first`, in its buffers.
  __device__ __forceinline__ void LoadNext(const Tile& tile, int first) {
    const int next = first + Sets() * SetChunks();
    if (!Loads() || next >= kAllChunks || buffers.thread != 0) return;
    cute::tma_store_wait<0>();
    Load(tile, next, buffers.buffer + Sets() - 1);
  }

  __device__ __forceinline__ void Await(uint64_t* barrier, int bit) {
    Full::wait(barrier, phases >> bit & 1);
    phases ^= 1u << bit;
  }

  // Waits until TMA has read the set to fill: of two sets, the one that was sent before the last.
  __device__ __forceinline__ void AwaitStores() {
    if (Sets() == 1) {
      buffers.template Await<0>();
    } else {
      buffers.template Await<1>();
    }
  }

  // 64 rows and columns of D, a quarter of the columns at a time, for which registers suffice.
  __device__ __forceinline__ void Compute(const Tile& tile, Accumulator& acc, int chunk, int in_set,
                                          Sums& sums) {
    const Place place = PlaceOfChunk(tile, chunk);
    const int set = buffers.buffer;
    uint32_t staged[2][kMaxStaged][4] = {};  // this quarter's and the next one's values
    auto read = [&](int quarter) {
      auto& to = staged[quarter % 2];
      bwgemm::sm90::ReadQuarter(to[0], Lines(set, in_set), quarter, buffers.thread);
      if (LoadsTwo()) {
        bwgemm::sm90::ReadQuarter(to[1], Lines(set, 1), quarter, buffers.thread);
      }
    };
    if (Loads()) {
      if (in_set == 0) Await(&shared().epilogue.loaded[buffers.consumer][set], set);
      read(0);
    }
    const int lane = buffers.thread % 32;
    const int row = place.row + buffers.thread / 32 * 16 + lane / 4, column = lane % 4 * 2;
    const bool counts[] = {Counts(tile, chunk, row), Counts(tile, chunk, row + 8)};
    ColumnSums of_chunk[kMaxSums];
    float2 of_rows[kMaxSums];  // of this thread's, in 8 columns
    uint32_t filled[2][2][4];  // this quarter's and the last one's: of D, of another result
    auto write = [&](int quarter) {
      const auto& from = filled[quarter % 2];
      bwgemm::sm90::WriteQuarter(from[0], Lines(set, in_set), quarter, buffers.thread);
      if (StoresTwo()) {
        bwgemm::sm90::WriteQuarter(from[1], Lines(set, 1), quarter, buffers.thread);
      }
    };
    CUTE_UNROLL
    for (int quarter = 0; quarter < kQuarters; ++quarter) {
      if (Loads() && quarter + 1 < kQuarters) read(quarter + 1);
      // Into the set before this one, whose store has had time to read it.
      if (quarter == 1 && in_set == 0 && chunk > 0 && Sets() > 1) {
        LoadNext(tile, chunk - SetChunks());
      }
      auto& results = filled[quarter % 2];
      CUTE_UNROLL
      for (int j = 0; j < 4; ++j) {
        const int i = quarter * 4 + j, a = 2 * (chunk * kPairs + i), n = column + i / 2 * 8;
        float2 summed[kMaxSums];
        const uint32_t loaded[] = {staged[quarter % 2][0][j], staged[quarter % 2][1][j]};
        const float2 pair = bwgemm_epilogue(acc(a), acc(a + 1), row + i % 2 * 8, place.column + n,
                                            tile.batch, &params().epilogue, loaded, &results[1][j],
                                            shared().epilogue.rows[buffers.consumer],
                                            chunk % kChunks * kColumns + n, summed);
        results[0][j] = bwgemm::sm90::Pack<typename C::Out>(pair.x, pair.y);
        CUTE_UNROLL
        for (int s = 0; s < kMaxSums; ++s) {
          if (SumOf(s) < 0) continue;
          if (i % 2 == 0) of_rows[s] = make_float2(0, 0);
          if (counts[i % 2]) {
            of_rows[s].x += summed[s].x;
            of_rows[s].y += summed[s].y;
          }
          if (i % 2 != 0) of_chunk[s].Add(i / 2, of_rows[s], lane);
        }
      }
      // A quarter is written behind the next one's first loads from shared memory, since no
      // compiler moves these across. A set that was loaded is free: its load waited for that.
      if (quarter > 0) write(quarter - 1);
      if (!Loads() && in_set == 0 && quarter == 0) AwaitStores();
    }
    write(kQuarters - 1);
    CUTE_UNROLL
    for (int s = 0; s < kMaxSums; ++s) {
      if (SumOf(s) < 0) continue;
      sums[s][chunk % kChunks].x += of_chunk[s].total().x;
      sums[s][chunk % kChunks].y += of_chunk[s].total().y;
    }
  }

  // Whether a row's results belong to the sums. Rows beyond D do not, nor do rows that the previous
  // block has too, because this block was moved to lie inside D.
  __device__ __forceinline__ bool Counts(const Tile& tile, int chunk, int row) {
    const uint32_t block = C::FirstBlock(buffers.consumer) + chunk / kChunks;
    return row >= PRow<C>(tile) + block * kBlock && row < static_cast<uint32_t>(base.p_rows);
  }

  // Of a chunk of columns, except those that the previous chunk has too, because this chunk was
  // moved to lie inside D. Chunks without rows in D are zeros, and are stored too.
  __device__ __forceinline__ void StoreSums(const Tile& tile, int chunk, const Sums& sums) {
    const uint32_t q = QRow<C>(tile) + chunk * kColumns;
    if (PRow<C>(tile) >= static_cast<uint32_t>(base.p_rows) ||
        q >= static_cast<uint32_t>(base.q_rows)) {
      return;
    }
    const EpilogueArguments& arguments = params().epilogue;
    const int column = C::Q::UnitRow(q, base.q_rows) + buffers.thread % 32 * 2;
    const int64_t row =
        tile.batch * PartialSumRows(arguments.m, C::kTileM, C::kTileConsumers) +
        (int64_t{tile.p} * C::kTileConsumers + (C::kTileConsumers == 1 ? 0 : buffers.consumer)) *
            4 +
        buffers.thread / 32;
    CUTE_UNROLL
    for (int s = 0; s < kMaxSums; ++s) {
      if (SumOf(s) < 0 || column < static_cast<int>(q) || column >= arguments.n) continue;
      auto* to = static_cast<float*>(arguments.results[SumOf(s)]) + row * arguments.n + column;
      *reinterpret_cast<float2*>(to) = sums[s][chunk];
    }
  }

  __device__ __forceinline__ void Send(const Tile& tile, int first) {
    const int set = buffers.buffer;
    buffers.Filled();
    if (buffers.thread == 0) {
      CUTE_UNROLL
      for (int i = 0; i < 2; ++i) {
        if (i == SetChunks()) break;
        const Place place = PlaceOfChunk(tile, first + i);
        if (!place.inside) continue;
        cute::SM90_TMA_STORE_3D::copy(&base.d, Lines(set, i), place.column, place.row, tile.batch);
        if (StoresTwo()) {
          cute::SM90_TMA_STORE_3D::copy(&params().stored, Lines(set, 1), place.column, place.row,
                                        tile.batch);
        }
      }
      cute::tma_store_arrive();  // even without a store: the wait for a set counts groups
    }
    if (Sets() == 1) LoadNext(tile, first);
    buffers.buffer = (set + 1) % Sets();
  }
};

}  // namespace bwgemm::dense::sm90
