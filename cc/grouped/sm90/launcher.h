// KernelOps for one SM90 grouped kernel: problem -> tensor maps and schedule -> launch.
#pragma once

#include <algorithm>

#include "core/launch.h"
#include "core/tensor_map.h"
#include "grouped/limits.h"
#include "grouped/sm90/kernel.h"

namespace bwgemm::grouped::sm90 {

template <class C>
struct Launcher {
  static constexpr int kClusterTile = C::kTileM * C::kCluster;  // along P
  static constexpr TileShape kTile{C::kContraction, C::kKGrouped ? kClusterTile : C::kTileN,
                                   C::kKGrouped ? C::kTileN : kClusterTile};

  static Status Supports(const GroupedProblem& p) { return CheckLimits(p, kTile, C::kIn); }

  // A matrix per index of the last extent; columns contiguous. The box is what one TMA instruction
  // moves.
  static Status Map(const void* data, DType dtype, int64_t columns, int64_t rows, int64_t matrices,
                    int box_columns, int box_rows, CUtensorMap* map) {
    return EncodeTensorMap({data, dtype, columns, rows, matrices, box_columns, box_rows}, map);
  }

  static Status MakeParams(const GroupedProblem& p, Params* out) {
    Params& params = *out;
    const int64_t lhs_matrices = p.a_batched ? p.batch : 1;
    const int64_t rhs_batches = p.b_batched ? p.batch : 1;
    if constexpr (C::kKGrouped) {
      BWGEMM_RETURN_IF_ERROR(Map(p.a, C::kIn, p.k, p.m, lhs_matrices, kBlock, kBlock, &params.p));
      BWGEMM_RETURN_IF_ERROR(Map(p.b, C::kIn, p.n, p.m, rhs_batches, kBlock, kBlock, &params.q));
      BWGEMM_RETURN_IF_ERROR(Map(p.d, C::kOut, p.n, p.k, int64_t{p.batch} * p.experts,
                                 C::kStoreColumns, C::kStoreRows, &params.d));
      params.p_batch = p.a_batched;
      params.q_batch = p.b_batched;
      params.d_batch = p.experts;
      params.d_expert = 1;
    } else {
      const bool n_major = C::kBMajor == BMajor::kN;
      BWGEMM_RETURN_IF_ERROR(Map(p.b, C::kIn, n_major ? p.n : p.k, n_major ? p.k : p.n,
                                 rhs_batches * p.experts, kBlock, kBlock, &params.p));
      BWGEMM_RETURN_IF_ERROR(Map(p.a, C::kIn, p.k, p.m, lhs_matrices, kBlock, C::kQBox, &params.q));
      BWGEMM_RETURN_IF_ERROR(
          Map(p.d, C::kOut, p.n, p.m, p.batch, C::kStoreColumns, C::kStoreRows, &params.d));
      params.p_batch = p.b_batched ? p.experts : 0;
      params.p_expert = 1;
      params.q_batch = p.a_batched;
      params.d_batch = 1;
    }
    params.k_blocks = (p.k - 1) / C::kTileK + 1;
    params.d_data = p.d;
    params.m = p.m;
    params.n = p.n;

    ScheduleParams& s = params.schedule;
    s.sizes = p.sizes;
    s.offset = p.offset;
    s.sizes_pitch = p.sizes_batched ? p.groups : 0;
    s.offset_pitch = p.offset_batched ? 1 : 0;
    s.m = p.m;
    s.groups = p.groups;
    s.experts = p.experts;
    s.batch = p.batch;
    s.row_tile = C::kTileN;
    s.row_step = C::kColumnStep;
    s.row_tiles = static_cast<int32_t>(CeilDiv(p.k, kClusterTile));
    s.col_tiles = static_cast<int32_t>(CeilDiv(p.n, kTile.columns));
    s.swizzle = p.swizzle;
    s.vertical = p.order == Order::kVertical;
    return Status::Ok();
  }

  static Status Prepare(int device) {
    static OncePerDevice once;
    return once.Run(device, [] { return SetSharedMemoryLimit(Function(), C::kSharedBytes); });
  }

  static Status Launch(const GroupedProblem& p, void* workspace, cudaStream_t stream) {
    Params params{};
    BWGEMM_RETURN_IF_ERROR(MakeParams(p, &params));
    const int64_t tiles = MostTiles(p, kTile);
    const int clusters = static_cast<int>(std::min<int64_t>(tiles, p.sm_count / C::kCluster));
    if (tiles > clusters) {
      params.counter = static_cast<int32_t*>(workspace);
      ClearCounterKernel<<<1, 1, 0, stream>>>(params.counter);
      BWGEMM_RETURN_IF_CUDA_ERROR(cudaGetLastError());
    }

    const LaunchShape shape{dim3(clusters * C::kCluster), dim3(C::kCluster), dim3(kThreads),
                            C::kSharedBytes};
    return LaunchClusters(Function(), params, shape, stream);
  }

  static const void* Function() { return reinterpret_cast<const void*>(&GroupedGemmKernel<C>); }

  static size_t WorkspaceBytes(const GroupedProblem&) { return sizeof(int32_t); }
};

template <class C>
KernelEntry MakeEntry(const char* name) {
  using L = Launcher<C>;
  return {C::Info(name, Arch::kSm90, C::kStages),
          {&L::Supports, &L::WorkspaceBytes, &L::Prepare, &L::Launch}};
}

}  // namespace bwgemm::grouped::sm90
