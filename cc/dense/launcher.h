// KernelOps for one GemmKernel (SM100): problem -> CUTLASS arguments -> kernel parameters ->
// launch.
#pragma once

#include "core/ceil_div.h"
#include "core/launch.h"
#include "core/mma_format.h"
#include "cutlass/device_kernel.h"
#include "dense/gemm_kernel.h"
#include "dense/limits.h"
#include "dense/problem.h"
#include "dense/split_k.h"

namespace bwgemm::dense {

template <class Gemm>
struct Launcher {
  using Kernel = typename Gemm::Kernel;
  using Arguments = typename Kernel::Arguments;

  // A CUTLASS stride has a static 1 for the contiguous dimension.
  template <class Stride>
  static Stride MakeStride(const GemmOperand& operand) {
    Stride s{};
    if constexpr (cute::is_static_v<cute::remove_cvref_t<decltype(cute::get<0>(Stride{}))>>) {
      cute::get<1>(s) = operand.pitch;
    } else {
      cute::get<0>(s) = operand.pitch;
    }
    cute::get<2>(s) = operand.batch_pitch;
    return s;
  }

  static Arguments MakeArguments(const GemmProblem& p) {
    using Out = typename Gemm::Out;
    // With swapped operands CUTLASS sees the transposed problem.
    const GemmOperand& a = Gemm::kSwapAb ? p.b : p.a;
    const GemmOperand& b = Gemm::kSwapAb ? p.a : p.b;

    Arguments args{};
    args.mode = cutlass::gemm::GemmUniversalMode::kGemm;
    args.problem_shape = {Gemm::kSwapAb ? p.n : p.m, Gemm::kSwapAb ? p.m : p.n, p.k, p.batch};
    args.mainloop.ptr_A = static_cast<const typename Gemm::A*>(a.data);
    args.mainloop.dA = MakeStride<typename Kernel::StrideA>(a);
    args.mainloop.ptr_B = static_cast<const typename Gemm::B*>(b.data);
    args.mainloop.dB = MakeStride<typename Kernel::StrideB>(b);
    args.epilogue.ptr_D = static_cast<Out*>(const_cast<void*>(p.d.data));
    args.epilogue.dD = MakeStride<typename Kernel::StrideD>(p.d);
    if constexpr (Gemm::kTakesFormats) {
      args.mainloop.formats = {MmaFormat(Gemm::kAType), MmaFormat(Gemm::kBType)};
    }
    if constexpr (std::is_same_v<decltype(args.epilogue.thread), sm100::ResultFormat>) {
      args.epilogue.thread.f16 = Gemm::kOut == DType::kF16;
    }
    args.hw_info.device_id = p.device;
    args.hw_info.sm_count = p.sm_count;
    args.scheduler.max_swizzle_size = p.swizzle;
    using Raster = decltype(args.scheduler.raster_order);
    args.scheduler.raster_order = p.raster_order == RasterOrder::kAlongM   ? Raster::AlongM
                                  : p.raster_order == RasterOrder::kAlongN ? Raster::AlongN
                                                                           : Raster::Heuristic;
    if constexpr (Gemm::kStreamK) {
      using Mode = decltype(args.scheduler.decomposition_mode);
      using Reduction = decltype(args.scheduler.reduction_mode);
      switch (p.decomposition) {
        case Decomposition::kHeuristic:
          args.scheduler.decomposition_mode = Mode::Heuristic;
          break;
        case Decomposition::kDataParallel:
          args.scheduler.decomposition_mode = Mode::DataParallel;
          break;
        case Decomposition::kSplitK:
          args.scheduler.decomposition_mode = Mode::SplitK;
          break;
        case Decomposition::kStreamK:
          args.scheduler.decomposition_mode = Mode::StreamK;
          break;
      }
      args.scheduler.splits = p.splits;
      // The parts of a tile are added in the order of K, whichever CTA is first.
      args.scheduler.reduction_mode = Reduction::Deterministic;
    }
    return args;
  }

  static Status Supports(const GemmProblem& p) {
    BWGEMM_RETURN_IF_ERROR(CheckAligned(p, Gemm::kA, Gemm::kB, Gemm::kOut));  // pitches, too
    if (!Kernel::can_implement(MakeArguments(p))) return NotAligned(p);
    return CheckGrid(p);
  }

