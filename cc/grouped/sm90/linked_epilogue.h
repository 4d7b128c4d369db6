// The consumers' epilogue with a function linked in, of m-grouped kernels with swapped operands.
//
// A chunk is kStoreRows rows and 64 columns of D. Up to two matrices that the function reads are
// loaded into the store buffers, chunk by chunk, while the main loop runs; their values and then
// those of D and up to two other results take the same places. A box of a matrix may run into the
// next group's rows, whose values nobody uses; of the results only the group's rows are stored.
// There is no batch.
#pragma once

#include "grouped/linked.h"
#include "grouped/sm90/epilogue.h"

namespace bwgemm::grouped::sm90 {

struct LinkedParams : Params {
  CUtensorMap staged[kMaxStaged], stored[kMaxStaged];
  EpilogueArguments epilogue;
  int32_t pitch;  // of D and of the first of `stored`: N or, where they are side by side, 2 N
};

template <class C>
struct LinkedEpilogue {
  using Out = typename C::Out;
  using Accumulator = typename C::template Accumulator<C::kTileN>;
  using Full = cutlass::arch::ClusterTransactionBarrier;
  static constexpr int kRows = C::kStoreRows;
  static constexpr int kBlocks = C::kOwnBlocks / C::kPHalves;  // of D's columns
  static constexpr int kChunks = C::kTileN / kRows * kBlocks;  // of a tile, for one consumer
  static_assert(C::kRowsOnQ && sizeof(Out) == 2 && C::kTileN % kRows == 0);
  static_assert(kRows % 16 == 0);

  const Params& base;
  uint32_t cta_rank;
  bwgemm::sm90::StoreBuffers<C> buffers;
  uint32_t count = 0;  // of chunks so far: sets of buffers take turns

  __device__ static void InitBarriers(typename C::Shared& shared) {
    for (auto& of_consumer : shared.epilogue.loaded) {
      for (auto& barrier : of_consumer) Full::init(&barrier, 1);
    }
  }

  // Ahead of a tile's main loop.
  __device__ __forceinline__ void Begin(const grouped::Tile& tile) {
    buffers.RereadThread();
    if (Loads() == 0 || buffers.thread != 0) return;
    cute::tma_store_wait<0>();
    CUTE_NO_UNROLL
    for (int ahead = 0; ahead < min(static_cast<int>(Sets()), Chunks(tile)); ++ahead) {
      Load(tile, ahead, count + ahead);
    }
  }

  // The sums of the tile's rows. What the accumulator has besides is stored nowhere.
  __device__ __forceinline__ void Tile(const grouped::Tile& tile, Accumulator& accumulator) {
    buffers.RereadThread();
    const int chunks = __shfl_sync(0xffffffffu, Chunks(tile), 0);
    CUTE_UNROLL
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      if (chunk >= chunks) break;
      buffers.RereadThread();  // what follows from it is not kept from chunk to chunk
      Compute(tile, accumulator, chunk);
      buffers.Filled();
      // Into the set before this one, whose stores have had time to read it.
      if (chunk > 0) LoadNext(tile, chunk - 1, chunks);
      Send(tile, chunk);
      ++count;
    }
    // Rows that threads stored themselves have left the buffers, before others are loaded there.
    if (Loads() > 0) buffers.Filled();
  }

  __device__ __forceinline__ void Finish() { buffers.Finish(); }

 private:
  // Where a chunk is in D, and how many of its rows are the group's.
  struct Place {
    int column, row, valid;
  };

  __device__ __forceinline__ typename C::Shared& shared() { return buffers.shared; }
  __device__ __forceinline__ const LinkedParams& params() {
    return static_cast<const LinkedParams&>(base);
  }

  // Constants, once the epilogue is inlined.
  __device__ static int StagedResult(int i) {
    return bwgemm_epilogue_plan(i == 0 ? kStagedResult : kSecondStagedResult);
  }
  __device__ static int Loads() {
    return (bwgemm_epilogue_plan(kStagedOperand) >= 0) +
           (bwgemm_epilogue_plan(kSecondStagedOperand) >= 0);
  }
  __device__ static int SumOf() { return bwgemm_epilogue_plan(kFirstSum); }
  // Besides D.
  __device__ static int Stores() { return (StagedResult(0) >= 0) + (StagedResult(1) >= 0); }
  // A chunk's buffers are a set: each first of a matrix, then of a result, D's the first.
  __device__ static int SetBuffers() { return max(Loads(), Stores() + 1); }
  __device__ static uint32_t Sets() { return C::kStoreBuffers / SetBuffers(); }

