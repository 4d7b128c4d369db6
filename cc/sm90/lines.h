// Results from registers to lines of 128 bytes in shared memory, from where TMA takes them.
//
// A warpgroup has 64 x columns results in the MMA's fragment layout (PTX ISA "wgmma register
// fragments"): thread t holds, for every 8 columns j and half h, the pair of row 16 * (t / 32) + 8
// * h + (t % 32) / 4 and columns 8 * j + 2 * (t % 4) + {0, 1}. Lines are swizzled like TMA's
// 128-byte mode: the 16-byte chunk c of line r lies at c ^ (r % 8), which spreads both the writes
// and the reads over all banks.
//
// `first` is the register of `registers` that the lines begin with, `thread` that of the warpgroup.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "cute/arch/copy_sm75.hpp"
#include "cute/arch/copy_sm90.hpp"
#include "cutlass/numeric_types.h"

namespace bwgemm::sm90 {

constexpr int kLineBytes = 128;

template <class Out>
__device__ __forceinline__ uint32_t Pack(float low, float high) {
  if constexpr (std::is_same_v<Out, cutlass::bfloat16_t>) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return reinterpret_cast<const uint32_t&>(pair);
  } else {
    const __half2 pair = __floats2half2_rn(low, high);
    return reinterpret_cast<const uint32_t&>(pair);
  }
}

// A line for each row, of 64 columns of 16 bits: four 8 x 8 matrices an instruction, lane l gives
// the address of line l % 8 of matrix l / 8.
template <class Out, class Registers>
__device__ __forceinline__ void WriteRows(const Registers& registers, int first, uint8_t* lines,
                                          int thread) {
  const int lane = thread % 32;
  const int line = thread / 32 * 16 + (lane / 8 % 2) * 8 + lane % 8;
  CUTE_UNROLL
  for (int j = 0; j < 8; j += 2) {
    const int a = first + j * 4;
    const int chunk = (j + lane / 16) ^ (line % 8);
    cute::SM90_U32x4_STSM_N::copy(
        Pack<Out>(registers(a), registers(a + 1)), Pack<Out>(registers(a + 2), registers(a + 3)),
        Pack<Out>(registers(a + 4), registers(a + 5)),
        Pack<Out>(registers(a + 6), registers(a + 7)),
        *reinterpret_cast<cute::uint128_t*>(lines + line * kLineBytes + chunk * 16));
  }
}

// Where lane l of a warp reads or writes the 8 x 8 matrices of 16 bits at columns 8 * j and 8 * (j
// + 1) of its 16 lines: line l % 8 of matrix l / 8.
__device__ __forceinline__ cute::uint128_t& RowMatrices(uint8_t* lines, int j, int thread) {
  const int lane = thread % 32;
  const int line = thread / 32 * 16 + (lane / 8 % 2) * 8 + lane % 8;
  const int chunk = (j + lane / 16) ^ (line % 8);
  return *reinterpret_cast<cute::uint128_t*>(lines + line * kLineBytes + chunk * 16);
}

// 16 columns of such lines, from column 16 * quarter on: pairs[i] is what `registers(first + 8 *
// quarter + 2 * i)` and the next are in WriteRows.
__device__ __forceinline__ void ReadQuarter(uint32_t (&pairs)[4], uint8_t* lines, int quarter,
                                            int thread) {
  cute::SM75_U32x4_LDSM_N::copy(RowMatrices(lines, 2 * quarter, thread), pairs[0], pairs[1],
                                pairs[2], pairs[3]);
}
__device__ __forceinline__ void WriteQuarter(const uint32_t (&pairs)[4], uint8_t* lines,
                                             int quarter, int thread) {
  cute::SM90_U32x4_STSM_N::copy(pairs[0], pairs[1], pairs[2], pairs[3],
                                RowMatrices(lines, 2 * quarter, thread));
}

// A line for each row, of 32 columns of f32.
template <class Registers>
__device__ __forceinline__ void WriteRowsF32(const Registers& registers, int first, uint8_t* lines,
                                             int thread) {
  const int lane = thread % 32;
  CUTE_UNROLL
  for (int j = 0; j < 4; ++j) {
    CUTE_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int a = first + j * 4 + half * 2;
      const int line = thread / 32 * 16 + half * 8 + lane / 4;
      const int chunk = (2 * j + lane % 4 / 2) ^ (line % 8);
      *reinterpret_cast<float2*>(lines + line * kLineBytes + chunk * 16 + lane % 2 * 8) =
          make_float2(registers(a), registers(a + 1));
    }
  }
}

