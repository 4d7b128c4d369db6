// KernelOps for one SM100 grouped kernel: problem -> tensor maps and schedule -> launch.
#pragma once

#include <algorithm>

#include "core/epilogue_arguments.h"
#include "core/launch.h"
#include "grouped/limits.h"
#include "grouped/sm100/kernel.h"
#include "grouped/sm100/tensor_maps.h"

namespace bwgemm::grouped::sm100 {

template <class C>
struct Launcher {
  static constexpr TileShape kTile{C::kContraction,
                                   C::kKGrouped || !C::kSwapAb ? C::kTileM : C::kTileN,
                                   C::kSwapAb ? C::kTileM : C::kTileN};

  static Status Supports(const GroupedProblem& p) { return CheckLimits(p, kTile, C::kIn); }

  static Status MakeMaps(const GroupedProblem& p, Params* params) {
    const Matrices lhs{p.a, C::kIn, p.k, p.m, p.a_batched ? p.batch : 1};
    const int64_t rhs_batch = p.b_batched ? p.batch : 1;
    CUtensorMap& lhs_map = C::kSwapAb ? params->q : params->p;
    CUtensorMap& rhs_map = C::kSwapAb ? params->p : params->q;
    if constexpr (C::kTrims) {
      const Matrices transposed{p.a, C::kIn, p.m, p.k, lhs.count};
      const Matrices rhs{p.b, C::kIn, p.m, p.n, rhs_batch};
      const Matrices d{p.d, C::kOut, p.n, p.k, int64_t{p.batch} * p.experts};
      BWGEMM_RETURN_IF_ERROR(Encode(transposed, {C::kTileK, kLanes}, /*bounded=*/false, &lhs_map));
      BWGEMM_RETURN_IF_ERROR(Encode(rhs, {C::kTileK, C::kQRows}, /*bounded=*/false, &rhs_map));
      return Encode(d, {C::kStoreColumns, C::kStoreRows}, /*bounded=*/true, &params->d);
    } else if constexpr (C::kKGrouped) {
      const Matrices rhs{p.b, C::kIn, p.n, p.m, rhs_batch};
      const Matrices d{p.d, C::kOut, p.n, p.k, int64_t{p.batch} * p.experts};
      const Box box{C::kLine, C::kTileK};
      BWGEMM_RETURN_IF_ERROR(Encode(lhs, box, /*bounded=*/true, &lhs_map));
      BWGEMM_RETURN_IF_ERROR(Encode(rhs, box, /*bounded=*/true, &rhs_map));
      return Encode(d, {C::kStoreColumns, C::kStoreRows}, /*bounded=*/true, &params->d);
    } else {
      const bool k_major = C::kBMajor == BMajor::kK;
      const Matrices rhs{p.b, C::kIn, k_major ? p.k : p.n, k_major ? p.n : p.k,
                         rhs_batch * p.experts};
      const Matrices d{p.d, C::kOut, p.n, p.m, p.batch};
      const int lhs_rows = C::kSwapAb ? C::kQRows : kLanes;
      const int rhs_rows = C::kSwapAb ? kLanes : C::kQRows;
      BWGEMM_RETURN_IF_ERROR(Encode(lhs, {C::kTileK, lhs_rows}, /*bounded=*/true, &lhs_map));
      BWGEMM_RETURN_IF_ERROR(Encode(rhs,
                                    k_major ? Box{C::kTileK, rhs_rows} : Box{C::kLine, C::kTileK},
                                    /*bounded=*/false, &rhs_map));
      const auto swizzle = C::kSwapAb ? CU_TENSOR_MAP_SWIZZLE_NONE : CU_TENSOR_MAP_SWIZZLE_128B;
      return Encode(d, {C::kStoreColumns, C::kStoreRows, swizzle}, /*bounded=*/true, &params->d);
    }
  }

