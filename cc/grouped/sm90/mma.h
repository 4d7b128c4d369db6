// The consumers' main loop: wgmma on the stages that the producer filled.
#pragma once

#include "grouped/sm90/config.h"

namespace bwgemm::grouped::sm90 {

// Named barriers beyond the ones that CUTLASS keeps for itself.
enum Barrier : uint32_t {
  kStoreBarrier = 0,         // + consumer
  kTailBarrier = kConsumers  // ping-pong: + consumer
};

// Ping-pong: which consumer issues MMAs. The order is more than a matter of speed: only when the
// other has seen all blocks before ours arrive does the phase of a stage's barrier tell whether
// our block is there.
template <class C>
struct Turn {
  using Barrier = cutlass::arch::ClusterBarrier;
  typename C::Shared& shared;
  int consumer;
  uint32_t phase = consumer == 0;  // the first turn is consumer 0's

  __device__ __forceinline__ void Wait() {
    if constexpr (C::kPingpong) {
      Barrier::wait(&shared.turn[consumer], phase);
      phase ^= 1;
    }
  }

  // Each warp does.
  __device__ __forceinline__ void Pass() {
    if constexpr (C::kPingpong) {
      if (threadIdx.x % 32 == 0) Barrier::arrive(&shared.turn[consumer ^ 1]);
    }
  }
};

template <class C>
struct Mma {
  using Full = cutlass::arch::ClusterTransactionBarrier;
  using Empty = cutlass::arch::ClusterBarrier;
  typename C::Shared& shared;
  int consumer;  // 0 or 1
  int thread;    // of the warpgroup

  // kColumns: how many of the tile's columns to compute. One turn.
  template <int kColumns>
  __device__ __forceinline__ void Tile(int k_blocks, int tail, RingState<C::kStages>& state,
                                       Turn<C>& turn,
                                       typename C::template Accumulator<kColumns>& accumulator) {
    using namespace cute;
    typename C::template TiledMma<kColumns> mma;
    auto slice = mma.get_slice(thread);
    Tensor p = make_tensor(make_smem_ptr(reinterpret_cast<typename C::In*>(shared.p)),
                           typename C::LayoutP{});
    Tensor q = make_tensor(make_smem_ptr(reinterpret_cast<typename C::In*>(shared.q)),
                           typename C::LayoutQ{});
    // Descriptors. Q's are the widest MMA's: a narrower one reads the first rows of the same tile.
    auto widest = typename C::template TiledMma<C::kTileN>{}.get_slice(thread);
    Tensor p_fragments = slice.make_fragment_A(slice.partition_A(p));    // (1, 1, K, block)
    Tensor q_fragments = widest.make_fragment_B(widest.partition_B(q));  // (1, 1, K, stage)

    auto issue = [&](uint32_t stage) {
      warpgroup_fence_operand(accumulator);
      warpgroup_arrive();
      CUTE_UNROLL
      for (int k = 0; k < size<2>(q_fragments); ++k) {
        CUTE_UNROLL
        for (int block = 0; block < C::kOwnBlocks; ++block) {
          gemm(mma, p_fragments(_, 0, k, stage * C::kPBlocks + C::FirstBlock(consumer) + block),
               q_fragments(_, 0, k, stage), accumulator(_, block, 0));
        }
        mma.accumulate_ = GMMA::ScaleOut::One;
      }
      warpgroup_commit_batch();
    };

    turn.Wait();
    if (k_blocks == 0) {
      turn.Pass();
      clear(accumulator);
      return;
    }
    mma.accumulate_ = GMMA::ScaleOut::Zero;
    Wait(state, tail != 0 && k_blocks == 1, tail);
    issue(state.index);
    uint32_t previous = state.index;
    state.Advance();
    CUTE_NO_UNROLL
    for (int left = k_blocks - 1; left > 0; --left) {
      Wait(state, tail != 0 && left == 1, tail);
      issue(state.index);
      warpgroup_wait<1>();  // the block before this one is done
      warpgroup_fence_operand(accumulator);
      Release(previous);
      previous = state.index;
      state.Advance();
    }
    turn.Pass();  // now, so that the other's first MMAs follow our last ones without a gap
    warpgroup_wait<0>();
    warpgroup_fence_operand(accumulator);
    Release(previous);
  }

  __device__ __forceinline__ void Wait(const RingState<C::kStages>& state, bool zero_tail,
                                       int tail) {
    Full::wait(&shared.full[state.index], state.phase);
    if constexpr (C::kContract) {
      if (zero_tail) ZeroTail(state.index, tail);
    }
  }

  // Each warp tells the producers that write into this stage: with a shared Q, both CTAs'.
  __device__ __forceinline__ void Release(uint32_t stage) {
    const uint32_t lane = thread % 32;
    if constexpr (C::kCluster == 1) {
      if (lane == 0) Empty::arrive(&shared.empty[stage]);
    } else {
      Empty::arrive(&shared.empty[stage], lane, lane < C::kCluster);
    }
  }

  // The last block of a group's rows runs into its neighbour's: those rows become zeros in both
  // operands (in one would not do: 0 x inf is NaN). Operands are MN-major here, a row is one line
  // of 128 bytes in each box.
  __device__ __forceinline__ void ZeroTail(uint32_t stage, int valid) {
    constexpr int kOwners = C::kTileConsumers * 128;  // threads
    const int id = C::kPingpong ? thread : consumer * 128 + thread;
    auto zero = [&](uint8_t* base, int boxes) {
      for (int i = id; i < boxes * kBlock * (kRowBytes / 16); i += kOwners) {
        const int line = i / (kRowBytes / 16);
        if (line % kBlock >= valid) reinterpret_cast<uint4*>(base)[i] = make_uint4(0, 0, 0, 0);
      }
    };
    zero(shared.p[stage], C::kPBlocks);
    zero(shared.q[stage], C::kQBoxes);
    cutlass::arch::fence_view_async_shared();  // the MMA reads through the async proxy
    cutlass::arch::NamedBarrier::sync(kOwners, kTailBarrier + (C::kPingpong ? consumer : 0));
  }
};

}  // namespace bwgemm::grouped::sm90
