// KernelOps for one SM90 grouped kernel: problem -> tensor maps and schedule -> launch.
#pragma once

#include <algorithm>

#include "core/helper_kernels.h"
#include "core/launch.h"
#include "core/tensor_map.h"
#include "grouped/limits.h"
#include "grouped/sm90/kernel.h"

namespace bwgemm::grouped::sm90 {

// Before each launch. A kernel and not a memset: profilers, and timers built on them, count
// kernels.
static __global__ void ClearCounterKernel(int32_t* counter) { *counter = 0; }
static const HelperKernels kClearCounter{reinterpret_cast<const void*>(&ClearCounterKernel)};

template <class C>
struct Launcher {
  // Of a cluster: along the rows of A (k-grouped: its columns), and along N.
  static constexpr int kPTile = C::kPRows * C::kClusterM, kQTile = C::kTileN * C::kClusterN;
  static constexpr TileShape kTile{C::kContraction, C::kSwapAb ? kQTile : kPTile,
                                   C::kSwapAb ? kPTile : kQTile};
  // What is narrower: the operand whose rows are the least aligned.
  static constexpr DType kNarrow = SizeOf(C::kA) < SizeOf(C::kB) ? C::kA : C::kB;

  static Status Supports(const GroupedProblem& p) { return CheckLimits(p, kTile, kNarrow); }

  // An operand with the stage S: a matrix of mn x k per index of the last extent. The box, of
  // box_mn, is what one TMA instruction moves.
  template <class S>
  static Status Map(const void* data, DType dtype, int64_t mn, int64_t k, int64_t matrices,
                    int box_mn, CUtensorMap* map) {
    if (S::kKMajor) return EncodeTensorMap({data, dtype, k, mn, matrices, S::kBoxK, box_mn}, map);
    return EncodeTensorMap({data, dtype, mn, k, matrices, box_mn, S::kBoxK}, map);
  }
  static Status MapResult(const GroupedProblem& p, int64_t rows, int64_t matrices,
                          CUtensorMap* map) {
    TensorMapSpec d{p.d, C::kOut, p.n, rows, matrices, C::kStoreColumns, C::kStoreRows};
    if (p.halves) d.pitch1 = int64_t{p.n} * 2;
    return EncodeTensorMap(d, map);
  }

  static Status MakeParams(const GroupedProblem& p, Params* out) {
    using A = std::conditional_t<C::kSwapAb, typename C::Q, typename C::P>;
    using B = std::conditional_t<C::kSwapAb, typename C::P, typename C::Q>;
    constexpr int kABox = C::kSwapAb ? C::kQBox : C::P::kBoxRows;
    constexpr int kBBox = C::kSwapAb ? C::P::kBoxRows : C::kQBox;
    Params& params = *out;
    CUtensorMap *a = C::kSwapAb ? &params.q : &params.p, *b = C::kSwapAb ? &params.p : &params.q;
    const int64_t lhs_matrices = p.a_batched ? p.batch : 1;
    const int64_t rhs_batches = p.b_batched ? p.batch : 1;
    int32_t b_batch = p.b_batched, b_expert = 0;
    if constexpr (C::kKGrouped) {
      BWGEMM_RETURN_IF_ERROR(Map<A>(p.a, C::kA, p.k, p.m, lhs_matrices, kABox, a));
      BWGEMM_RETURN_IF_ERROR(Map<B>(p.b, C::kB, p.n, p.m, rhs_batches, kBBox, b));
      BWGEMM_RETURN_IF_ERROR(MapResult(p, p.k, int64_t{p.batch} * p.experts, &params.d));
      params.d_batch = p.experts;
      params.d_expert = 1;
    } else {
      BWGEMM_RETURN_IF_ERROR(Map<A>(p.a, C::kA, p.m, p.k, lhs_matrices, kABox, a));
      BWGEMM_RETURN_IF_ERROR(
          Map<B>(p.b, C::kB, int64_t{p.n} * C::kPHalves, p.k, rhs_batches * p.experts, kBBox, b));
      BWGEMM_RETURN_IF_ERROR(MapResult(p, p.m, p.batch, &params.d));
      b_batch = p.b_batched ? p.experts : 0;
      b_expert = 1;
      params.d_batch = 1;
    }
    params.p_batch = C::kSwapAb ? b_batch : p.a_batched;
    params.q_batch = C::kSwapAb ? p.a_batched : b_batch;
    (C::kSwapAb ? params.p_expert : params.q_expert) = b_expert;
    params.k_blocks = static_cast<int32_t>(CeilDiv(p.k, C::kTileK));
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
    s.row_tile = kTile.rows;
    s.row_step = C::kRowStep;
    s.row_tiles = static_cast<int32_t>(CeilDiv(p.k, kTile.rows));
    s.col_tiles = static_cast<int32_t>(CeilDiv(p.n, kTile.columns));
    s.swizzle = p.swizzle;
    s.vertical = p.order == Order::kVertical;
    return Status::Ok();
  }

