// The main loop of kernels that scale and add sums of 128 products in f32: the accumulators of FP8
// MMAs keep 14 bits, and scales change along K.
#pragma once

#include "cute/algorithm/clear.hpp"
#include "scaled/sm90/block_scales.h"
#include "sm90/mma.h"

namespace bwgemm::scaled::sm90 {

// kColumns of a tile's columns: all of them where they are computed in parts.
template <class C, int kColumns>
struct PromotingMma {
  static_assert(C::kParts == 1 || kColumns == C::kTileN);
  static constexpr int kPart = kColumns / C::kParts;
  using Base = bwgemm::sm90::Mma<C>;
  using Sums = typename C::template Accumulator<kPart>;
  using Multiply = typename C::template Multiply<kPart>;
  using Scales = BlockScales<C>;
  const Base& mma;
  bwgemm::sm90::Turn<C>& turn;

  // q_row: the tile's first row of Q.
  template <class Accumulator, class Ring>
  __device__ __forceinline__ void Tile(Accumulator& accumulator, uint32_t q_row, int k_blocks,
                                       Ring& state) {
    cute::clear(accumulator);
    turn.Wait();
    if (k_blocks == 0) {
      turn.Pass();
      return;
    }
    const int border = kScaleBlock - q_row % kScaleBlock;
    if constexpr (C::kSumSets == 1) {
      OneByOne(accumulator, border, k_blocks, state);
    } else {
      Overlapped(accumulator, border, k_blocks, state);
    }
  }

 private:
  // A batch of MMAs waits until the one before is promoted. If the two consumers take turns, the
  // other's MMAs run meanwhile; without turns both issue, and promote, at the same time.
  template <class Accumulator, class Ring>
  __device__ __forceinline__ void OneByOne(Accumulator& accumulator, int border, int k_blocks,
                                           Ring& state) {
    Sums sums;  // one for all, so that it stays in the same registers
    CUTE_NO_UNROLL
    for (int left = k_blocks; left > 0; --left) {
      Base::Full::wait(&mma.shared.full[state.index], state.phase);
      Scales scales;
      CUTE_UNROLL
      for (int part = 0; part < C::kParts; ++part) {
        if constexpr (C::kTakesTurns) turn.Take();
        Issue(sums, state.index, part);
        if constexpr (C::kTakesTurns) turn.Give();
        if (part == 0) scales = AwaitScales(state);
        if (left == 1 && part == C::kParts - 1) turn.Pass();
        bwgemm::sm90::AwaitBatches<0>();
        bwgemm::sm90::FenceResults(sums);
        if (!C::kOfRows && part == C::kParts - 1) Release(state.index);
        scales.template Promote<kPart>(accumulator, sums, part, border);
        if (C::kOfRows && part == C::kParts - 1) Release(state.index);
      }
      state.Advance();
    }
  }

  // A block's MMAs run while those of the block before are promoted.
  template <class Accumulator, class Ring>
  __device__ __forceinline__ void Overlapped(Accumulator& accumulator, int border, int k_blocks,
                                             Ring& state) {
    Sums sums[2];
    Scales scales[2];
    cute::clear(sums[1]);  // promoted while the first block's MMAs run
    uint32_t last = 0;     // the stage of the block before
    bool first = true;
    // A stage is given back when its scales are in registers; those of rows are read one by one.
    auto promote = [&](Sums& of, const Scales& with) {
      bwgemm::sm90::FenceResults(of);
      if (!C::kOfRows && !first) Release(last);
      if (C::kOfRows && first) return;
      with.template Promote<kPart>(accumulator, of, 0, border);
      if (C::kOfRows) Release(last);
    };
    auto step = [&](int now, int left) {
      Base::Full::wait(&mma.shared.full[state.index], state.phase);
      Issue(sums[now], state.index, 0);
      scales[now] = AwaitScales(state);
      if (left == 1) turn.Pass();
      bwgemm::sm90::AwaitBatches<1>();
      promote(sums[now ^ 1], scales[now ^ 1]);
      first = false;
      last = state.index;
      state.Advance();
    };
    int left = k_blocks;
    CUTE_NO_UNROLL
    for (; left > 1; left -= 2) {
      step(0, left);
      step(1, left - 1);
    }
    if (left == 1) {
      step(0, 1);
      bwgemm::sm90::AwaitBatches<0>();
      promote(sums[0], scales[0]);
    } else {
      bwgemm::sm90::AwaitBatches<0>();
      promote(sums[1], scales[1]);
    }
  }

  template <class Ring>
  __device__ __forceinline__ Scales AwaitScales(const Ring& state) {
    Base::Empty::wait(&mma.shared.scales_full[state.index], state.phase);
    return Scales(mma.shared, state.index, mma.consumer, mma.thread);
  }

  // The stage's scales, then its operands.
  __device__ __forceinline__ void Release(uint32_t stage) {
    __syncwarp();  // all lanes have read the scales
    bwgemm::sm90::ArriveForWarp(&mma.shared.scales_empty[stage], mma.thread % 32);
    mma.Release(stage);
  }

  __device__ __forceinline__ void Issue(Sums& sums, uint32_t stage, int part) {
    const typename C::DescriptorP p(mma.shared.p);
    const typename C::DescriptorPart q(mma.shared.q);
    bwgemm::sm90::FenceResults(sums);
    bwgemm::sm90::ArriveWarpgroup();
    CUTE_UNROLL
    for (int k = 0; k < C::kTileK; k += Multiply::kDepth) {
      Multiply::Issue(p.At(stage * C::kPBlocks + C::FirstBlock(mma.consumer), k),
                      q.At(stage * C::kParts + part, k), sums(cute::_, 0), k > 0);
    }
    bwgemm::sm90::CommitBatch();
  }
};

}  // namespace bwgemm::scaled::sm90
