// The epilogue warps: tensor memory -> registers -> shared memory -> D, by TMA.
//
// Each warp works for itself on its 32 lanes, through two buffers of its own. D's tensor map is
// bounded (tensor_maps.h), so a piece that ends within the group is stored like any other.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "cute/arch/copy_sm100.hpp"
#include "cute/arch/copy_sm90_tma.hpp"
#include "grouped/sm100/pipeline.h"

namespace bwgemm::grouped::sm100 {

// 16 or 32 columns of the warp's lanes: lane i gets row i.
template <int kCount>
__device__ void ReadTensorMemory(uint32_t address, uint32_t* values) {
  using Op = std::conditional_t<kCount == 32, cute::SM100_TMEM_LOAD_32dp32b32x,
                                cute::SM100_TMEM_LOAD_32dp32b16x>;
  static_assert(kCount == 32 || kCount == 16);
  cute::detail::explode(Op::copy, &address, cute::int_sequence<0>{}, values,
                        cute::make_int_sequence<kCount>{});
}

template <class Out>
__device__ Out Convert(uint32_t bits) {
  return static_cast<Out>(__uint_as_float(bits));
}

template <class Out>
__device__ uint32_t Pack(uint32_t low, uint32_t high) {
  if constexpr (std::is_same_v<Out, cutlass::bfloat16_t>) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(__uint_as_float(low), __uint_as_float(high));
    return reinterpret_cast<const uint32_t&>(pair);
  } else {
    const __half2 pair = __floats2half2_rn(__uint_as_float(low), __uint_as_float(high));
    return reinterpret_cast<const uint32_t&>(pair);
  }
}

template <class C>
struct Epilogue {
  using Out = typename C::Out;
  const typename C::Params& params;
  typename C::Shared& shared;
  uint32_t tensor_memory;
  int warp, lane;
  uint32_t cta_rank;
  RingState<C::kAccumulators> accumulator{};
  uint32_t buffer = 0;

  // Whole warp. Without blocks to contract there is no accumulator, and the result is zero.
  __device__ void Store(const Tile& tile, int k_blocks) {
    const int matrix = tile.batch * params.d_batch + tile.expert * params.d_expert;
    if constexpr (C::kPromotes) {
      Promoted(tile, k_blocks, matrix);
    } else {
      const bool computed = k_blocks > 0;
      if (computed) Wait();
      if constexpr (C::kSwapAb) {
        Swapped(tile, computed, Source(), matrix);
      } else {
        Straight(tile, computed, Source(), matrix);
      }
      if (computed) accumulator.Advance();
    }
  }

  // Shared memory must stay until TMA has read it.
  __device__ void Finish() {
    if (cute::elect_one_sync()) cute::tma_store_wait<0>();
  }

 private:
  static constexpr int kColumns = C::kStoreColumns;  // of a piece that is not swapped

  __device__ void Wait() const {
    Barrier::wait(&shared.accumulated[accumulator.index], accumulator.phase);
    FenceAfterWait();
  }

  // The warp's lanes of the accumulator.
  __device__ uint32_t Source() const {
    return tensor_memory + (static_cast<uint32_t>(warp) * 32 << 16) +
           accumulator.index * C::kAccumulatorStep;
  }

  // The warp's part of a tile whose rows lie along the lanes.
  struct Part {
    int row, valid, column;
    int pieces;
  };
  __device__ Part PartOf(const Tile& tile) const {
    const int offset = (static_cast<int>(cta_rank) * kEpilogueWarps + warp) * 32;
    Part part;
    part.row = (C::kKGrouped ? tile.m_tile * C::kTileM : tile.row) + offset;
    part.valid = Clamp(C::kKGrouped ? params.d_rows - part.row : tile.rows - offset, C::kStoreRows);
    part.column = tile.n_tile * C::kTileN;
    const int width = min(params.d_columns - part.column, C::kTileN);
    part.pieces = part.valid > 0 ? (width + kColumns - 1) / kColumns : 0;
    return part;
  }

  // The sums of every block of k, scaled, are added in registers: lane i has row i.
  __device__ void Promoted(const Tile& tile, int k_blocks, int matrix) {
    const Part part = PartOf(tile);
    const typename C::Promotion promotion(params, tile, part.row + lane, part.column);
    float sums[C::kTileN] = {};
    CUTE_NO_UNROLL
    for (int block = 0; block < k_blocks; ++block) {
      const auto scales = promotion.Of(block);
      Wait();
      CUTE_UNROLL
      for (int c = 0; c < C::kTileN; c += 32) {
        uint32_t values[32];
        ReadTensorMemory<32>(Source() + c, values);
        cutlass::arch::fence_view_async_tmem_load();
        if (c + 32 == C::kTileN) Release();
        promotion.Add(scales, c, values, sums + c);
      }
      accumulator.Advance();
    }
    // No loop, which the compiler might not unroll once a function is linked in.
    cute::for_each(cute::make_int_sequence<C::kTileN / kColumns>{}, [&](auto piece) {
      if (piece >= part.pieces) return;
      uint32_t values[kColumns];
      CUTE_UNROLL
      for (int i = 0; i < kColumns; ++i) {
        values[i] = __float_as_uint(sums[piece * kColumns + i]);
      }
      C::Results::Finish(params, tile, part.row + lane, part.column + piece * kColumns, values);
      StorePiece(values, part.column + piece * kColumns, part.row, part.valid, matrix);
    });
  }

