// The consumers' main loop of the SM90 kernels: wgmma on the stages that a producer filled.
#pragma once

#include "cute/algorithm/clear.hpp"
#include "cute/tensor_impl.hpp"
#include "cutlass/arch/barrier.h"
#include "sm90/arrive.h"
#include "sm90/turn.h"
#include "sm90/wgmma.h"

namespace bwgemm::sm90 {

// C says what the stages look like: DescriptorP of a block of 64 rows, DescriptorQ, kTileK,
// Multiply<columns>, Accumulator<columns>, kPBlocks, kOwnBlocks, FirstBlock(consumer), kStages,
// kCluster, and Shared with p, q, full and empty.
template <class C>
struct Mma {
  using Full = cutlass::arch::ClusterTransactionBarrier;
  using Empty = cutlass::arch::ClusterBarrier;
  typename C::Shared& shared;
  int consumer;  // 0 or 1
  int thread;    // of the warpgroup

  // Multiplies one tile, in one turn. kColumns: how many of the tile's columns to compute; a narrow
  // MMA reads the first rows of the same Q.
  template <int kColumns, class Ring>
  __device__ __forceinline__ void Tile(typename C::template Accumulator<kColumns>& accumulator,
                                       int k_blocks, Ring& state, Turn<C>& turn) {
    using Multiply = typename C::template Multiply<kColumns>;
    const typename C::DescriptorP p(shared.p);
    const typename C::DescriptorQ q(shared.q);

    auto issue = [&](bool accumulate) {
      Full::wait(&shared.full[state.index], state.phase);
      FenceResults(accumulator);
      ArriveWarpgroup();
      CUTE_UNROLL
      for (int k = 0; k < C::kTileK; k += Multiply::kDepth) {
        CUTE_UNROLL
        for (int block = 0; block < C::kOwnBlocks; ++block) {
          Multiply::Issue(p.At(state.index * C::kPBlocks + C::FirstBlock(consumer) + block, k),
                          q.At(state.index, k), accumulator(cute::_, block), accumulate || k > 0);
        }
      }
      CommitBatch();
    };

    turn.Wait();
    if (k_blocks == 0) {
      turn.Pass();
      cute::clear(accumulator);
      return;
    }
    issue(false);
    uint32_t previous = state.index;
    state.Advance();
    CUTE_NO_UNROLL
    for (int left = k_blocks - 1; left > 0; --left) {
      issue(true);
      AwaitBatches<1>();  // the block before this one is done
      FenceResults(accumulator);
      Release(previous);
      previous = state.index;
      state.Advance();
    }
    turn.Pass();  // before waiting: the other's first MMAs then follow our last ones without a gap
    AwaitBatches<0>();
    FenceResults(accumulator);
    Release(previous);
  }

  // Each warp tells all producers of the cluster that it has read the stage.
  __device__ __forceinline__ void Release(uint32_t stage) const {
    ArriveForWarpAtAll<C::kCluster>(&shared.empty[stage], thread % 32);
  }
};

}  // namespace bwgemm::sm90
