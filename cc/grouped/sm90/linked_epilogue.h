// The consumers' epilogue with a function linked in, of m-grouped kernels with swapped operands.
//
// A chunk is kStoreRows rows and 64 columns of D. Up to two matrices that the function reads are
// loaded into the store buffers, chunk by chunk, while the main loop runs; their values and then
// those of D and up to two other results take the same places. A box of a matrix may run into the
// next group's rows, whose values nobody uses; of the results only the group's rows are stored.
// There is no batch.
//
// Each width of tile has an accumulator and an epilogue of its own. With one accumulator that all
// widths fill, the compiler runs out of registers and has every MMA wait for the one before it.
#pragma once

#include "grouped/linked.h"
#include "grouped/sm90/epilogue.h"
#include "sm90/with_constant.h"

namespace bwgemm::grouped::sm90 {

struct LinkedParams : Params {
  CUtensorMap staged[kMaxStaged], stored[kMaxStaged];
  EpilogueArguments epilogue;
  int32_t pitch;  // of D and of the first of `stored`: N or, where they are side by side, 2 N
};

template <class C>
struct LinkedEpilogue {
  using Out = typename C::Out;
  template <int kColumns>
  using Accumulator = typename C::template Accumulator<kColumns>;
  using Full = cutlass::arch::ClusterTransactionBarrier;
  static constexpr int kRows = C::kStoreRows;
  static constexpr int kBlocks = C::kOwnBlocks / C::kPHalves;  // of D's columns
  static constexpr int kPairs = kRows / 4;  // of neighbouring rows, of a thread in a chunk
  static_assert(C::kRowsOnQ && sizeof(Out) == 2 && C::kTileN % kRows == 0);

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

