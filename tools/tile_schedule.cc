// Prints what CUTLASS's own scheduler code, compiled for the host, gives every CTA.
// compare_tile_schedule.py builds and runs it. Input, a case per line:
//   arch m n batch tile_m tile_n cluster_m cluster_n sm_count raster(0 heuristic, 1 m, 2 n) swizzle
//   k splits decomposition(0 no stream-K kernel, 1 heuristic, 2 data-parallel, 3 split-K, 4
//   stream-K)
// Output: the grid, then x y z and its tiles row,column,batch for each CTA, then "end". For
// stream-K kernels a tile is row,column,batch,begin,end: the range of its K, in units of 64.
#include <cuda_runtime.h>

#include <cstdio>

// What device code names that a host compiler does not have.
static thread_local dim3 threadIdx, blockIdx, gridDim, blockDim;
static void __syncthreads() {}
static void __syncwarp(unsigned = 0) {}
// Asked for only where the number of multiprocessors is not given.
extern "C" cudaError_t cudaGetDevice(int*) { return cudaErrorNoDevice; }
extern "C" cudaError_t cudaDeviceGetAttribute(int*, cudaDeviceAttr, int) {
  return cudaErrorNoDevice;
}
// Nor does it have warp matrices; this header gives them up for an old compiler.
#pragma push_macro("__CUDACC_VER_MAJOR__")
#undef __CUDACC_VER_MAJOR__
#define __CUDACC_VER_MAJOR__ 8
#include "cutlass/arch/wmma.h"
#pragma pop_macro("__CUDACC_VER_MAJOR__")

#include "cutlass/cutlass.h"
#include "cutlass/gemm/kernel/sm100_tile_scheduler.hpp"
#include "cutlass/gemm/kernel/sm100_tile_scheduler_stream_k.hpp"
#include "cutlass/gemm/kernel/sm90_tile_scheduler.hpp"
#include "cutlass/gemm/kernel/sm90_tile_scheduler_stream_k.hpp"

