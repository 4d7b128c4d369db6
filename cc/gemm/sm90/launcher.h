// KernelOps for one SM90 kernel: problem -> tensor maps and tile order -> launch.
#pragma once

#include <string>

#include "common/launch.h"
#include "common/tensor_map.h"
#include "cutlass/gemm/kernel/tile_scheduler_params.h"
#include "gemm/kernel_table.h"
#include "gemm/sm90/kernel.h"

namespace bwgemm::sm90 {

template <class C>
struct Launcher {
  using Scheduler = cutlass::gemm::kernel::detail::PersistentTileSchedulerSm90Params;

  static int Tiles(int rows, int tile) { return (rows - 1) / tile + 1; }
  static int PTiles(const GemmProblem& p) { return Tiles(C::kSwapAb ? p.n : p.m, C::kTileM); }
  static int QTiles(const GemmProblem& p) { return Tiles(C::kSwapAb ? p.m : p.n, C::kTileN); }

  static Status Supports(const GemmProblem& p) {
    const int kIn = kAlignmentBytes / SizeOf(C::kIn), kOut = kAlignmentBytes / SizeOf(C::kOut);
    const bool aligned = p.a.pitch % kIn == 0 && p.a.batch_pitch % kIn == 0 &&
                         p.b.pitch % kIn == 0 && p.b.batch_pitch % kIn == 0 &&
                         p.d.pitch % kOut == 0 && p.d.batch_pitch % kOut == 0;
    if (aligned) return Status::Ok();
    return Status::InvalidArgument("the contiguous dimensions of " + p.ToString() +
                                   " must be multiples of " + std::to_string(kAlignmentBytes) +
                                   " bytes");
  }

  static size_t WorkspaceBytes(const GemmProblem&) { return 0; }

  template <class S>
  static Status Map(const GemmOperand& x, int rows, const GemmProblem& p, CUtensorMap* map) {
    TensorMapSpec t;
    t.data = x.data;
    t.dtype = C::kIn;
    t.extent0 = S::kKMajor ? p.k : rows;
    t.extent1 = S::kKMajor ? rows : p.k;
    t.extent2 = x.batch_pitch ? p.batch : 1;
    t.box0 = S::kKMajor ? S::kBoxK : S::kBoxRows;
    t.box1 = S::kKMajor ? S::kBoxRows : S::kBoxK;
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

  // An operand that one cluster reads, once, should not push the other out of L2.
  static uint64_t CacheHint(bool streams) {
    return static_cast<uint64_t>(streams ? cute::TMA::CacheHintSm90::EVICT_FIRST
                                         : cute::TMA::CacheHintSm90::EVICT_NORMAL);
  }

  static Status MakeParams(const GemmProblem& p, Params* params, dim3* grid) {
    const GemmOperand& first = C::kSwapAb ? p.b : p.a;
    const GemmOperand& second = C::kSwapAb ? p.a : p.b;
    BWGEMM_RETURN_IF_ERROR(
        Map<typename C::P>(first, C::kSwapAb ? p.n : p.m, p, &params->p));
    BWGEMM_RETURN_IF_ERROR(
        Map<typename C::Q>(second, C::kSwapAb ? p.m : p.n, p, &params->q));
    BWGEMM_RETURN_IF_ERROR(MapD(p, &params->d));
    params->k_blocks = Tiles(p.k, C::kTileK);
    params->p_batched = first.batch_pitch != 0;
    params->q_batched = second.batch_pitch != 0;

    TileOrder& order = params->order;
    order.p_tiles = PTiles(p);
    order.q_tiles = QTiles(p);
    const bool p_once = p.batch == 1 || params->p_batched;
    const bool q_once = p.batch == 1 || params->q_batched;
    params->p_cache_hint = CacheHint(p_once && order.q_tiles <= C::kClusterN);
    params->q_cache_hint = CacheHint(q_once && order.p_tiles <= C::kClusterM);

    const cutlass::gemm::GemmCoord cluster(C::kClusterM, C::kClusterN, 1);
    const dim3 ctas(RoundUp(order.p_tiles, C::kClusterM), RoundUp(order.q_tiles, C::kClusterN),
                    p.batch);
    cutlass::KernelHardwareInfo hardware;
    hardware.device_id = p.device;
    hardware.sm_count = p.sm_count;
    using Raster = typename Scheduler::RasterOrderOptions;
    const Raster raster = p.raster_order == RasterOrder::kAlongM   ? Raster::AlongM
                          : p.raster_order == RasterOrder::kAlongN ? Raster::AlongN
                                                                   : Raster::Heuristic;
    Scheduler scheduler;
    scheduler.initialize(ctas, cluster, hardware, p.swizzle, raster);
    *grid = Scheduler::get_grid_shape(ctas, cluster, hardware, p.swizzle, raster);
    order.per_batch =
        cutlass::FastDivmod(static_cast<int>(scheduler.divmod_batch_.divisor / C::kCluster));
    order.major =
        cutlass::FastDivmod(static_cast<int>(scheduler.divmod_cluster_blk_major_.divisor));
    order.clusters = static_cast<int32_t>(scheduler.blocks_per_problem_ / C::kCluster);
    order.log_swizzle = scheduler.log_swizzle_size_;
    order.along_q = scheduler.raster_order_ == Scheduler::RasterOrder::AlongN;
    return Status::Ok();
  }

  static int RoundUp(int count, int unit) { return (count + unit - 1) / unit * unit; }

  static Status Prepare(int device) {
    static OncePerDevice once;
    return once.Run(device, [] { return SetSharedMemoryLimit(Function(), C::kSharedBytes); });
  }

  static Status Launch(const GemmProblem& p, void*, cudaStream_t stream) {
    Params params{};
    dim3 grid;
    BWGEMM_RETURN_IF_ERROR(MakeParams(p, &params, &grid));
    const LaunchShape shape{grid, dim3(C::kClusterM, C::kClusterN), dim3(kThreads),
                            C::kSharedBytes};
    return LaunchClusters(Function(), params, shape, stream);
  }

  static const void* Function() { return reinterpret_cast<const void*>(&GemmKernelSm90<C>); }
};

template <class C>
KernelEntry MakeEntry(const char* name) {
  using L = Launcher<C>;
  return {C::Info(name, Arch::kSm90, C::kStages),
          {&L::Supports, &L::WorkspaceBytes, &L::Prepare, &L::Launch}};
}

}  // namespace bwgemm::sm90
