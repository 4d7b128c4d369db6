// The scales of the rows of two f32 operands that are multiplied as f16 terms (sm90/split.h).
#pragma once

#include "dense/sm90/epilogue.h"
#include "sm90/split.h"

namespace bwgemm::dense::sm90 {

// The first of this thread's two rows of P; the other is 8 below: see WgmmaFragment.
template <class C>
__device__ __forceinline__ int ThreadPRow(const Params& params, const Tile& tile, int consumer) {
  const uint32_t block = PRow<C>(tile) + C::FirstBlock(consumer) * kBlock;
  const int thread = threadIdx.x % 128;
  return C::P::UnitRow(block, params.p_rows) + thread / 32 * 16 + thread % 32 / 4;
}

// Their exponents: the other's are 8 further on.
template <class C>
__device__ __forceinline__ const uint8_t* ThreadPExponents(const Params& params, const Tile& tile,
                                                           int consumer) {
  const auto& own = static_cast<const ConditionalParams&>(params);
  return own.p_exponents.At(params.p_batched ? tile.batch : 0,
                            ThreadPRow<C>(params, tile, consumer));
}

// The scales of this thread's rows of P.
template <class C>
__device__ __forceinline__ void LoadRowScales(const Params& params, const Tile& tile, int consumer,
                                              float (&scales)[2]) {
  const uint8_t* exponents = ThreadPExponents<C>(params, tile, consumer);
  scales[0] = bwgemm::sm90::RowScale(exponents[0]);
  scales[1] = bwgemm::sm90::RowScale(exponents[8]);
}

// Scales a tile's results back.
template <class C>
__device__ __forceinline__ void UnscaleTile(const Params& params, const Tile& tile, int consumer,
                                            typename C::template Accumulator<C::kTileN>& acc) {
  using bwgemm::sm90::Unscaling;
  const auto& own = static_cast<const ConditionalParams&>(params);
  const uint8_t* p = ThreadPExponents<C>(params, tile, consumer);
  const Unscaling upper(p[0]), lower(p[8]);
  constexpr int kUnit = C::Q::kUnitRows;
  CUTE_UNROLL
  for (int unit = 0; unit < C::kTileN; unit += kUnit) {
    const uint8_t* q = own.q_exponents.At(params.q_batched ? tile.batch : 0,
                                          C::Q::UnitRow(QRow<C>(tile) + unit, params.q_rows)) +
                       threadIdx.x % 4 * 2;
    CUTE_UNROLL
    for (int row = 0; row < kUnit; row += 8) {  // of 8 rows of Q a thread has two
      CUTE_UNROLL
      for (int j = 0; j < 2; ++j) {
        const Unscaling other(q[row + j]);
        const int i = (unit + row) / 2 + j;
        acc(i) = upper.Undo(acc(i), other);
        acc(i + 2) = lower.Undo(acc(i + 2), other);
      }
      // Keeps the compiler from loading all exponents first, into registers that there are not.
      asm volatile("" ::: "memory");
    }
  }
}

}  // namespace bwgemm::dense::sm90