namespace {

using cutlass::gemm::kernel::detail::PersistentTileSchedulerSm100;
using cutlass::gemm::kernel::detail::PersistentTileSchedulerSm100StreamK;
using cutlass::gemm::kernel::detail::PersistentTileSchedulerSm90;
using cutlass::gemm::kernel::detail::PersistentTileSchedulerSm90StreamK;
using Params = cutlass::gemm::kernel::detail::PersistentTileSchedulerSm90Params;
using StreamKParams = cutlass::gemm::kernel::detail::PersistentTileSchedulerSm90StreamKParams;

struct Case {
  int arch, m, n, batch, tile_m, tile_n, cluster_m, cluster_n, sm_count, raster, swizzle, k, splits,
      decomposition;
  Params::RasterOrderOptions Raster() const {
    return raster == 0   ? Params::RasterOrderOptions::Heuristic
           : raster == 1 ? Params::RasterOrderOptions::AlongM
                         : Params::RasterOrderOptions::AlongN;
  }
  StreamKParams::DecompositionMode Mode() const {
    using Mode = StreamKParams::DecompositionMode;
    return decomposition == 1   ? Mode::Heuristic
           : decomposition == 2 ? Mode::DataParallel
           : decomposition == 3 ? Mode::SplitK
                                : Mode::StreamK;
  }
};

void Sm90(const Case& c) {
  const cutlass::gemm::BatchedGemmCoord problem(c.m, c.n, 64, c.batch);
  const cutlass::gemm::GemmCoord tile(c.tile_m, c.tile_n, 64), cluster(c.cluster_m, c.cluster_n, 1);
  cutlass::KernelHardwareInfo hardware;
  hardware.sm_count = c.sm_count;
  Params p;
  p.initialize(problem, tile, cluster, hardware, c.swizzle, c.Raster());
  const dim3 grid = Params::get_grid_shape(problem, tile, cluster, hardware, c.swizzle, c.Raster());
  std::printf("%u %u %u\n", grid.x, grid.y, grid.z);
  const bool along_n = p.raster_order_ == Params::RasterOrder::AlongN;
  for (unsigned y = 0; y < grid.y; ++y) {
    for (unsigned x = 0; x < grid.x; ++x) {
      std::printf("%u %u 0", x, y);
      uint64_t index = along_n ? x + uint64_t{y} * grid.x : uint64_t{x} * grid.y + y;
      for (; index < p.blocks_per_problem_; index += uint64_t{grid.x} * grid.y) {
        uint64_t batch, rest;
        p.divmod_batch_(batch, rest, index);
        const auto work = PersistentTileSchedulerSm90::get_work_idx_m_and_n(
            p.divmod_cluster_shape_minor_.divide(rest), p.divmod_cluster_shape_major_,
            p.divmod_cluster_shape_minor_, p.divmod_cluster_blk_major_, p.log_swizzle_size_,
            p.raster_order_, x % c.cluster_m, y % c.cluster_n);
        std::printf(" %d,%d,%d", cute::get<0>(work), cute::get<1>(work), static_cast<int>(batch));
      }
      std::printf("\n");
    }
  }
}

template <class Work>
void PrintPart(const Work& work) {
  std::printf(" %d,%d,%d,%d,%d", work.M_idx, work.N_idx, work.L_idx, work.K_idx,
              work.K_idx + static_cast<int>(work.k_tile_count));
}

void Sm90StreamK(const Case& c) {
  // Tile and cluster of the type are for the device code.
  using Scheduler = PersistentTileSchedulerSm90StreamK<cute::Shape<cute::_1, cute::_1, cute::_1>,
                                                       cute::Shape<cute::_1, cute::_1, cute::_1>>;
  const cutlass::gemm::BatchedGemmCoord problem(c.m, c.n, c.k, c.batch);
  const cutlass::gemm::GemmCoord tile(c.tile_m, c.tile_n, 64), cluster(c.cluster_m, c.cluster_n, 1);
  cutlass::KernelHardwareInfo hardware;
  hardware.sm_count = c.sm_count;
  StreamKParams p;
  p.initialize(problem, tile, cluster, hardware, c.splits, c.swizzle, c.Raster(),
               StreamKParams::ReductionMode::Deterministic, c.Mode(), nullptr);
  const dim3 grid =
      StreamKParams::get_grid_shape(problem, tile, cluster, hardware, c.swizzle, c.Raster());
  std::printf("%u %u %u\n", grid.x, grid.y, grid.z);
  const bool along_n = p.raster_order_ == StreamKParams::RasterOrder::AlongN;
  for (unsigned y = 0; y < grid.y; ++y) {
    for (unsigned x = 0; x < grid.x; ++x) {
      std::printf("%u %u 0", x, y);
      const dim3 place(x % c.cluster_m, y % c.cluster_n, 0);
      uint64_t index = along_n ? x + uint64_t{y} * grid.x : uint64_t{x} * grid.y + y;
      uint32_t start = 0;
      auto work = Scheduler::get_current_work_for_linear_idx(start, index, place, p);
      while (work.is_valid()) {
        PrintPart(work);
        if (Scheduler::continue_current_work_for_linear_idx(index, start, place, work, p)) continue;
        index += uint64_t{grid.x} * grid.y;
        work = Scheduler::get_current_work_for_linear_idx(start, index, place, p);
      }
      std::printf("\n");
    }
  }
}

template <int kClusterM, int kClusterN, int kPair>
void Sm100StreamK(const Case& c) {
  using Cluster = cute::Shape<cute::Int<kClusterM>, cute::Int<kClusterN>, cute::_1>;
  using Tile = cute::Shape<cute::_64, cute::_64, cute::_64>;  // only its K matters
  using Scheduler = PersistentTileSchedulerSm100StreamK<Tile, Cluster, 3>;
  const auto problem = cute::make_shape(c.m, c.n, c.k, c.batch);
  const auto tile = cute::make_shape(c.tile_m, c.tile_n, 64);
  const cute::Shape<cute::Int<kPair>, cute::_1, cute::_1> pair{};
  cutlass::KernelHardwareInfo hardware;
  hardware.sm_count = c.sm_count;
  const typename Scheduler::Arguments arguments(c.splits, c.swizzle, c.Raster(), c.Mode());
  const auto p =
      Scheduler::to_underlying_arguments(problem, tile, pair, Cluster{}, hardware, arguments);
  gridDim = Scheduler::get_grid_shape(p, problem, tile, pair, Cluster{}, hardware);
  std::printf("%u %u %u\n", gridDim.x, gridDim.y, gridDim.z);
  for (unsigned z = 0; z < gridDim.z; ++z) {
    for (unsigned y = 0; y < gridDim.y; ++y) {
      for (unsigned x = 0; x < gridDim.x; ++x) {
        blockIdx = dim3(x, y, z);
        Scheduler scheduler(nullptr, p, dim3(x % kClusterM, y % kClusterN, 0));
        std::printf("%u %u %u", x, y, z);
        auto work = scheduler.initial_work_tile_info(Cluster{});
        for (bool more = work.is_valid(); more; more = scheduler.continue_current_work(work)) {
          PrintPart(work);
        }
        std::printf("\n");
      }
    }
  }
}

template <int kClusterM, int kClusterN, int kPair>
void Sm100(const Case& c) {
  if (c.decomposition != 0) return Sm100StreamK<kClusterM, kClusterN, kPair>(c);
  using Cluster = cute::Shape<cute::Int<kClusterM>, cute::Int<kClusterN>, cute::_1>;
  using Scheduler = PersistentTileSchedulerSm100<Cluster, 3>;
  const auto problem = cute::make_shape(c.m, c.n, 64, c.batch);
  const auto tile = cute::make_shape(c.tile_m, c.tile_n, 64);
  const cute::Shape<cute::Int<kPair>, cute::_1, cute::_1> pair{};
  cutlass::KernelHardwareInfo hardware;
  hardware.sm_count = c.sm_count;
  typename Scheduler::Arguments arguments;
  arguments.max_swizzle_size = c.swizzle;
  arguments.raster_order = c.Raster();
  const auto p =
      Scheduler::to_underlying_arguments(problem, tile, pair, Cluster{}, hardware, arguments);
  gridDim = Scheduler::get_grid_shape(p, problem, tile, pair, Cluster{}, hardware);
  std::printf("%u %u %u\n", gridDim.x, gridDim.y, gridDim.z);
  Scheduler scheduler(p);
  for (unsigned z = 0; z < gridDim.z; ++z) {
    for (unsigned y = 0; y < gridDim.y; ++y) {
      for (unsigned x = 0; x < gridDim.x; ++x) {
        blockIdx = dim3(x, y, z);
        const auto work = scheduler.initial_work_tile_info(Cluster{});
        std::printf("%u %u %u %d,%d,%d\n", x, y, z, work.M_idx, work.N_idx, work.L_idx);
      }
    }
  }
}

// Cluster shapes are compile-time constants there.
template <int kClusterM, int kClusterN>
void Sm100(const Case& c) {
  if constexpr (kClusterM % 2 == 0) {
    if (c.tile_m == 256) return Sm100<kClusterM, kClusterN, 2>(c);
  }
  Sm100<kClusterM, kClusterN, 1>(c);
}

}  // namespace

int main() {
  Case c;
  while (std::scanf("%d %d %d %d %d %d %d %d %d %d %d %d %d %d", &c.arch, &c.m, &c.n, &c.batch,
                    &c.tile_m, &c.tile_n, &c.cluster_m, &c.cluster_n, &c.sm_count, &c.raster,
                    &c.swizzle, &c.k, &c.splits, &c.decomposition) == 14) {
    const int cluster = c.cluster_m * 10 + c.cluster_n;
    if (c.arch == 90 && c.decomposition != 0) {
      Sm90StreamK(c);
    } else if (c.arch == 90) {
      Sm90(c);
    } else if (cluster == 11) {
      Sm100<1, 1>(c);
    } else if (cluster == 12) {
      Sm100<1, 2>(c);
    } else if (cluster == 21) {
      Sm100<2, 1>(c);
    } else if (cluster == 22) {
      Sm100<2, 2>(c);
    } else if (cluster == 41) {
      Sm100<4, 1>(c);
    } else {
      std::fprintf(stderr, "no cluster %dx%d\n", c.cluster_m, c.cluster_n);
      return 1;
    }
    std::printf("end\n");
  }
  return 0;
}