  static Status Prepare(int device) {
    return SetSharedMemoryLimitOnce<&Function, C::kSharedBytes>(device);
  }

  static Status Launch(const GroupedProblem& p, void* workspace, cudaStream_t stream) {
    Params params{};
    BWGEMM_RETURN_IF_ERROR(MakeParams(p, &params));
    return LaunchKernel(Function(), p, params, workspace, stream);
  }

  // LaunchParams: `Params`, perhaps with more behind them.
  template <class LaunchParams>
  static Status LaunchKernel(const void* function, const GroupedProblem& p, LaunchParams& params,
                             void* workspace, cudaStream_t stream) {
    const int64_t tiles = MostTiles(p, kTile);
    const int clusters = static_cast<int>(std::min<int64_t>(tiles, p.sm_count / C::kCluster));
    if (tiles > clusters) {
      params.counter = static_cast<int32_t*>(workspace);
      ClearCounterKernel<<<1, 1, 0, stream>>>(params.counter);
      BWGEMM_RETURN_IF_CUDA_ERROR(cudaGetLastError());
    }

    const LaunchShape shape{dim3(clusters * C::kCluster), dim3(C::kCluster), dim3(kThreads),
                            C::kSharedBytes};
    return LaunchClusters(function, params, shape, stream);
  }

  // With an epilogue linked in. Of the kernel's own config, with `kLinked`.
  static Status PrepareLinked(const void* function, int) {
    return SetSharedMemoryLimit(function, C::kSharedBytes);
  }
  static Status LaunchLinked(const GroupedProblem& p, const void* function, const void* arguments,
                             void* workspace, cudaStream_t stream) {
    BWGEMM_RETURN_IF_ERROR(Supports(p));
    LinkedParams params{};
    const auto& epilogue = params.epilogue = *static_cast<const EpilogueArguments*>(arguments);
    BWGEMM_RETURN_IF_ERROR(MakeParams(p, &params));
    params.pitch = p.halves ? 2 * p.n : p.n;
    GroupedProblem other = p;
    for (int i = 0; i < kMaxStaged; ++i) {
      if (const int operand = epilogue.staged_operands[i]; operand >= 0) {
        other.d = const_cast<void*>(epilogue.operands[operand]);
        other.halves = false;
        BWGEMM_RETURN_IF_ERROR(MapResult(other, p.m, p.batch, &params.staged[i]));
      }
      if (const int result = epilogue.staged_results[i]; result >= 0) {
        other.d = epilogue.results[result];
        other.halves = p.halves && i == 0;
        BWGEMM_RETURN_IF_ERROR(MapResult(other, p.m, p.batch, &params.stored[i]));
      }
    }
    return LaunchKernel(function, p, params, workspace, stream);
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

// Of a kernel that an epilogue may be linked into.
template <class C>
KernelEntry MakeLinkedEntry(const char* name) {
  KernelEntry entry = MakeEntry<C>(name);
  entry.ops.prepare_linked = [](const void* function, int device) {
    return Launcher<typename C::WithEpilogue>::PrepareLinked(function, device);
  };
  entry.ops.launch_linked = [](const GroupedProblem& p, const void* function, const void* arguments,
                               void* workspace, cudaStream_t stream) {
    using Linked = typename C::WithEpilogue;
    static_assert(Linked::kSharedBytes == C::WithGatedEpilogue::kSharedBytes, "prepared alike");
    return p.gated ? Launcher<typename C::WithGatedEpilogue>::LaunchLinked(p, function, arguments,
                                                                           workspace, stream)
                   : Launcher<Linked>::LaunchLinked(p, function, arguments, workspace, stream);
  };
  return entry;
}

}  // namespace bwgemm::grouped::sm90
