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
  static constexpr int kStepRows = 8;                          // at a time: registers are few
  static constexpr int kBlocks = C::kOwnBlocks / C::kPHalves;  // of D's columns
  static constexpr int kChunkSteps = kRows / kStepRows;
  static_assert(C::kRowsOnQ && sizeof(Out) == 2 && C::kTileN % kRows == 0);
  static_assert(kRows % kStepRows == 0);

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
    // Not unrolled, and so the function is inlined for eight rows and not for all: the instructions
    // of all, which run once a tile, do not fit into the instruction cache.
    CUTE_NO_UNROLL
    for (int step = 0; step < chunks * kChunkSteps; ++step) {
      buffers.RereadThread();  // what follows from it is not kept from step to step
      const int chunk = step / kChunkSteps;
      if (step % kChunkSteps == 0) Await();
      Compute<kColumns>(tile, accumulator, chunk, step % kChunkSteps * kStepRows);
      if (step % kChunkSteps != kChunkSteps - 1) continue;
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

  // Sums of kStepRows rows, in pairs of neighbouring rows: of a gated kernel those of both
  // matrices.
  struct Sums {
    float2 pairs[C::kPHalves][2];
    __device__ __forceinline__ float2 Pair(int half, int i) const {
      return i == 0 ? pairs[half][0] : pairs[half][1];
    }
  };
  template <int kColumns>
  __device__ __forceinline__ Sums SumsOf(const Accumulator<kColumns>& acc, int step) {
    Sums sums;
    bwgemm::sm90::WithConstant<kColumns / kStepRows * kBlocks>(step, [&](auto constant) {
      CUTE_UNROLL
      for (int half = 0; half < C::kPHalves; ++half) {
        CUTE_UNROLL
        for (int i = 0; i < 2; ++i) {
          constexpr int kFirst = decltype(constant)::value * kStepRows / 2;
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

  // Of a chunk kStepRows rows, from `row` on.
  template <int kColumns>
  __device__ __forceinline__ void Compute(const grouped::Tile& tile,
                                          const Accumulator<kColumns>& acc, int chunk, int row) {
    const int first = chunk % kBlocks * kColumns + chunk / kBlocks * kRows + row;
    const Sums sums = SumsOf<kColumns>(acc, first / kStepRows);
    const Place place = PlaceOf(tile, chunk);
    const uint32_t warp = buffers.thread / 32u, lane = buffers.thread % 32u;
    const int n = place.column + warp * 16 + lane / 4;
    const int m = place.row + row + lane % 4 * 2, end = place.row + place.valid;
    const int at = row * kRowBytes;
    float2 sum = {};  // over this thread's columns
    CUTE_UNROLL
    for (int i = 0; i < 2; ++i) {
      uint32_t staged[kMaxStaged] = {}, stored[kMaxStaged];
      CUTE_UNROLL
      for (int j = 0; j < kMaxStaged; ++j) {
        if (j >= Loads()) break;
        cute::SM75_U16x2_LDSM_T::copy(Matrix(Lines(j) + at, i), staged[j]);
      }
      const float2 z = sums.Pair(0, i), u = sums.Pair(C::kPHalves - 1, i);
      float2 summed;
      const float2 pair = bwgemm_grouped_epilogue(z.x, z.y, u.x, u.y, m, n + i * 8, tile.expert,
                                                  end, &params().epilogue, staged, stored, &summed);
      if (SumOf() >= 0 && n + i * 8 < base.n) {
        sum.x += summed.x;
        sum.y += summed.y;
      }
      Store(bwgemm::sm90::Pack<Out>(pair.x, pair.y), Lines(0) + at, i);
      CUTE_UNROLL
      for (int j = 0; j < kMaxStaged; ++j) {
        if (j >= Stores()) break;
        Store(stored[j], Lines(j + 1) + at, i);
      }
    }
    if (SumOf() >= 0) StoreSums(sum, place.column, place.row + row, end);
  }

  // Where a lane reads or writes the i-th of the warp's matrices in 8 lines: see ColumnMatrices.
  __device__ __forceinline__ cute::uint128_t& Matrix(uint8_t* lines, int i) {
    const uint32_t line = buffers.thread % 8u, chunk = (buffers.thread / 32u * 2 + i) ^ line;
    return *reinterpret_cast<cute::uint128_t*>(lines + line * kRowBytes + chunk * 16);
  }
  __device__ __forceinline__ void Store(uint32_t pair, uint8_t* lines, int i) {
    cute::SM90_U16x2_STSM_T::copy(pair, Matrix(lines, i));
  }

  // Of 8 rows, from `row` on, and the warp's part of 64 columns: eight lanes have the same rows.
  __device__ __forceinline__ void StoreSums(float2 sum, int column, int row, int end) {
    const uint32_t lane = buffers.thread % 32u;
    column += buffers.thread / 32u * kPartColumns;
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

}  // namespace bwgemm::grouped::sm90
