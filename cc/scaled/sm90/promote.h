// The main loop of kernels that scale and add sums of 128 products in f32: the accumulators of FP8
// MMAs keep 14 bits, and scales change along K.
#pragma once

#include "cute/algorithm/clear.hpp"
#include "dense/sm90/tiles.h"
#include "scaled/sm90/block_scales.h"
#include "sm90/mma.h"

namespace bwgemm::scaled::sm90 {

template <class C>
struct PromotingMma {
  using Base = bwgemm::sm90::Mma<C>;
  using Sums = typename C::template Accumulator<C::kPart>;
  using Multiply = typename C::template Multiply<C::kPart>;
  using Scales = BlockScales<C>;
  const Params& params;
  Base mma;
  bwgemm::sm90::Turn<C>& turn;

  template <class Accumulator>
  __device__ __forceinline__ void Tile(Accumulator& accumulator, const dense::sm90::Tile& tile,
                                       int k_blocks, LaunchRing& state) {
    cute::clear(accumulator);
    turn.Wait();
    if (k_blocks == 0) {
      turn.Pass();
      return;
    }
    const int border = kScaleBlock - dense::sm90::QRow<C>(tile) % kScaleBlock;
    if constexpr (C::kSumSets == 1) {
      OneByOne(accumulator, border, k_blocks, state);
    } else {
      Overlapped(accumulator, border, k_blocks, state);
    }
  }

 private:
  // A block's MMAs wait until those of the block before are promoted: the other consumer's run
  // meanwhile.
  template <class Accumulator>
  __device__ __forceinline__ void OneByOne(Accumulator& accumulator, int border, int k_blocks,
                                           LaunchRing& state) {
    Sums sums;  // one for all, so that it stays in the same registers
    CUTE_NO_UNROLL
    for (int left = k_blocks; left > 0; --left) {
      Base::Full::wait(&mma.shared.full[state.index], state.phase);
      Scales scales;
      CUTE_UNROLL
      for (int part = 0; part < C::kParts; ++part) {
        Issue(sums, state.index, part);
        if (part == 0) scales = Scales(mma.shared, state.index, mma.consumer, mma.thread);
        if (left == 1 && part == C::kParts - 1) turn.Pass();
        bwgemm::sm90::AwaitBatches<0>();
        bwgemm::sm90::FenceResults(sums);
        if (!C::kOfRows && part == C::kParts - 1) Release(state.index);
        scales.Promote(accumulator, sums, part, border);
        if (C::kOfRows) Release(state.index);
      }
      state.Advance();
    }
  }

  // A block's MMAs run while those of the block before are promoted.
  template <class Accumulator>
  __device__ __forceinline__ void Overlapped(Accumulator& accumulator, int border, int k_blocks,
                                             LaunchRing& state) {
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
      with.Promote(accumulator, of, 0, border);
      if (C::kOfRows) Release(last);
    };
    auto step = [&](int now, int left) {
      Base::Full::wait(&mma.shared.full[state.index], state.phase);
      Issue(sums[now], state.index, 0);
      scales[now] = Scales(mma.shared, state.index, mma.consumer, mma.thread);
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

  __device__ __forceinline__ void Release(uint32_t stage) {
    __syncwarp();  // all lanes have read the stage's scales
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
