// KernelOps for one cluster-K kernel: problem -> tensor maps -> launch.
#pragma once

#include <algorithm>

#include "core/ceil_div.h"
#include "core/epilogue_arguments.h"
#include "core/launch.h"
#include "core/tensor_map.h"
#include "dense/cluster_k/kernel.h"
#include "dense/limits.h"
#include "dense/problem.h"

namespace bwgemm::dense::cluster_k {

template <class C>
struct Launcher {
  static int64_t TilesOfBatch(const GemmProblem& p) {
    return CeilDiv(p.n, kBlock) * CeilDiv(p.m, kBlock);
  }

  // Fits in 32 bits where Supports says so.
  static int64_t Ctas(const GemmProblem& p) { return TilesOfBatch(p) * p.batch * p.splits; }

  static Status Supports(const GemmProblem& p) {
    // CTAs of a cluster may share a multiprocessor.
    if (p.splits > kCtasPerSm * p.sm_count) return CheckCluster(p.splits, p.sm_count);
    BWGEMM_RETURN_IF_ERROR(CheckAligned(p, C::kIn, C::kIn, C::kOut));
    if (p.n % (kAlignmentBytes / SizeOf(C::kOut)) != 0) return NotAligned(p);
    return CheckTiles(p, TilesOfBatch(p), 1, int64_t{p.batch} * p.splits, "tiles times parts of K");
  }

  // As deep as the CTAs that share a multiprocessor allow, if all clusters are to run at once.
  static int Stages(const GemmProblem& p) {
    const int64_t clusters = TilesOfBatch(p) * p.batch;
    const int64_t at_once = std::max(ClustersAtOnce(p.splits, p.sm_count), 1);
    return StagesOf(
        static_cast<int>(std::clamp<int64_t>(CeilDiv(clusters, at_once), 1, kCtasPerSm)));
  }

  static size_t WorkspaceBytes(const GemmProblem&) { return 0; }

  // A K-major operand of fewer rows than a tile has boxes of that many.
  static int BoxRows(int rows) { return std::min(rows, kBlock); }

  static Status Map(const GemmOperand& x, bool k_major, int mn, const GemmProblem& p,
                    CUtensorMap* map) {
    TensorMapSpec t;
    t.data = x.data;
    t.dtype = C::kIn;
    t.extent0 = k_major ? p.k : mn;
    t.extent1 = k_major ? mn : p.k;
    t.extent2 = x.batch_pitch ? p.batch : 1;
    t.box0 = kBlock;
    t.box1 = k_major ? BoxRows(mn) : kBlock;
    t.pitch1 = x.pitch;
    t.pitch2 = x.batch_pitch;
    return EncodeTensorMap(t, map);
  }

  static Status SetLimits(const void* function) {
    BWGEMM_RETURN_IF_ERROR(SetSharedMemoryLimit(function, SharedBytes(kMaxStages)));
    return BWGEMM_CUDA_STATUS(cudaFuncSetAttribute(
        function, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared));
  }

  static Status Prepare(int device) {
    static OncePerDevice once;
    return once.Run(device, [] { return SetLimits(Function()); });
  }

  static Status PrepareLinked(const void* function, int) { return SetLimits(function); }

  static Status MakeParams(const GemmProblem& p, Params* made) {
    Params& params = *made;
    BWGEMM_RETURN_IF_ERROR(Map(p.b, C::kPKMajor, p.n, p, &params.p));
    BWGEMM_RETURN_IF_ERROR(Map(p.a, C::kQKMajor, p.m, p, &params.q));
    params.d = const_cast<void*>(p.d.data);
    params.d_pitch = p.d.pitch;
    params.d_batch_pitch = p.d.batch_pitch;
    params.rows = p.m;
    params.columns = p.n;
    params.stages = Stages(p);
    params.k_blocks = static_cast<int32_t>(CeilDiv(p.k, kBlock));
    params.p_tiles = static_cast<int32_t>(CeilDiv(p.n, kBlock));
    params.q_tiles = static_cast<int32_t>(CeilDiv(p.m, kBlock));
    params.stage_bytes =
        kRowBytes * ((C::kPKMajor ? BoxRows(p.n) : kBlock) + (C::kQKMajor ? BoxRows(p.m) : kBlock));
    params.p_batched = p.b.batch_pitch != 0;
    params.q_batched = p.a.batch_pitch != 0;
    // Weights that one tile reads once should not push the rows out of L2. Weights that a batch or
    // several blocks of rows share should stay.
    const bool streams = params.q_tiles == 1 && (p.batch == 1 || params.p_batched);
    params.p_cache_hint = static_cast<uint64_t>(streams ? cute::TMA::CacheHintSm90::EVICT_FIRST
                                                        : cute::TMA::CacheHintSm90::EVICT_NORMAL);
    return Status::Ok();
  }

  static LaunchShape ShapeOf(const GemmProblem& p, const Params& params) {
    return {dim3(static_cast<unsigned>(Ctas(p))), dim3(p.splits), dim3(kThreads),
            static_cast<size_t>(SharedBytes(params.stages))};
  }

  static Status Launch(const GemmProblem& p, void*, cudaStream_t stream) {
    Params params{};
    BWGEMM_RETURN_IF_ERROR(MakeParams(p, &params));
    return LaunchClusters(Function(), params, ShapeOf(p, params), stream);
  }

  static Status LaunchLinked(const GemmProblem& p, const void* function, const void* arguments,
                             void*, cudaStream_t stream) {
    WithEpilogue<Params> params{};
    params.epilogue = *static_cast<const EpilogueArguments*>(arguments);
    BWGEMM_RETURN_IF_ERROR(MakeParams(p, &params));
    return LaunchClusters(function, params, ShapeOf(p, params), stream);
  }

  static const void* Function() { return reinterpret_cast<const void*>(&ClusterKKernel<C>); }
};

template <class C>
KernelEntry MakeEntry(const char* name, const char* f32_twin) {
  using L = Launcher<C>;
  return {C::Info(name, f32_twin, Arch::kSm90, kMaxStages, /*uneven_parts=*/false),
          {&L::Supports, &L::WorkspaceBytes, &L::Prepare, &L::Launch, &L::PrepareLinked,
           &L::LaunchLinked}};
}

}  // namespace bwgemm::dense::cluster_k
