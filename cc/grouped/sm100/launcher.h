// KernelOps for one SM100 grouped kernel: problem -> tensor maps and schedule -> launch.
#pragma once

#include <algorithm>

#include "core/launch.h"
#include "grouped/kernel_table.h"
#include "grouped/sm100/kernel.h"
#include "grouped/sm100/tensor_maps.h"

namespace bwgemm::grouped::sm100 {

template <class C>
struct Launcher {
  static Status MakeMaps(const GroupedProblem& p, Params* params) {
    const Matrices lhs{p.lhs, C::kIn, p.k, p.m, p.lhs_batched ? p.batch : 1};
    const int64_t rhs_batch = p.rhs_batched ? p.batch : 1;
    CUtensorMap& lhs_map = C::kSwapAb ? params->q : params->p;
    CUtensorMap& rhs_map = C::kSwapAb ? params->p : params->q;
    if constexpr (C::kContract) {
      const Matrices rhs{p.rhs, C::kIn, p.n, p.m, rhs_batch};
      const Matrices d{p.d, C::kOut, p.n, p.k, int64_t{p.batch} * p.experts};
      const Box box{kSwizzle, C::kTileK};
      BWGEMM_RETURN_IF_ERROR(Encode(lhs, box, /*bounded=*/true, &lhs_map));
      BWGEMM_RETURN_IF_ERROR(Encode(rhs, box, /*bounded=*/true, &rhs_map));
      return Encode(d, {C::kStoreColumns, C::kStoreRows}, /*bounded=*/true, &params->d);
    } else {
      const bool k_major = C::kRhs == RhsMajor::kK;
      const Matrices rhs{p.rhs, C::kIn, k_major ? p.k : p.n, k_major ? p.n : p.k,
                         rhs_batch * p.experts};
      const Matrices d{p.d, C::kOut, p.n, p.m, p.batch};
      const int lhs_rows = C::kSwapAb ? C::kQRows : kLanes;
      const int rhs_rows = C::kSwapAb ? kLanes : C::kQRows;
      BWGEMM_RETURN_IF_ERROR(Encode(lhs, {C::kTileK, lhs_rows}, /*bounded=*/true, &lhs_map));
      BWGEMM_RETURN_IF_ERROR(Encode(rhs,
                                    k_major ? Box{C::kTileK, rhs_rows} : Box{kSwizzle, C::kTileK},
                                    /*bounded=*/false, &rhs_map));
      const auto swizzle = C::kSwapAb ? CU_TENSOR_MAP_SWIZZLE_NONE : CU_TENSOR_MAP_SWIZZLE_128B;
      return Encode(d, {C::kStoreColumns, C::kStoreRows, swizzle}, /*bounded=*/true, &params->d);
    }
  }

  static Status MakeParams(const GroupedProblem& p, Params* params) {
    BWGEMM_RETURN_IF_ERROR(MakeMaps(p, params));
    const int lhs_batch = p.lhs_batched ? 1 : 0;
    const int rhs_matrices = C::kContract ? 1 : p.experts;
    const int rhs_batch = p.rhs_batched ? rhs_matrices : 0;
    const int rhs_expert = C::kContract ? 0 : 1;
    params->p_batch = C::kSwapAb ? rhs_batch : lhs_batch;
    params->p_expert = C::kSwapAb ? rhs_expert : 0;
    params->q_batch = C::kSwapAb ? lhs_batch : rhs_batch;
    params->q_expert = C::kSwapAb ? 0 : rhs_expert;
    params->d_batch = C::kContract ? p.experts : 1;
    params->d_expert = C::kContract ? 1 : 0;
    params->d_rows = C::kContract ? p.k : p.m;
    params->d_columns = p.n;
    params->k_blocks = (p.k - 1) / C::kTileK + 1;

    ScheduleParams& s = params->schedule;
    s.sizes = p.sizes;
    s.offset = p.offset;
    s.sizes_pitch = p.sizes_batched ? p.groups : 0;
    s.offset_pitch = p.offset_batched ? 1 : 0;
    s.m = p.m;
    s.groups = p.groups;
    s.experts = p.experts;
    s.batch = p.batch;
    s.row_tile = C::kSwapAb ? C::kTileN : C::kTileM;
    s.row_step = C::kWidthStep;
    s.row_tiles = (p.k - 1) / C::kTileM + 1;
    s.col_tiles = (p.n - 1) / (C::kSwapAb ? C::kTileM : C::kTileN) + 1;
    s.swizzle = p.swizzle;
    s.vertical = p.order == Order::kVertical;
    return Status::Ok();
  }

  static Status Prepare(int device) {
    static OncePerDevice once;
    return once.Run(device, [] { return SetSharedMemoryLimit(Function(), C::kSharedBytes); });
  }

  static Status Launch(const GroupedProblem& p, void*, cudaStream_t stream) {
    Params params{};
    BWGEMM_RETURN_IF_ERROR(MakeParams(p, &params));
    const ScheduleParams& s = params.schedule;
    int64_t clusters = int64_t{s.batch} * s.col_tiles;
    if (C::kContract) {
      clusters *= int64_t{s.experts} * s.row_tiles;  // one for each tile: LaunchControl
    } else {
      // No more than there can be tiles. Every group, and the rows of none, may leave one part
      // empty.
      clusters *= (p.m - 1) / s.row_tile + 1 + std::min<int64_t>(s.groups + 1, p.m);
      clusters = std::min<int64_t>(clusters, std::max(p.sm_count / C::kCtas, 1));
    }

    const LaunchShape shape{dim3(static_cast<unsigned>(clusters * C::kCtas)), dim3(C::kCtas),
                            dim3(kThreads), C::kSharedBytes};
    return LaunchClusters(Function(), params, shape, stream);
  }

  static const void* Function() { return reinterpret_cast<const void*>(&GroupedGemmKernel<C>); }

  static size_t WorkspaceBytes(const GroupedProblem&) { return 0; }
};

template <class C>
KernelEntry MakeEntry(const char* name) {
  using L = Launcher<C>;
  return {{name, Arch::kSm100, C::kKind, C::kIn, C::kOut, C::kRhs, C::kTileM, C::kTileN, C::kTileK,
           C::kClusterM, C::kClusterN, C::kSwapAb,
           C::kClusterM == 2 ? Schedule::k2Sm : Schedule::k1Sm, C::kStages},
          {&L::WorkspaceBytes, &L::Prepare, &L::Launch}};
}

}  // namespace bwgemm::grouped::sm100
