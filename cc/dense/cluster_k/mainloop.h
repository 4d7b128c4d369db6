// Loading and multiplying one CTA's part of K: a producer thread, and a warpgroup that issues
// wgmma.
#pragma once

#include "core/ring.h"
#include "cute/arch/copy_sm90_desc.hpp"
#include "cute/arch/copy_sm90_tma.hpp"
#include "cutlass/arch/barrier.h"
#include "dense/cluster_k/config.h"

namespace bwgemm::dense::cluster_k {

using Full = cutlass::arch::ClusterTransactionBarrier;
using Empty = cutlass::arch::ClusterBarrier;

// Called by one thread.
template <class C>
__device__ __forceinline__ void Load(const Params& params, Shared& shared, const Work& work) {
  constexpr uint64_t kEvictNormal = static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_NORMAL);
  const int p_matrix = params.p_batched ? work.batch : 0;
  const int q_matrix = params.q_batched ? work.batch : 0;
  auto box = [&](bool k_major, const CUtensorMap& map, uint64_t hint, uint64_t* full, void* to,
                 int k, int mn, int matrix) {
    cute::SM90_TMA_LOAD_3D::copy(&map, full, hint, to, k_major ? k : mn, k_major ? mn : k, matrix);
  };
  uint8_t* const q = shared.stages + params.stages * kBoxBytes;
  RingPosition stage;
  for (int block = 0; block < work.blocks; ++block) {
    const int k = (work.first_block + block) * kBlock;
    Empty::wait(&shared.empty[stage.index], stage.phase ^ 1);
    uint64_t* full = &shared.full[stage.index];
    Full::arrive_and_expect_tx(full, params.stage_bytes);
    box(C::kPKMajor, params.p, params.p_cache_hint, full, shared.stages + stage.index * kBoxBytes,
        k, work.column, p_matrix);
    box(C::kQKMajor, params.q, kEvictNormal, full, q + stage.index * kBoxBytes, k, work.row,
        q_matrix);
    stage.Advance(params.stages);
  }
}

// Called by the consumer warpgroup.
template <class C>
__device__ __forceinline__ void Multiply(Shared& shared, int stages, int blocks,
                                         typename C::Accumulator& accumulator) {
  const typename C::template Descriptor<C::kPKMajor> p(shared.stages);
  const typename C::template Descriptor<C::kQKMajor> q(shared.stages + stages * kBoxBytes);

  auto issue = [&](const RingPosition& stage, bool accumulate) {
    Full::wait(&shared.full[stage.index], stage.phase);
    bwgemm::sm90::FenceResults(accumulator);
    bwgemm::sm90::ArriveWarpgroup();
    CUTE_UNROLL
    for (int k = 0; k < kBlock; k += bwgemm::sm90::kMmaDepth) {
      C::Multiply::Issue(p.At(stage.index, k), q.At(stage.index, k), accumulator,
                         accumulate || k > 0);
    }
    bwgemm::sm90::CommitBatch();
  };

  RingPosition stage;
  issue(stage, false);
  uint32_t previous = stage.index;
  stage.Advance(stages);
  CUTE_NO_UNROLL
  for (int left = blocks - 1; left > 0; --left) {
    issue(stage, true);
    bwgemm::sm90::AwaitBatches<1>();  // the block before this one is done
    bwgemm::sm90::FenceResults(accumulator);
    if (threadIdx.x % 32 == 0) Empty::arrive(&shared.empty[previous]);
    previous = stage.index;
    stage.Advance(stages);
  }
  bwgemm::sm90::AwaitBatches<0>();
  bwgemm::sm90::FenceResults(accumulator);
}

}  // namespace bwgemm::dense::cluster_k