  // Lane i is row i of the piece.
  __device__ void Straight(const Tile& tile, bool computed, uint32_t source, int matrix) {
    const auto [row, valid, column, pieces] = PartOf(tile);
    if (computed && pieces == 0) Release();
    // Accumulators that share columns: first the pieces in these, which the first accumulator has
    // at its end and the second one at its beginning.
    const bool backwards = C::kReadsScales && accumulator.index == 0;
    int wanted = pieces;  // by the next tile
    if constexpr (C::kReadsScales) {
      wanted = backwards ? pieces - (C::kTileN - kSharedColumns) / kColumns
                         : min(pieces, kSharedColumns / kColumns);
    }
    const int last_wanted = max(wanted, 1) - 1;
    CUTE_NO_UNROLL
    for (int i = 0; i < pieces; ++i) {
      const int piece = backwards ? pieces - 1 - i : i;
      uint32_t values[kColumns] = {};
      if (computed) {
        CUTE_UNROLL
        for (int c = 0; c < kColumns; c += 32) {
          ReadTensorMemory<32>(source + piece * kColumns + c, values + c);
        }
        cutlass::arch::fence_view_async_tmem_load();
        if (i == last_wanted) Release();
        C::Results::Apply(params, tile, row + lane, column + piece * kColumns, values);
      }
      C::Results::Finish(params, tile, row + lane, column + piece * kColumns, values);
      StorePiece(values, column + piece * kColumns, row, valid, matrix);
    }
  }

  __device__ void StorePiece(const uint32_t (&values)[kColumns], int column, int row, int valid,
                             int matrix) {
    uint8_t* line = Acquire() + lane * kLineBytes;
    CUTE_UNROLL
    for (int chunk = 0; chunk < kLineBytes / 16; ++chunk) {
      // TMA's 128-byte swizzle; it also spreads the lanes over the banks.
      auto* to = reinterpret_cast<uint4*>(line + (chunk ^ (lane % 8)) * 16);
      if constexpr (sizeof(Out) == 4) {
        const uint32_t* v = values + chunk * 4;
        *to = make_uint4(v[0], v[1], v[2], v[3]);
      } else {
        const uint32_t* v = values + chunk * 8;
        *to = make_uint4(Pack<Out>(v[0], v[1]), Pack<Out>(v[2], v[3]), Pack<Out>(v[4], v[5]),
                         Pack<Out>(v[6], v[7]));
      }
    }
    Send(column, row, valid, matrix);
  }

  // Lane i is column i of the piece, tensor memory's columns are rows of D.
  __device__ void Swapped(const Tile& tile, bool computed, uint32_t source, int matrix) {
    constexpr int kRows = C::kStoreRows;
    constexpr int kStep = C::kWidthStep < kRows ? C::kWidthStep : kRows;  // what an MMA has written
    const int lanes = (static_cast<int>(cta_rank) * kEpilogueWarps + warp) * 32;
    const int column = tile.n_tile * C::kTileM + lanes;
    const int pieces = column < params.d_columns ? (tile.rows + kRows - 1) / kRows : 0;
    if (computed && pieces == 0) Release();
    CUTE_NO_UNROLL
    for (int piece = 0; piece < pieces; ++piece) {
      uint32_t values[kRows] = {};
      if (computed) {
        CUTE_UNROLL
        for (int i = 0; i < kRows; i += kStep) {
          const int first = piece * kRows + i;
          if (first < tile.rows) ReadTensorMemory<kStep>(source + first, values + i);
        }
        cutlass::arch::fence_view_async_tmem_load();
        if (piece == pieces - 1) Release();
      }
      C::Results::ApplyToRows(params, tile, tile.row + piece * kRows, column + lane, values);
      Out* to = reinterpret_cast<Out*>(Acquire()) + lane;
      CUTE_UNROLL
      for (int i = 0; i < kRows; ++i) to[i * 32] = Convert<Out>(values[i]);
      Send(column, tile.row + piece * kRows, min(tile.rows - piece * kRows, kRows), matrix);
    }
  }

  // The accumulator is in registers, or what it shares with the next one: that, or the next but
  // one, may be computed.
  __device__ void Release() {
    uint64_t* drained = &shared.drained[C::kDrained == 1 ? 0 : accumulator.index];
    FenceBeforeArrive();
    __syncwarp();
    if (cute::elect_one_sync()) {
      if constexpr (C::kCtas == 2) {
        Barrier::arrive(drained, /*cta_id=*/0u, /*pred=*/1u);
      } else {
        Barrier::arrive(drained);
      }
    }
  }

  // The buffer of this piece, once TMA has read what was in it.
  __device__ uint8_t* Acquire() {
    if (cute::elect_one_sync()) cute::tma_store_wait<kStoreBuffers - 1>();
    __syncwarp();
    return shared.store[warp][buffer];
  }

  __device__ void Send(int column, int row, int valid, int matrix) {
    cute::tma_store_fence();
    __syncwarp();
    if (cute::elect_one_sync()) {
      cute::SM90_TMA_STORE_5D::copy(&params.d, shared.store[warp][buffer], column, kBound - valid,
                                    row + valid, int{kBound}, matrix);
      cute::tma_store_arrive();
    }
    buffer ^= 1;
  }
};

}  // namespace bwgemm::grouped::sm100
