// KernelOps for one SM90 kernel: problem -> tensor maps and tile order -> launch.
#pragma once

#include <algorithm>

#include "core/ceil_div.h"
#include "core/launch.h"
#include "core/tensor_map.h"
#include "cutlass/gemm/kernel/tile_scheduler_params.h"
#include "dense/limits.h"
#include "dense/problem.h"
#include "dense/sm90/kernel.h"
#include "sm90/stage_count.h"

namespace bwgemm::dense::sm90 {

template <class C>
struct Launcher {
  using Scheduler = cutlass::gemm::kernel::detail::PersistentTileSchedulerSm90Params;
  using LinkedConfig = typename C::WithEpilogue;

  static int Tiles(int rows, int tile) { return static_cast<int>(CeilDiv(rows, tile)); }
  static int PTiles(const GemmProblem& p) { return Tiles(C::kSwapAb ? p.n : p.m, C::kPRows); }
  static int QTiles(const GemmProblem& p) { return Tiles(C::kSwapAb ? p.m : p.n, C::kTileN); }

  static Status Supports(const GemmProblem& p) {
    BWGEMM_RETURN_IF_ERROR(CheckAligned(p, C::kA, C::kB, C::kOut));
    return CheckTiles(p, Tiles(PTiles(p), C::kClusterM) * C::kClusterM,
                      Tiles(QTiles(p), C::kClusterN) * C::kClusterN, p.batch, "tiles");
  }

  static size_t WorkspaceBytes(const GemmProblem&) { return 0; }

  template <class S>
  static Status Map(const GemmOperand& x, DType dtype, int rows, const GemmProblem& p,
                    CUtensorMap* map, int planes = 1) {
    TensorMapSpec t;
    t.data = x.data;
    t.dtype = dtype;
    t.extent0 = S::kKMajor ? p.k : rows;
    t.extent1 = S::kKMajor ? rows : p.k;
    t.extent2 = (x.batch_pitch ? p.batch : 1) * planes;
    t.box0 = S::kKMajor ? S::kBoxK : S::BoxRowsOf(rows);
    t.box1 = S::kKMajor ? S::BoxRowsOf(rows) : S::kBoxK;
    t.pitch1 = x.pitch;
    t.pitch2 = x.batch_pitch;
    t.swizzle = S::kLineBytes == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
                : S::kLineBytes == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                                      : CU_TENSOR_MAP_SWIZZLE_32B;
    return EncodeTensorMap(t, map);
  }

  static Status MapD(const GemmProblem& p, CUtensorMap* map) {
    TensorMapSpec t;
    t.data = p.d.data;
    t.dtype = C::kOut;
    t.extent0 = p.n;
    t.extent1 = p.m;
    t.extent2 = p.batch;
    t.box0 = C::kStoreColumns;
    t.box1 = C::kStoreRows;
    t.pitch1 = p.d.pitch;
    t.pitch2 = p.d.batch_pitch;
    return EncodeTensorMap(t, map);
  }

  // An operand that one cluster reads once should not push the other operand out of L2.
  static uint64_t CacheHint(bool streams) {
    return static_cast<uint64_t>(streams ? cute::TMA::CacheHintSm90::EVICT_FIRST
                                         : cute::TMA::CacheHintSm90::EVICT_NORMAL);
  }

  // all: see MakeOrder.
  static Status MakeParams(const GemmProblem& p, Params* params, dim3* grid, bool all = false) {
    const GemmOperand& first = C::kSwapAb ? p.b : p.a;
    const GemmOperand& second = C::kSwapAb ? p.a : p.b;
    params->p_rows = C::kSwapAb ? p.n : p.m;
    params->q_rows = C::kSwapAb ? p.m : p.n;
    params->stage_bytes =
        C::P::BytesOf(params->p_rows) + C::kPlanes * C::Q::BytesOf(params->q_rows);
    BWGEMM_RETURN_IF_ERROR(Map<typename C::P>(first, C::kTypeP, params->p_rows, p, &params->p));
    params->q_plane = second.batch_pitch ? p.batch : 1;
    BWGEMM_RETURN_IF_ERROR(
        Map<typename C::Q>(second, C::kTypeQ, params->q_rows, p, &params->q, C::kPlanes));
    BWGEMM_RETURN_IF_ERROR(MapD(p, &params->d));
    const int k_blocks = Tiles(p.k, C::kTileK), parts = p.parts_of_k ? p.batch : 1;
    params->k_blocks = k_blocks / parts;
    params->longer_parts = k_blocks % parts;
    params->part_blocks = p.parts_of_k ? params->k_blocks : 0;
    params->p_batched = first.batch_pitch != 0;
    params->q_batched = second.batch_pitch != 0;

    const int p_tiles = PTiles(p), q_tiles = QTiles(p);
    const bool p_once = p.batch == 1 || p.parts_of_k || params->p_batched;
    const bool q_once = p.batch == 1 || p.parts_of_k || params->q_batched;
    const bool p_streams = p_once && q_tiles <= C::kClusterN;
    const bool q_streams = q_once && p_tiles <= C::kClusterM;
    params->p_cache_hint = CacheHint(p_streams);
    params->q_cache_hint = CacheHint(q_streams);
    MakeOrder(p, &params->order, grid, all);
    const int streamed = (p_streams ? C::P::kBytes / C::kClusterN : 0) +
                         (q_streams ? C::kPlanes * C::Q::kBytes / C::kClusterM : 0);
    params->stages = bwgemm::sm90::StagesFor(streamed, grid->x * grid->y, C::kStages);
    return Status::Ok();
  }