  static void SetSchedule(const GroupedProblem& p, Params* params) {
    const int lhs_batch = p.a_batched ? 1 : 0;
    const int rhs_matrices = C::kKGrouped ? 1 : p.experts;
    const int rhs_batch = p.b_batched ? rhs_matrices : 0;
    const int rhs_expert = C::kKGrouped ? 0 : 1;
    params->p_batch = C::kSwapAb ? rhs_batch : lhs_batch;
    params->p_expert = C::kSwapAb ? rhs_expert : 0;
    params->q_batch = C::kSwapAb ? lhs_batch : rhs_batch;
    params->q_expert = C::kSwapAb ? 0 : rhs_expert;
    params->d_batch = C::kKGrouped ? p.experts : 1;
    params->d_expert = C::kKGrouped ? 1 : 0;
    params->d_rows = C::kKGrouped ? p.k : p.m;
    params->d_columns = p.n;
    params->k_blocks = static_cast<int32_t>(CeilDiv(p.k, C::kTileK));

    ScheduleParams& s = params->schedule;
    s.sizes = p.sizes;
    s.offset = p.offset;
    s.sizes_pitch = p.sizes_batched ? p.groups : 0;
    s.offset_pitch = p.offset_batched ? 1 : 0;
    s.m = p.m;
    s.groups = p.groups;
    s.experts = p.experts;
    s.batch = p.batch;
    s.row_tile = kTile.rows;
    // Bands of scales are not divided.
    s.row_step = C::kReadsScales ? kLanes : C::kWidthStep;
    s.row_tiles = static_cast<int32_t>(CeilDiv(p.k, C::kTileM));
    s.col_tiles = static_cast<int32_t>(CeilDiv(p.n, kTile.columns));
    s.swizzle = p.swizzle;
    s.vertical = p.order == Order::kVertical;
  }

  static Status Prepare(int device) {
    return SetSharedMemoryLimitOnce<&Function, C::kSharedBytes>(device);
  }

  static Status Launch(const GroupedProblem& p, void*, cudaStream_t stream) {
    Params params{};
    BWGEMM_RETURN_IF_ERROR(MakeMaps(p, &params));
    SetSchedule(p, &params);
    return LaunchKernel(Function(), p, params, stream);
  }

  template <class LaunchParams>
  static Status LaunchKernel(const void* function, const GroupedProblem& p,
                             const LaunchParams& params, cudaStream_t stream) {
    int64_t clusters = MostTiles(p, kTile);
    if (!C::kKGrouped) {  // k-grouped: one for each tile, see LaunchControl
      clusters = std::min<int64_t>(clusters, std::max(p.sm_count / C::kCtas, 1));
    }

    const LaunchShape shape{dim3(static_cast<unsigned>(clusters * C::kCtas)), dim3(C::kCtas),
                            dim3(kThreads), C::kSharedBytes};
    return LaunchClusters(function, params, shape, stream);
  }

  static Status PrepareLinked(const void* function, int) {
    return SetSharedMemoryLimit(function, C::kSharedBytes);
  }
  static Status LaunchLinked(const GroupedProblem& p, const void* function, const void* arguments,
                             void*, cudaStream_t stream) {
    WithEpilogue<Params> params{};
    params.epilogue = *static_cast<const EpilogueArguments*>(arguments);
    BWGEMM_RETURN_IF_ERROR(MakeMaps(p, &params));
    SetSchedule(p, &params);
    return LaunchKernel(function, p, params, stream);
  }

  static const void* Function() { return reinterpret_cast<const void*>(&GroupedGemmKernel<C>); }

  static size_t WorkspaceBytes(const GroupedProblem&) { return 0; }
};

template <class C>
KernelEntry MakeEntry(const char* name) {
  using L = Launcher<C>;
  return {C::Info(name, Arch::kSm100, C::kStages),
          {&L::Supports, &L::WorkspaceBytes, &L::Prepare, &L::Launch}};
}

// Of a kernel that epilogues are linked into.
template <class C>
KernelEntry MakeLinkedEntry(const char* name) {
  KernelEntry entry = MakeEntry<C>(name);
  entry.ops.prepare_linked = &Launcher<C>::PrepareLinked;
  entry.ops.launch_linked = &Launcher<C>::LaunchLinked;
  return entry;
}

}  // namespace bwgemm::grouped::sm100
