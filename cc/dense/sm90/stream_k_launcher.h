// KernelOps for one SM90 stream-K kernel, and the kernel.
#pragma once

#include "dense/sm90/launcher.h"
#include "dense/sm90/stream_k.h"
#include "dense/split_k.h"

namespace bwgemm::dense::sm90 {

template <class C>
__device__ __forceinline__ void ConsumePieces(const StreamKParams& params,
                                              typename C::Shared& shared, uint32_t rank) {
  const int consumer = cutlass::canonical_warp_group_idx() - 1, thread = threadIdx.x % 128;
  bwgemm::sm90::MainLoop<C> mma{shared, consumer, thread};
  Epilogue<C> epilogue{params, {shared, consumer, thread}};
  const PieceSums<C> sums{params, consumer, thread};
  LaunchRing state(params.stages);
  bwgemm::sm90::Turn<C> turn{shared, consumer};
  for (Pieces<C> pieces(params, rank); pieces.Valid(); pieces.Advance()) {
    const Piece& piece = pieces.Current();
    // Through a shuffle, as in Consume.
    const int k_blocks = __shfl_sync(0xffffffff, KBlocks(params, piece), 0);
    typename C::template Accumulator<C::kTileN> accumulator;
    mma.template Tile<C::kTileN>(accumulator, k_blocks, state, turn);
    if (piece.begin > 0) sums.AddEarlier(accumulator, piece);
    if (piece.end < params.plan.steps) {
      sums.HandOn(accumulator, piece);
    } else {
      epilogue.StoreTile(piece, accumulator);
    }
  }
  epilogue.Finish();
}

template <class C>
__global__ void __launch_bounds__(kThreads, 1)
    GemmKernelSm90StreamK(const __grid_constant__ StreamKParams params) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  RunCta<C, NoAssistant, Pieces<C>>(
      params, [](const StreamKParams& own, typename C::Shared& shared, uint32_t rank) {
        ConsumePieces<C>(own, shared, rank);
      });
#else
  CUTE_INVALID_CONTROL_PATH("compiled for another architecture");
#endif
}

template <class C>
struct StreamKLauncher {
  using Dense = Launcher<C>;
  static constexpr int64_t kMostGridY = 65535;

  static int Steps(const GemmProblem& p) { return Dense::Tiles(p.k, C::kTileK); }

  static Status Supports(const GemmProblem& p) {
    BWGEMM_RETURN_IF_ERROR(Dense::Supports(p));
    const int64_t parts = std::max(1, std::min({p.splits, p.sm_count, Steps(p)}));
    const int64_t p_clusters = Dense::Tiles(Dense::PTiles(p), C::kClusterM);
    const int64_t q_clusters = Dense::Tiles(Dense::QTiles(p), C::kClusterN);
    if (parts == 1 || p_clusters * q_clusters <= kMostGridY / C::kCluster / p.batch / parts) {
      return Status::Ok();
    }
    return Status::InvalidArgument(p.ToString() + " has more than " + std::to_string(kMostGridY) +
                                   " tiles times parts of K");
  }

  static StreamKPlan Plan(const GemmProblem& p, const TileOrder& order, const dim3& grid) {
    const int band = order.along_q ? Dense::Tiles(Dense::QTiles(p), C::kClusterN)
                                   : Dense::Tiles(Dense::PTiles(p), C::kClusterM);
    return PlanStreamK(p, order.clusters, grid.x * grid.y / C::kCluster, Steps(p), band);
  }

  // Tiles whose sums are in memory, times the CTAs and consumers that have some of a tile.
  static int64_t Slots(const StreamKPlan& plan) {
    const int64_t tiles = plan.splits > 1 ? plan.tiles : plan.shared_tiles;
    return tiles * C::kCluster * bwgemm::sm90::kConsumers;
  }
  static int64_t SumBytes(const StreamKPlan& plan) {
    return Slots(plan) * C::kResults * 128 * static_cast<int64_t>(sizeof(float));
  }
  static int64_t StepBytes(const StreamKPlan& plan) {
    return (Slots(plan) * static_cast<int64_t>(sizeof(int32_t)) + 15) / 16 * 16;
  }

  static size_t WorkspaceBytes(const GemmProblem& p) {
    TileOrder order;
    dim3 grid;
    Dense::MakeOrder(p, &order, &grid, /*all=*/true);
    const StreamKPlan plan = Plan(p, order, grid);
    return SumBytes(plan) + StepBytes(plan);
  }

  static Status Prepare(int device) {
    return SetSharedMemoryLimitOnce<&Function, C::kSharedBytes>(device);
  }

  static Status Launch(const GemmProblem& p, void* workspace, cudaStream_t stream) {
    StreamKParams params{};
    dim3 grid;
    BWGEMM_RETURN_IF_ERROR(Dense::MakeParams(p, &params, &grid, /*all=*/true));
    params.plan = Plan(p, params.order, grid);
    params.sums = static_cast<float*>(workspace);
    void* steps = static_cast<char*>(workspace) + SumBytes(params.plan);
    params.steps = static_cast<int32_t*>(steps);
    // XLA hands out the workspace as it is.
    if (const int64_t bytes = StepBytes(params.plan)) {
      BWGEMM_RETURN_IF_ERROR(ClearCounters(steps, bytes, stream));
    }
    // Each part of K has a cluster of its own: see stream_k.h.
    if (params.plan.splits > 1) {
      const unsigned units = params.plan.tiles * params.plan.splits;
      (params.order.along_q ? grid.y : grid.x) =
          units * (params.order.along_q ? C::kClusterN : C::kClusterM);
    }
    const LaunchShape shape{grid, dim3(C::kClusterM, C::kClusterN), dim3(kThreads),
                            C::kSharedBytes};
    return LaunchClusters(Function(), params, shape, stream);
  }

  static const void* Function() { return reinterpret_cast<const void*>(&GemmKernelSm90StreamK<C>); }
};

template <class C>
KernelEntry MakeStreamKEntry(const char* name, const char* f32_twin) {
  using L = StreamKLauncher<C>;
  return {C::Info(name, f32_twin, Arch::kSm90, C::kStages, /*uneven_parts=*/false),
          {&L::Supports, &L::WorkspaceBytes, &L::Prepare, &L::Launch}};
}

}  // namespace bwgemm::dense::sm90