  // all: launch as many clusters as run at once, even if there are fewer tiles.
  static void MakeOrder(const GemmProblem& p, TileOrder* order, dim3* grid, bool all) {
    const int p_clusters = Tiles(PTiles(p), C::kClusterM);
    const int q_clusters = Tiles(QTiles(p), C::kClusterN);
    const int per_batch = p_clusters * q_clusters;  // it all fits: see Supports
    // By default bands run along the shorter dimension.
    order->along_q = p.raster_order == RasterOrder::kHeuristic
                         ? q_clusters * C::kClusterN <= p_clusters * C::kClusterM
                         : p.raster_order == RasterOrder::kAlongN;
    order->height = order->along_q ? p_clusters : q_clusters;
    order->log_swizzle = 0;
    while (2 << order->log_swizzle <= std::min(p.swizzle, order->height)) ++order->log_swizzle;
    order->clusters = per_batch * p.batch;
    order->per_batch = cutlass::FastDivmod(per_batch);
    order->per_band =
        cutlass::FastDivmod((order->along_q ? q_clusters : p_clusters) << order->log_swizzle);

    // CUTLASS knows how many clusters run at once.
    cutlass::KernelHardwareInfo hardware;
    hardware.device_id = p.device;
    hardware.sm_count = p.sm_count;
    using Raster = typename Scheduler::RasterOrderOptions;
    *grid = Scheduler::get_grid_shape(
        dim3(p_clusters * C::kClusterM, q_clusters * C::kClusterN, p.batch),
        cutlass::gemm::GemmCoord(C::kClusterM, C::kClusterN, 1), hardware, /*max_swizzle_size=*/1,
        order->along_q ? Raster::AlongN : Raster::AlongM, /*truncate_by_problem_size=*/!all);
    // Not for a single line of tiles: all share one operand and none the other.
    order->placed =
        !all && (order->clusters != std::max(p_clusters, q_clusters)) &&
        bwgemm::sm90::PlaceClusters(p.device, C::kCluster, grid->x * grid->y / C::kCluster,
                                    1 << order->log_swizzle, order->slots);
  }

  static Status Prepare(int device) {
    static OncePerDevice once;
    return once.Run(device, [device] {
      bwgemm::sm90::ProbeGpcs(device);
      return SetSharedMemoryLimit(Function(), C::kSharedBytes);
    });
  }

  static Status Launch(const GemmProblem& p, void*, cudaStream_t stream) {
    ParamsOf<C> params{};
    return Launch(p, params, stream);
  }

  // params: what is not about tiles and tensor maps is set.
  static Status Launch(const GemmProblem& p, ParamsOf<C>& params, cudaStream_t stream) {
    dim3 grid;
    BWGEMM_RETURN_IF_ERROR(MakeParams(p, &params, &grid));
    const LaunchShape shape{grid, dim3(C::kClusterM, C::kClusterN), dim3(kThreads),
                            C::kSharedBytes};
    return LaunchClusters(Function(), params, shape, stream);
  }

  static Status PrepareLinked(const void* function, int device) {
    bwgemm::sm90::ProbeGpcs(device);
    return SetSharedMemoryLimit(function, LinkedConfig::kSharedBytes);
  }

  // arguments: EpilogueArguments.
  static Status MakeLinkedParams(const GemmProblem& p, const void* arguments, LinkedParams* params,
                                 dim3* grid) {
    const auto& epilogue = params->epilogue = *static_cast<const EpilogueArguments*>(arguments);
    BWGEMM_RETURN_IF_ERROR(MakeParams(p, params, grid));
    params->stages = std::min(params->stages, LinkedConfig::kStages);
    if (const int i = epilogue.staged_operands[0]; i >= 0) {
      BWGEMM_RETURN_IF_ERROR(MapLike(p, epilogue.operands[i], &params->staged));
    }
    if (const int i = epilogue.staged_results[0]; i >= 0) {
      BWGEMM_RETURN_IF_ERROR(MapLike(p, epilogue.results[i], &params->stored));
    }
    return Status::Ok();
  }

  // Of an array of D's type and shape.
  static Status MapLike(const GemmProblem& p, const void* data, CUtensorMap* map) {
    GemmProblem other = p;
    other.d.pitch = other.d.batch_pitch = 0;
    other.d.data = const_cast<void*>(data);
    return MapD(other, map);
  }

  // For the launch, the linked kernel differs in its parameters and shared memory only.
  static Status LaunchLinked(const GemmProblem& p, const void* function, const void* arguments,
                             void*, cudaStream_t stream) {
    TwoMatrixParams params{};
    dim3 grid;
    BWGEMM_RETURN_IF_ERROR(MakeLinkedParams(p, arguments, &params, &grid));
    if (const int i = params.epilogue.staged_operands[1]; i >= 0) {
      BWGEMM_RETURN_IF_ERROR(MapLike(p, params.epilogue.operands[i], &params.staged_too));
    }
    const LaunchShape shape{grid, dim3(C::kClusterM, C::kClusterN), dim3(kThreads),
                            LinkedConfig::kSharedBytes};
    return LaunchClusters(function, params, shape, stream);
  }

  static const void* Function() { return reinterpret_cast<const void*>(&GemmKernelSm90<C>); }
};

template <class C>
KernelEntry MakeEntry(const char* name, const char* f32_twin) {
  using L = Launcher<C>;
  return {C::Info(name, f32_twin, Arch::kSm90, C::kStages, /*uneven_parts=*/true),
          {&L::Supports, &L::WorkspaceBytes, &L::Prepare, &L::Launch, &L::PrepareLinked,
           &L::LaunchLinked}};
}

}  // namespace bwgemm::dense::sm90
