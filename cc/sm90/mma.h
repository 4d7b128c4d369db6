// The consumers' main loop of the SM90 kernels: wgmma on the stages that a producer filled.
#pragma once

#include "cute/tensor.hpp"
#include "sm90/turn.h"

namespace bwgemm::sm90 {

// C says what the stages look like: In, LayoutP, LayoutQ, TiledMma<columns>, Accumulator<columns>,
// kTileN, kPBlocks, kOwnBlocks, FirstBlock(consumer), kStages, kCluster, and Shared with p, q, full
// and empty.
template <class C>
struct Mma {
  using Full = cutlass::arch::ClusterTransactionBarrier;
  using Empty = cutlass::arch::ClusterBarrier;
  typename C::Shared& shared;
  int consumer;  // 0 or 1
  int thread;    // of the warpgroup

  // One turn. kColumns: how many of the tile's columns to compute. ready(stage, left): called when
  // a block has arrived, with the number of blocks from it to the last.
  template <int kColumns, class Ring, class Ready>
  __device__ __forceinline__ void Tile(typename C::template Accumulator<kColumns>& accumulator,
                                       int k_blocks, Ring& state, Turn<C>& turn, Ready&& ready) {
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

    auto issue = [&](int left) {
      Full::wait(&shared.full[state.index], state.phase);
      ready(state.index, left);
      warpgroup_fence_operand(accumulator);
      warpgroup_arrive();
      CUTE_UNROLL
      for (int k = 0; k < size<2>(q_fragments); ++k) {
        CUTE_UNROLL
        for (int block = 0; block < C::kOwnBlocks; ++block) {
          gemm(mma,
               p_fragments(_, 0, k, state.index * C::kPBlocks + C::FirstBlock(consumer) + block),
               q_fragments(_, 0, k, state.index), accumulator(_, block, 0));
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
    issue(k_blocks);
    uint32_t previous = state.index;
    state.Advance();
    CUTE_NO_UNROLL
    for (int left = k_blocks - 1; left > 0; --left) {
      issue(left);
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

  // Each warp tells the producers that write into this stage: all of the cluster.
  __device__ __forceinline__ void Release(uint32_t stage) {
    const uint32_t lane = thread % 32;
    if constexpr (C::kCluster == 1) {
      if (lane == 0) Empty::arrive(&shared.empty[stage]);
    } else {
      Empty::arrive(&shared.empty[stage], lane, lane < C::kCluster);
    }
  }
};

}  // namespace bwgemm::sm90