  // kColumns: as many of the tile's columns as were computed.
  template <int kColumns>
  __device__ __forceinline__ void Tile(const grouped::Tile& tile,
                                       const Accumulator<kColumns>& accumulator) {
    buffers.RereadThread();
    const int chunks = __shfl_sync(0xffffffffu, Chunks(tile), 0);
    // Not unrolled, and so the function is inlined for one chunk and not for all: the instructions
    // of all, which run once a tile, do not fit into the instruction cache.
    CUTE_NO_UNROLL
    for (int chunk = 0; chunk < chunks; ++chunk) {
      buffers.RereadThread();  // what follows from it is not kept from chunk to chunk
      Await();
      const float sum = Compute<kColumns>(tile, accumulator, chunk);
      buffers.Filled();
      // Into the set before this one, whose stores have had time to read it.
      if (chunk > 0) LoadNext(tile, chunk - 1, chunks);
      Send(tile, chunk);
      // Behind the fence in Filled, which would wait for it.
      if (SumOf() >= 0) StoreSum(sum, PlaceOf(tile, chunk), kRows - 8);
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
  static_assert(C::kStoreBuffers >= 3, "a set has up to three buffers");
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
    CUTE_NO_UNROLL
    for (int i = 0; i < Loads(); ++i) {
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

  // The thread's sums of a chunk: of a gated kernel those of both matrices.
  struct Sums {
    float2 pairs[C::kPHalves][kPairs];
  };
  template <int kColumns>
  __device__ __forceinline__ Sums SumsOf(const Accumulator<kColumns>& acc, int chunk) {
    constexpr int kChunks = kColumns / kRows;  // of a block
    Sums sums;
    bwgemm::sm90::WithConstant<kChunks * kBlocks>(
        chunk % kBlocks * kChunks + chunk / kBlocks, [&](auto constant) {
          constexpr int kFirst = decltype(constant)::value * 2 * kPairs;
          CUTE_UNROLL
          for (int half = 0; half < C::kPHalves; ++half) {
            CUTE_UNROLL
            for (int i = 0; i < kPairs; ++i) {
              const int at = kFirst + half * kColumns / 2 + 2 * i;
              sums.pairs[half][i] = make_float2(acc(at), acc(at + 1));
            }
          }
        });
    return sums;
  }

  // Until the set has what the function reads, or may be filled.
  __device__ __forceinline__ void Await() {
    if (Loads() > 0) {
      Full::wait(&shared().epilogue.loaded[buffers.consumer][Set()], count / Sets() & 1);
    } else {  // a set that was loaded is free, since its load waited for that
      AwaitStores();
    }
  }

  // Returns what is still to be stored of the sums: those of the last 8 rows.
  template <int kColumns>
  __device__ __forceinline__ float Compute(const grouped::Tile& tile,
                                           const Accumulator<kColumns>& acc, int chunk) {
    const Sums sums = SumsOf<kColumns>(acc, chunk);
    const Place place = PlaceOf(tile, chunk);
    const uint32_t warp = buffers.thread / 32u, lane = buffers.thread % 32u;
    const int n = place.column + warp * 16 + lane / 4;
    const int m = place.row + lane % 4 * 2, end = place.row + place.valid;
    float sum_of_row = 0;
    CUTE_UNROLL
    for (int row = 0; row < kRows; row += 8) {
      const int at = row * kRowBytes;
      uint32_t staged[kMaxStaged][2] = {}, stored[1 + kMaxStaged][2];
      float2 sum = {};  // over this thread's columns
      CUTE_UNROLL
      for (int j = 0; j < kMaxStaged; ++j) {
        if (j >= Loads()) break;
        bwgemm::sm90::ReadColumnPairs<8>(staged[j], Lines(j) + at, buffers.thread);
      }
      CUTE_UNROLL
      for (int i = 0; i < 2; ++i) {
        const float2 z = sums.pairs[0][row / 4 + i], u = sums.pairs[C::kPHalves - 1][row / 4 + i];
        const uint32_t loaded[kMaxStaged] = {staged[0][i], staged[1][i]};
        uint32_t others[kMaxStaged];
        float2 summed;
        const float2 pair =
            bwgemm_grouped_epilogue(z.x, z.y, u.x, u.y, m + row, n + i * 8, tile.expert, end,
                                    &params().epilogue, loaded, others, &summed);
        if (SumOf() >= 0 && n + i * 8 < base.n) {
          sum.x += summed.x;
          sum.y += summed.y;
        }
        stored[0][i] = bwgemm::sm90::Pack<Out>(pair.x, pair.y);
        stored[1][i] = others[0];
        stored[2][i] = others[1];
      }
      if (SumOf() >= 0) {
        sum_of_row = SumOfRow(sum);
        if (row + 8 < kRows) StoreSum(sum_of_row, place, row);
      }
      CUTE_UNROLL
      for (int j = 0; j <= kMaxStaged; ++j) {
        if (j > Stores()) break;
        bwgemm::sm90::WriteColumnPairs<8>([&](int i) { return stored[j][i]; }, Lines(j) + at,
                                          buffers.thread);
      }
    }
    return sum_of_row;
  }

  // Of 8 rows over the warp's part of a chunk's columns. Eight lanes have parts of rows 2 * (lane %
  // 4) and the next: the first four end with the sum of the former, from lane 16 on of the latter.
  __device__ __forceinline__ float SumOfRow(float2 parts) {
    const bool odd = buffers.thread & 16;
    float sum =
        (odd ? parts.y : parts.x) + __shfl_xor_sync(0xffffffff, odd ? parts.x : parts.y, 16);
    sum += __shfl_xor_sync(0xffffffff, sum, 8);
    return sum + __shfl_xor_sync(0xffffffff, sum, 4);
  }

  // Of the 8 rows of a chunk from `first` on.
  __device__ __forceinline__ void StoreSum(float sum, const Place& place, int first) {
    const uint32_t lane = buffers.thread % 32u;
    const int row = first + lane % 4 * 2 + lane / 16;
    const int column = place.column + buffers.thread / 32u * kPartColumns;
    if (lane & 12 || row >= place.valid || column >= base.n) return;
    float* to = static_cast<float*>(params().epilogue.results[SumOf()]) +
                int64_t{column / kPartColumns} * base.m;
    to[place.row + row] = sum;
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

}  // namespace bwgemm::grouped::sm90
