// The consumers' main loop where P is f32: it is split in 16-bit terms on its way from shared
// memory to registers. Q is of the terms' type: one plane, or the planes of its own terms.
#pragma once

#include <type_traits>

#include "sm90/high_sums.h"
#include "sm90/mma.h"
#include "sm90/split.h"
#include "sm90/wgmma_registers.h"

namespace bwgemm::sm90 {

// The f32 values of one MMA that a thread holds: see WgmmaFragment.
struct SplitSource {
  float2 pairs[4];
};

// The fragments of all terms.
template <int kTerms, Infinity kInfinity>
struct SplitFragment {
  WgmmaFragment terms[kTerms];

  __device__ __forceinline__ void Assign(const SplitSource& source) {
    TermPairs<kTerms> split[4];
    Split<kTerms, kInfinity>(source.pairs, split);
    CUTE_UNROLL
    for (int i = 0; i < 4; ++i) {
      CUTE_UNROLL
      for (int term = 0; term < kTerms; ++term) terms[term].pairs[i] = split[i].pairs[term];
    }
  }
  // The f16 terms of rows times `scales`, of the thread's upper and lower row.
  __device__ __forceinline__ void AssignScaled(const SplitSource& source, const float* scales) {
    static_assert(kTerms == 2);
    CUTE_UNROLL
    for (int i = 0; i < 4; ++i) {
      const float scale = scales[i % 2];
      const auto split = SplitF16(source.pairs[i].x * scale, source.pairs[i].y * scale);
      CUTE_UNROLL
      for (int term = 0; term < kTerms; ++term) terms[term].pairs[i] = split.pairs[term];
    }
  }
};

// C: as for Mma, with P a stage of f32 (see stage.h) of which each consumer multiplies a block of
// 64 rows. Also kTerms of P; kPlanes of Q, which follow one another in a stage; and kRunBlocks,
// blocks of K after which the upper parts of the sums leave the accumulators.
template <class C>
struct SplitMma {
  static_assert(C::kOwnBlocks == 1 && !C::kPingpong);
  using Full = cutlass::arch::ClusterTransactionBarrier;
  using Fragment =
      SplitFragment<C::kTerms, C::kPlanes == 1 ? Infinity::kAfterLargest : Infinity::kAfterOne>;
  static constexpr int kSteps = C::kTileK / kMmaDepth;
  // Narrow tiles have registers to spare. All steps of a block are loaded, split and issued
  // together, so that their latencies overlap.
  static constexpr bool kNarrow = C::kTileN <= kNarrowTile;
  static constexpr int kBatchSteps = kNarrow ? kSteps : 1;  // whose MMAs are issued together
  static constexpr int kBatches = kSteps / kBatchSteps;     // of a block
  // Batches that are kept: in wide tiles with two terms this one and the next, which is split while
  // this one's MMAs run. Else, while one consumer splits, the other's MMAs run.
  static constexpr int kKept = !kNarrow && C::kTerms == 2 ? 2 : 1;
  static_assert(kBatches % kKept == 0, "batches take turns, from block to block");
  struct Batch {
    Fragment steps[kBatchSteps];
  };
  struct BatchSource {
    SplitSource steps[kBatchSteps];
  };
  // Term i and plane j are multiplied if i + j < kOrders. The other products are smaller than the
  // error of the terms.
  static constexpr int kOrders = C::kTerms > C::kPlanes ? C::kTerms : C::kPlanes;
  // Narrow tiles have registers for a second accumulator. It takes all products but that of the
  // first terms. Its sums are a hundredth of the others, and so is what truncation loses of them.
  static constexpr bool kApart = C::kTerms == 3 && kNarrow;
  typename C::Shared& shared;
  int consumer;
  int thread;
  float p_scales[2] = {1.0f, 1.0f};  // of the thread's rows of P, if C::kScalesRows

  // See Mma::Tile.
  template <int kColumns, class Ring>
  __device__ __forceinline__ void Tile(typename C::template Accumulator<kColumns>& accumulator,
                                       int k_blocks, Ring& state, Turn<C>&) {
    const typename C::DescriptorQ q(shared.q);
    auto results = accumulator(cute::_, 0);
    typename C::template Accumulator<kColumns> small_sums;  // if kApart
    auto small = small_sums(cute::_, 0);

    if (k_blocks == 0) {
      cute::clear(accumulator);
      return;
    }
    HighSums<kColumns / 2> high;
    high.Clear();
    Batch batches[kKept];
    Full::wait(&shared.full[state.index], state.phase);
    Assign(batches[0], Load(state.index, 0));
    FenceResults(accumulator);
    bool accumulate = false;
    // The other consumer is half a run behind, so that its MMAs go on while this one waits.
    int run = consumer == 0 ? C::kRunBlocks : C::kRunBlocks / 2;
    CUTE_NO_UNROLL
    for (int left = k_blocks;;) {
      uint32_t previous = state.index;
      CUTE_NO_UNROLL
      for (const int end = max(left - run, 0), begin = left; left > end; --left) {
        const uint32_t stage = state.index;
        CUTE_UNROLL
        for (int batch = 0; batch < kBatches; ++batch) {
          const bool add_small = batch > 0 || left < begin;  // each run begins anew
          IssueBatch<kColumns>(batches[batch % kKept], q, stage, batch, results, accumulate, small,
                               add_small);
          accumulate = true;
          const bool last = batch + 1 == kBatches, more = !last || left > 1;
          BatchSource next;
          if (!last) {
            next = Load(stage, batch + 1);
          } else if (more) {
            state.Advance();
            Full::wait(&shared.full[state.index], state.phase);
            next = Load(state.index, 0);
          }
          // The MMAs that this waits for have read the next batch's registers, and the stage if
          // they were its last.
          AwaitBatches<kKept - 1>();
          if constexpr (kKept == 1) {
            if (last) Release(stage);
          } else {
            if (batch == 0 && left < begin) Release(previous);
          }
          if (more) {
            Fence(next);
            Assign(batches[(batch + 1) % kKept], next);
          }
        }
        previous = stage;
      }
      AwaitBatches<0>();
      FenceResults(accumulator);
      if constexpr (kKept > 1) Release(previous);
      if constexpr (kApart) {
        FenceResults(small_sums);
        CUTE_UNROLL
        for (int i = 0; i < kColumns / 2; ++i) results(i) += small(i);
        FenceResults(small_sums);
      }
      if (left == 0) break;
      high.Take(results);
      FenceResults(accumulator);
      run = C::kRunBlocks;
    }
    state.Advance();
    high.AddTo(results);
  }