// Where lane l of a warp reads or writes transposed 8 x 8 matrices of 16 bits of the warp's 16
// rows, in the line of `column`: rows 8 * (l / 8 % 2) on.
__device__ __forceinline__ cute::uint128_t& ColumnMatrices(uint8_t* lines, int column, int thread) {
  const int chunk = (thread / 32 * 2 + thread % 32 / 8 % 2) ^ (column % 8);
  return *reinterpret_cast<cute::uint128_t*>(lines + column * kLineBytes + chunk * 16);
}

// A line for each of kColumns columns, of all 64 rows in 16 bits: transposed 8 x 8 matrices, lane l
// gives the address of column l % 8 of matrix l / 8. pair(i): the thread's i-th pair of results.
template <int kColumns, class Pair>
__device__ __forceinline__ void WriteColumnPairs(Pair&& pair, uint8_t* lines, int thread) {
  const int lane = thread % 32;
  constexpr int kPairs = kColumns / 16;
  CUTE_UNROLL
  for (int j = 0; j < kPairs; ++j) {
    cute::SM90_U16x8_STSM_T::copy(pair(4 * j), pair(4 * j + 1), pair(4 * j + 2), pair(4 * j + 3),
                                  ColumnMatrices(lines, j * 16 + lane / 16 * 8 + lane % 8, thread));
  }
  if constexpr (kColumns % 16 != 0) {  // the other half of the lanes' addresses is not used
    cute::SM90_U16x4_STSM_T::copy(pair(4 * kPairs), pair(4 * kPairs + 1),
                                  ColumnMatrices(lines, kPairs * 16 + lane % 8, thread));
  }
}
template <class Out, int kColumns, class Registers>
__device__ __forceinline__ void WriteColumns(const Registers& registers, int first, uint8_t* lines,
                                             int thread) {
  WriteColumnPairs<kColumns>(
      [&](int i) { return Pack<Out>(registers(first + 2 * i), registers(first + 2 * i + 1)); },
      lines, thread);
}

// The same lines, from which pair(i) becomes pairs[i].
template <int kColumns, class Pairs>
__device__ __forceinline__ void ReadColumnPairs(Pairs& pairs, uint8_t* lines, int thread) {
  constexpr int kPairs = kColumns / 16;
  CUTE_UNROLL
  for (int j = 0; j < kPairs; ++j) {
    cute::SM75_U16x8_LDSM_T::copy(
        ColumnMatrices(lines, j * 16 + thread % 32 / 16 * 8 + thread % 8, thread), pairs[4 * j],
        pairs[4 * j + 1], pairs[4 * j + 2], pairs[4 * j + 3]);
  }
  if constexpr (kColumns % 16 != 0) {
    cute::SM75_U16x4_LDSM_T::copy(ColumnMatrices(lines, kPairs * 16 + thread % 8, thread),
                                  pairs[4 * kPairs], pairs[4 * kPairs + 1]);
  }
}

// A line for each of kColumns columns, of 32 rows of f32: rows of warps 0 and 1 go to `low`, those
// of 2 and 3 to `high`.
template <int kColumns, class Registers>
__device__ __forceinline__ void WriteColumnsF32(const Registers& registers, int first, uint8_t* low,
                                                uint8_t* high, int thread) {
  const int lane = thread % 32, warp = thread / 32;
  uint8_t* lines = warp < 2 ? low : high;
  CUTE_UNROLL
  for (int i = 0; i < 4; ++i) {  // the same place in every 8 x 8 matrix
    const int line = lane % 4 * 2 + i % 2;
    const int row = warp % 2 * 16 + i / 2 * 8 + lane / 4;
    uint8_t* to = lines + line * kLineBytes + ((row / 4) ^ line) * 16 + row % 4 * 4;
    CUTE_UNROLL
    for (int j = 0; j < kColumns / 8; ++j) {
      *reinterpret_cast<float*>(to + j * 8 * kLineBytes) = registers(first + j * 4 + i);
    }
  }
}

}  // namespace bwgemm::sm90