  // The outer dimension of the tiles and the batch lie along y and z of the grid.
  static Status CheckGrid(const GemmProblem& p) {
    using CtaTile = typename Gemm::CtaTile;
    const int64_t m = Gemm::kSwapAb ? p.n : p.m, n = Gemm::kSwapAb ? p.m : p.n;
    const int64_t clusters_m =
        CeilDiv(CeilDiv(m, static_cast<int64_t>(cute::size<0>(CtaTile{}))), Gemm::kClusterM);
    const int64_t clusters_n =
        CeilDiv(CeilDiv(n, static_cast<int64_t>(cute::size<1>(CtaTile{}))), Gemm::kClusterN);
    const int64_t y_of_n = clusters_m * Gemm::kClusterN, y_of_m = clusters_n * Gemm::kClusterN;
    bool along_m = p.raster_order == RasterOrder::kAlongM;
    if (p.raster_order == RasterOrder::kHeuristic) {
      along_m = clusters_n > clusters_m || y_of_n > kMostGridY;  // as CUTLASS does
    }
    if ((along_m ? y_of_m : y_of_n) <= kMostGridY && p.batch <= kMostGridY) return Status::Ok();
    return Status::InvalidArgument(p.ToString() + " has more tiles or matrices than the " +
                                   std::to_string(kMostGridY) + " along y and z of a grid");
  }

  static size_t WorkspaceBytes(const GemmProblem& p) {
    return Kernel::get_workspace_size(MakeArguments(p));
  }

  static Status Prepare(int device) {
    return SetSharedMemoryLimitOnce<&Function, Kernel::SharedStorageSize>(device);
  }

  static Status Launch(const GemmProblem& p, void* workspace, cudaStream_t stream) {
    return Launch(MakeArguments(p), workspace, stream);
  }

  static Status Launch(const Arguments& args, void* workspace, cudaStream_t stream,
                       const void* function = Function()) {
    typename Kernel::Params params = Kernel::to_underlying_arguments(args, workspace);
    if constexpr (Gemm::kStreamK) BWGEMM_RETURN_IF_ERROR(ClearPartCounters(params, stream));

    const LaunchShape shape{Kernel::get_grid_shape(params), dim3(Gemm::kClusterM, Gemm::kClusterN),
                            Kernel::get_block_shape(), Kernel::SharedStorageSize};
    return LaunchClusters(function, params, shape, stream);
  }

  // CTAs wait for the earlier parts of a tile by counters, which must start from zero. XLA does not
  // clear the workspace. The counters follow the parts' results, where the device code looks for
  // them; without shared tiles there are none.
  static Status ClearPartCounters(const typename Kernel::Params& params, cudaStream_t stream) {
    using Units = cutlass::gemm::kernel::detail::PersistentTileSchedulerSm90StreamKParams;
    const Units& units = params.scheduler.sk_params_;
    const uint64_t tiles =
        units.divmod_splits_.divisor > 1 ? units.units_per_problem_ : units.sk_tiles_;
    if (tiles == 0) return Status::Ok();
    using CtaTile = typename Gemm::CtaTile;
    const cutlass::gemm::GemmCoord tile(cute::size<0>(CtaTile{}), cute::size<1>(CtaTile{}),
                                        cute::size<2>(CtaTile{}));
    constexpr uint32_t kBits = 32, kCountersOfTile = 1;
    char* counters = static_cast<char*>(units.reduction_workspace_) +
                     Units::get_reduction_workspace_size(tiles, tile, kBits);
    return ClearCounters(counters, Units::get_barrier_workspace_size(tiles, kCountersOfTile, kBits),
                         stream);
  }

  static const void* Function() {
    return reinterpret_cast<const void*>(&cutlass::device_kernel<Kernel>);
  }
};

template <class Gemm>
KernelEntry MakeEntry(const char* name, const char* f32_twin) {
  using L = Launcher<Gemm>;
  return {Gemm::Info(name, f32_twin, Arch::kSm100, Gemm::kStages, /*uneven_parts=*/false),
          {&L::Supports, &L::WorkspaceBytes, &L::Prepare, &L::Launch}};
}

}  // namespace bwgemm::dense