 private:
  // Keeps the compiler from splitting the values earlier: MMAs still read the registers that the
  // terms are written to.
  __device__ __forceinline__ static void Fence(BatchSource& source) {
    CUTE_UNROLL
    for (SplitSource& step : source.steps) {
      CUTE_UNROLL
      for (float2& pair : step.pairs) asm volatile("" : "+f"(pair.x), "+f"(pair.y)::"memory");
    }
  }

  __device__ __forceinline__ void Assign(Batch& batch, const BatchSource& source) const {
    CUTE_UNROLL
    for (int step = 0; step < kBatchSteps; ++step) {
      if constexpr (C::kScalesRows) {
        batch.steps[step].AssignScaled(source.steps[step], p_scales);
      } else {
        batch.steps[step].Assign(source.steps[step]);
      }
    }
  }

  // All products of one batch's terms, of each step the small ones first, so that they are not lost
  // in large sums. accumulate: whether there are results to add to; add_small: to `small`, if
  // kApart.
  template <int kColumns, class Results>
  __device__ __forceinline__ static void IssueBatch(const Batch& batch,
                                                    const typename C::DescriptorQ& q,
                                                    uint32_t stage, int number, Results& results,
                                                    bool accumulate, Results& small,
                                                    bool add_small) {
    using Multiply = WgmmaRegisters<typename C::InQ, kColumns, C::Q::kKMajor>;
    ArriveWarpgroup();
    CUTE_UNROLL
    for (int step = 0; step < kBatchSteps; ++step) {
      CUTE_UNROLL
      for (int order = kOrders - 1; order >= 0; --order) {
        CUTE_UNROLL
        for (int term = C::kTerms - 1; term >= 0; --term) {
          const int plane = order - term;
          if (plane < 0 || plane >= C::kPlanes) continue;
          const bool first = step == 0 && order == kOrders - 1 && term == C::kTerms - 1;
          const bool first_result = step == 0 && (kApart ? order == 0 : first);
          const auto plane_q =
              q.At(stage * C::kPlanes + plane, (number * kBatchSteps + step) * kMmaDepth);
          const WgmmaFragment& p = batch.steps[step].terms[term];
          if (kApart && order > 0) {
            Multiply::Issue(p, plane_q, small, !first || add_small);
          } else {
            Multiply::Issue(p, plane_q, results, !first_result || accumulate);
          }
        }
      }
    }
    CommitBatch();
  }

  __device__ __forceinline__ void Release(uint32_t stage) {
    Mma<C>{shared, consumer, thread}.Release(stage);
  }

  __device__ __forceinline__ BatchSource Load(uint32_t stage, int batch) const {
    BatchSource source;
    CUTE_UNROLL
    for (int step = 0; step < kBatchSteps; ++step) {
      source.steps[step] = LoadStep(stage, batch * kBatchSteps + step);
    }
    return source;
  }

  // The values of one MMA at element kMmaDepth * step of K, from this consumer's block of 64 rows.
  // Lines are swizzled: the 16-byte chunk c of line l lies at c ^ (l % 8).
  __device__ __forceinline__ SplitSource LoadStep(uint32_t stage, int step) const {
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
      const int k = step * kMmaDepth + 2 * (lane % 4);
      uint32_t first = (first_row / kLine * C::kTileK + k) * kRowBytes +
                       ((first_row % kLine / 4) ^ (k % 8)) * 16 + first_row % 4 * 4;
      // The other addresses differ in two bits and by constants; this keeps the compiler from
      // holding all of them in registers.
      asm volatile("" : "+r"(first));
      auto at = [&](int in_row, int in_k) {
        return *reinterpret_cast<const float*>(p + (first ^ (in_row / 4 ^ in_k % 2) * 16) +
                                               in_k * kRowBytes);
      };
      CUTE_UNROLL
      for (int i = 0; i < 4; ++i) {
        const int in_row = i % 2 * 8, in_k = i / 2 * 8;
        source.pairs[i] = make_float2(at(in_row, in_k), at(in_row, in_k + 1));
      }
    }
    return source;
  }
};

// The main loop of a kernel.
template <class C>
using MainLoop = std::conditional_t<C::kSplitsP, SplitMma<C>, Mma<C>>;

}  // namespace bwgemm::sm90
