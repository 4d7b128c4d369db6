// The consumers' main loop: wgmma on the stages that the producer filled.
#pragma once

#include "grouped/sm90/config.h"
#include "grouped/sm90/pipeline.h"

namespace bwgemm::grouped::sm90 {

// Named barriers beyond the ones that CUTLASS keeps for itself.
enum Barrier : uint32_t { kStoreBarrier = 0 /* + consumer */, kTailBarrier = kConsumers };

template <class C>
struct Mma {
  using Full = cutlass::arch::ClusterTransactionBarrier;
  using Empty = cutlass::arch::ClusterBarrier;
  // (64 x kTileN of one warpgroup's MMA, block, 1)
  using Accumulator = decltype(cute::partition_fragment_C(
      typename C::TiledMma{},
      cute::Shape<cute::Int<kBlock * C::kBlocksPerConsumer>, cute::Int<C::kTileN>>{}));
  typename C::Shared& shared;
  int consumer;  // 0 or 1
  int thread;    // of the warpgroup

  // Consumer c computes blocks c, c + 2 of P, so that the first rows of a tile are spread over
  // both. `kBlocks` of them are there; the others of a tile that a group fills in part cost
  // nothing.
  template <int kBlocks>
  __device__ __forceinline__ void Tile(int k_blocks, int tail, PipelineState<C::kStages>& state,
                                       Accumulator& accumulator) {
    using namespace cute;
    typename C::TiledMma mma;
    auto slice = mma.get_slice(thread);
    Tensor p = make_tensor(make_smem_ptr(reinterpret_cast<typename C::In*>(shared.p)),
                           typename C::LayoutP{});
    Tensor q = make_tensor(make_smem_ptr(reinterpret_cast<typename C::In*>(shared.q)),
                           typename C::LayoutQ{});
    Tensor p_fragments = slice.make_fragment_A(slice.partition_A(p));  // (MMA, 1, K, block)
    Tensor q_fragments = slice.make_fragment_B(slice.partition_B(q));  // (MMA, 1, K, stage)

    auto issue = [&](uint32_t stage) {
      warpgroup_fence_operand(accumulator);
      warpgroup_arrive();
      CUTE_UNROLL
      for (int k = 0; k < size<2>(q_fragments); ++k) {
        CUTE_UNROLL
        for (int b = 0; b < kBlocks; ++b) {
          const int p_block = stage * C::kPBlocks + b * kConsumers + consumer;
          gemm(mma, p_fragments(_, 0, k, p_block), q_fragments(_, 0, k, stage),
               accumulator(_, b, 0));
        }
        mma.accumulate_ = GMMA::ScaleOut::One;
      }
      warpgroup_commit_batch();
    };

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
    warpgroup_wait<0>();
    warpgroup_fence_operand(accumulator);
    Release(previous);
  }

  // A tile whose rows all belong to the other consumer: its stages only pass by.
  __device__ __forceinline__ void Skip(int k_blocks, PipelineState<C::kStages>& state) {
    for (; k_blocks > 0; --k_blocks) {
      Wait(state, false, 0);
      Release(state.index);
      state.Advance();
    }
  }

  __device__ __forceinline__ void Wait(const PipelineState<C::kStages>& state, bool zero_tail,
                                       int tail) {
    Full::wait(&shared.full[state.index], state.phase);
    if constexpr (C::kContract) {
      if (zero_tail) ZeroTail(state.index, tail);
    }
  }

  // Each warp tells the producers that write into this stage: with a shared P, both CTAs'.
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
    const int id = consumer * 128 + thread;
    auto zero = [&](uint8_t* base, int boxes) {
      for (int i = id; i < boxes * kBlock * (kRowBytes / 16); i += kConsumers * 128) {
        const int line = i / (kRowBytes / 16);
        if (line % kBlock >= valid) reinterpret_cast<uint4*>(base)[i] = make_uint4(0, 0, 0, 0);
      }
    };
    zero(shared.p[stage], C::kPBlocks);
    zero(shared.q[stage], C::kQBoxes);
    cutlass::arch::fence_view_async_shared();  // the MMA reads through the async proxy
    cutlass::arch::NamedBarrier::sync(kConsumers * 128, kTailBarrier);
  }
};

}  // namespace bwgemm::grouped::sm90