  // The set to fill, and its buffers.
  __device__ __forceinline__ uint32_t Set() const { return count % Sets(); }
  __device__ __forceinline__ uint8_t* Lines(int in_set) {
    return shared().store[buffers.consumer][Set() * SetBuffers() + in_set];
  }

  __device__ __forceinline__ static int Chunks(const grouped::Tile& tile) {
    return (tile.rows + kRows - 1) / kRows * kBlocks;
  }

  __device__ __forceinline__ Place PlaceOf(const grouped::Tile& tile, int chunk) {
    const int block = C::FirstBlock(buffers.consumer) + chunk % kBlocks;
    const int line = chunk / kBlocks * kRows;
    return {FirstOfP<C>(tile, cta_rank) + block * kBlock, tile.row + line,
            min(tile.rows - line, kRows)};
  }

  // The matrix's values of a chunk, that is the number-th of all; by one thread.
  __device__ __forceinline__ void Load(const grouped::Tile& tile, int chunk, uint32_t number) {
    const uint32_t set = number % Sets();
    uint64_t* full = &shared().epilogue.loaded[buffers.consumer][set];
    const Place place = PlaceOf(tile, chunk);
    Full::arrive_and_expect_tx(full, Loads() * C::kStoreBytes);
    CUTE_UNROLL
    for (int i = 0; i < kMaxStaged; ++i) {
      if (i >= Loads()) break;
      cute::SM90_TMA_LOAD_3D::copy(&params().staged[i], full,
                                   static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_NORMAL),
                                   shared().store[buffers.consumer][set * SetBuffers() + i],
                                   place.column, place.row, /*matrix=*/0);
    }
  }

  // What follows chunk `last` in its buffers.
  __device__ __forceinline__ void LoadNext(const grouped::Tile& tile, int last, int chunks) {
    const int next = last + static_cast<int>(Sets());
    if (Loads() == 0 || next >= chunks || buffers.thread != 0) return;
    cute::tma_store_wait<0>();
    Load(tile, next, count + Sets() - 1);
  }

  // 8 rows at a time: registers are few.
  __device__ __forceinline__ void Compute(const grouped::Tile& tile, Accumulator& acc, int chunk) {
    const Place place = PlaceOf(tile, chunk);
    const int first = (chunk % kBlocks * C::kTileN + chunk / kBlocks * kRows) / 2;
    if (Loads() > 0) {
      Full::wait(&shared().epilogue.loaded[buffers.consumer][Set()], count / Sets() & 1);
    } else {  // a set that was loaded is free, since its load waited for that
      AwaitStores();
    }
    const int lane = buffers.thread % 32;
    const int n = place.column + buffers.thread / 32 * 16 + lane / 4;
    const int m = place.row + lane % 4 * 2, end = place.row + place.valid;
    CUTE_UNROLL
    for (int row = 0; row < kRows; row += 8) {
      const int at = row * kRowBytes;
      uint32_t staged[kMaxStaged][2] = {}, stored[kMaxStaged][2];
      float2 sum = {};  // over this thread's columns
      CUTE_UNROLL
      for (int i = 0; i < kMaxStaged; ++i) {
        if (i >= Loads()) break;
        bwgemm::sm90::ReadColumnPairs<8>(staged[i], Lines(i) + at, buffers.thread);
      }
      CUTE_UNROLL
      for (int i = 0; i < 2; ++i) {
        const int a = first + row / 2 + 2 * i;
        const int b = C::kGated ? a + C::kTileN / 2 : a;  // the sum of the second matrix
        const uint32_t loaded[kMaxStaged] = {staged[0][i], staged[1][i]};
        uint32_t others[kMaxStaged];
        float2 summed;
        const float2 pair =
            bwgemm_grouped_epilogue(acc(a), acc(a + 1), acc(b), acc(b + 1), m + row, n + i * 8,
                                    tile.expert, end, &params().epilogue, loaded, others, &summed);
        if (SumOf() >= 0 && n + i * 8 < base.n) {
          sum.x += summed.x;
          sum.y += summed.y;
        }
        acc(a) = pair.x;
        acc(a + 1) = pair.y;
        stored[0][i] = others[0];
        stored[1][i] = others[1];
      }
      if (SumOf() >= 0) StoreSums(sum, place.column, place.row + row, end);
      bwgemm::sm90::WriteColumns<Out, 8>(acc, first + row / 2, Lines(0) + at, buffers.thread);
      CUTE_UNROLL
      for (int i = 0; i < kMaxStaged; ++i) {
        if (i >= Stores()) break;
        bwgemm::sm90::WriteColumnPairs<8>([&](int j) { return stored[i][j]; }, Lines(i + 1) + at,
                                          buffers.thread);
      }
    }
  }

  // Of 8 rows, from `row` on, and the warp's part of 64 columns: eight lanes have the same rows.
  __device__ __forceinline__ void StoreSums(float2 sum, int column, int row, int end) {
    const int lane = buffers.thread % 32;
    column += buffers.thread / 32 * kPartColumns;
    CUTE_UNROLL
    for (int bit = 4; bit < 32; bit *= 2) {
      sum.x += __shfl_xor_sync(0xffffffff, sum.x, bit);
      sum.y += __shfl_xor_sync(0xffffffff, sum.y, bit);
    }
    if (lane >= 4 || column >= base.n) return;
    float* to = static_cast<float*>(params().epilogue.results[SumOf()]) +
                int64_t{column / kPartColumns} * base.m;
    const int m = row + lane * 2;
    if (m < end) to[m] = sum.x;
    if (m + 1 < end) to[m + 1] = sum.y;
  }

  // Waits until TMA has read the set to fill.
  __device__ __forceinline__ void AwaitStores() {
    if (Stores() == 0) return buffers.template Await<C::kStoreBuffers - 1>();
    if (Stores() == 1) return buffers.template Await<C::kStoreBuffers / 2 - 1>();
    buffers.template Await<C::kStoreBuffers / 3 - 1>();
  }

  __device__ __forceinline__ void Send(const grouped::Tile& tile, int chunk) {
    const Place place = PlaceOf(tile, chunk);
    const bool whole = place.valid == kRows;
    if (buffers.thread == 0) {
      if (whole) {
        cute::SM90_TMA_STORE_3D::copy(&base.d, Lines(0), place.column, place.row, /*matrix=*/0);
        CUTE_UNROLL
        for (int i = 0; i < kMaxStaged; ++i) {
          if (i >= Stores()) break;
          cute::SM90_TMA_STORE_3D::copy(&params().stored[i], Lines(i + 1), place.column, place.row,
                                        /*matrix=*/0);
        }
      }
      cute::tma_store_arrive();  // without a store too: the wait for a set counts groups
    }
    if (whole) return;
    StoreLines<Out>(base.d_data, base, params().pitch, Lines(0), place.column, place.row,
                    place.valid, /*matrix=*/0, buffers.thread);
    CUTE_UNROLL
    for (int i = 0; i < kMaxStaged; ++i) {
      if (i >= Stores()) break;
      StoreLines<Out>(params().epilogue.results[StagedResult(i)], base,
                      i == 0 ? params().pitch : base.n, Lines(i + 1), place.column, place.row,
                      place.valid, /*matrix=*/0, buffers.thread);
    }
  }
};

// In the place of an epilogue whose tiles are of any width: takes the sums over into an accumulator
// of the full width, so that the function is inlined once and not for every width.
template <class C>
struct WidestAccumulator {
  typename C::template Accumulator<C::kTileN> all;

  template <int kColumns>
  __device__ __forceinline__ void Tile(const grouped::Tile&,
                                       const typename C::template Accumulator<kColumns>& some) {
    CUTE_UNROLL
    for (int block = 0; block < C::kOwnBlocks; ++block) {
      CUTE_UNROLL
      for (int i = 0; i < C::kTileN / 2; ++i) {
        all(block * C::kTileN / 2 + i) =
            i < kColumns / 2 ? some(block * kColumns / 2 + min(i, kColumns / 2 - 1)) : 0.f;
      }
    }
  }
};

}  // namespace bwgemm::grouped::sm90
