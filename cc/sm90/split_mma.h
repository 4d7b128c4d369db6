// The consumers' main loop where P is f32: it is split on its way from shared memory to registers,
// and both terms are multiplied with the same Q.
#pragma once

#include "sm90/mma.h"
#include "sm90/split.h"
#include "sm90/wgmma_registers.h"

namespace bwgemm::sm90 {

// The f32 values of one MMA that a thread holds: see WgmmaFragment.
struct SplitSource {
  float2 pairs[4];
};

// The fragments of both terms.
struct SplitFragment {
  WgmmaFragment high, low;

  __device__ __forceinline__ void Assign(const SplitSource& source) {
    CUTE_UNROLL
    for (int i = 0; i < 4; ++i) {
      const SplitPair terms = Split(source.pairs[i].x, source.pairs[i].y);
      high.pairs[i] = terms.high;
      low.pairs[i] = terms.low;
    }
  }
};

// C: as for Mma, with P a stage of f32 (see stage.h) whose block of 64 rows one consumer
// multiplies.
template <class C>
struct SplitMma {
  static_assert(C::kOwnBlocks == 1);
  using Full = cutlass::arch::ClusterTransactionBarrier;
  static constexpr int kSteps = C::kTileK / kMmaDepth;
  static_assert(kSteps % 2 == 0, "the fragments of two steps take turns, from block to block");
  typename C::Shared& shared;
  int consumer;
  int thread;

  // See Mma::Tile.
  template <int kColumns, class Ring, class Ready>
  __device__ __forceinline__ void Tile(typename C::template Accumulator<kColumns>& accumulator,
                                       int k_blocks, Ring& state, Turn<C>& turn, Ready&& ready) {
    using Multiply = WgmmaRegisters<kColumns, C::Q::kKMajor>;
    const typename C::DescriptorQ q(shared.q);
    auto results = accumulator(cute::_, 0);

    turn.Wait();
    if (k_blocks == 0) {
      turn.Pass();
      cute::clear(accumulator);
      return;
    }
    SplitFragment fragments[2];  // of this step and of the next
    Full::wait(&shared.full[state.index], state.phase);
    ready(state.index, k_blocks);
    fragments[0].Assign(Load(state.index, 0));
    FenceResults(accumulator);
    bool accumulate = false;
    uint32_t previous = state.index;
    CUTE_NO_UNROLL
    for (int left = k_blocks; left > 0; --left) {
      const uint32_t stage = state.index;
      CUTE_UNROLL
      for (int step = 0; step < kSteps; ++step) {
        const uint64_t q_step = q.At(stage, step * kMmaDepth);
        ArriveWarpgroup();
        Multiply::Issue(fragments[step % 2].high, q_step, results, accumulate);
        Multiply::Issue(fragments[step % 2].low, q_step, results, true);
        CommitBatch();
        accumulate = true;
        SplitSource next;
        if (step + 1 < kSteps) {
          next = Load(stage, step + 1);
        } else if (left > 1) {
          state.Advance();
          Full::wait(&shared.full[state.index], state.phase);
          ready(state.index, left - 1);
          next = Load(state.index, 0);
        }
        // The batch before this one has read the other fragment, and if it was the last of its
        // stage, the stage.
        AwaitBatches<1>();
        if (step == 0 && left < k_blocks) Release(previous);
        if (step + 1 < kSteps || left > 1) fragments[(step + 1) % 2].Assign(next);
      }
      previous = stage;
    }
    state.Advance();
    turn.Pass();
    AwaitBatches<0>();
    FenceResults(accumulator);
    Release(previous);
  }

 private:
  __device__ __forceinline__ void Release(uint32_t stage) {
    Mma<C>{shared, consumer, thread}.Release(stage);
  }

  // The values of one MMA at element kMmaDepth * step of K, from this consumer's block of 64 rows.
  // Lines are swizzled: the 16-byte chunk c of line l lies at c ^ (l % 8).
  __device__ __forceinline__ SplitSource Load(uint32_t stage, int step) const {
    constexpr int kLine = 32;  // elements
    constexpr int kRowBytes = kLine * static_cast<int>(sizeof(float));
    const uint8_t* p = shared.p[stage];
    const int lane = thread % 32, first_row = thread / 32 * 16 + lane / 4;
    const int first_k = step * kMmaDepth % kLine + 2 * (lane % 4);
    SplitSource source;
    if constexpr (C::P::kKMajor) {
      // A line for each row of all blocks, holding 32 elements of K; then the next 32.
      p += (step * kMmaDepth / kLine * C::kTileM + C::FirstBlock(consumer) * kMmaRows) * kRowBytes;
      CUTE_UNROLL
      for (int i = 0; i < 4; ++i) {
        const int row = first_row + i % 2 * 8, k = first_k + i / 2 * 8;
        const int chunk = (k / 4) ^ (row % 8);
        source.pairs[i] =
            *reinterpret_cast<const float2*>(p + row * kRowBytes + chunk * 16 + k % 4 * 4);
      }
    } else {
      // A line for each element of K, holding 32 rows; then the next 32.
      p += C::FirstBlock(consumer) * (kMmaRows / kLine) * C::kTileK * kRowBytes;
      CUTE_UNROLL
      for (int i = 0; i < 4; ++i) {
        const int row = first_row + i % 2 * 8;
        auto at = [&](int k) {
          const int chunk = (row % kLine / 4) ^ (k % 8);
          return *reinterpret_cast<const float*>(p + (row / kLine * C::kTileK + k) * kRowBytes +
                                                 chunk * 16 + row % 4 * 4);
        };
        const int k = step * kMmaDepth + 2 * (lane % 4) + i / 2 * 8;
        source.pairs[i] = make_float2(at(k), at(k + 1));
      }
    }
    return source;
  }
};

}  // namespace bwgemm::sm90
