// KernelOps for one scaled SM90 kernel.
#pragma once

#include "core/ceil_div.h"
#include "dense/sm90/launcher.h"
#include "scaled/sm90/kernel.h"

namespace bwgemm::scaled::sm90 {

template <class C>
struct Launcher {
  using Dense = dense::sm90::Launcher<C>;

  static Status Supports(const ScaledProblem& p) {
    BWGEMM_RETURN_IF_ERROR(Dense::Supports(p.gemm));
    // Boxes of Q's square blocks keep their places beyond the edge, which TMA counts in 32 bits.
    constexpr int kMost = INT32_MAX - 8 * 256;
    if (p.gemm.m > kMost || p.gemm.n > kMost || p.gemm.k > kMost) {
      return Status::InvalidArgument(p.ToString() + " has an extent above " +
                                     std::to_string(kMost));
    }
    for (const int64_t rows : {p.gemm.m, p.gemm.n}) {
      const int64_t blocks = CeilDiv(p.gemm.k, kScaleBlock);
      if (rows * blocks <= INT32_MAX / p.gemm.batch) continue;
      return Status::InvalidArgument(p.ToString() + " may have more than 2^31 - 1 scales");
    }
    return Status::Ok();
  }

  static size_t WorkspaceBytes(const ScaledProblem&) { return 0; }

  static Status Prepare(int device) {
    static OncePerDevice once;
    return once.Run(device, [device] {
      bwgemm::sm90::ProbeGpcs(device);
      return SetSharedMemoryLimit(Function(), C::kSharedBytes);
    });
  }

  static Status Launch(const ScaledProblem& p, void*, cudaStream_t stream) {
    Params params{};
    dim3 grid;
    BWGEMM_RETURN_IF_ERROR(Dense::MakeParams(p.gemm, &params, &grid));
    return LaunchWithScales(p, Function(), &params, Shape(grid, C::kSharedBytes), stream);
  }

  static Status LaunchLinked(const ScaledProblem& p, const void* function, const void* arguments,
                             void*, cudaStream_t stream) {
    LinkedParams params{};
    dim3 grid;
    BWGEMM_RETURN_IF_ERROR(Dense::MakeLinkedParams(p.gemm, arguments, &params, &grid));
    constexpr int kSharedBytes = C::WithEpilogue::kSharedBytes;
    return LaunchWithScales(p, function, &params, Shape(grid, kSharedBytes), stream);
  }

  static const void* Function() { return reinterpret_cast<const void*>(&ScaledGemmKernelSm90<C>); }

 private:
  static LaunchShape Shape(dim3 grid, size_t shared_bytes) {
    return {grid, dim3(C::kClusterM, C::kClusterN), dim3(dense::sm90::kThreads), shared_bytes};
  }

  template <class LaunchParams>
  static Status LaunchWithScales(const ScaledProblem& p, const void* function, LaunchParams* params,
                                 const LaunchShape& shape, cudaStream_t stream) {
    params->p_scales = C::kSwapAb ? p.b : p.a;
    params->q_scales = C::kSwapAb ? p.a : p.b;
    return LaunchClusters(function, *params, shape, stream);
  }
};

template <class Spec>
KernelEntry MakeEntry(const char* name, const char* f32_twin) {
  using C = Config<Spec>;
  using L = Launcher<C>;
  return {C::Info(name, f32_twin, Arch::kSm90, C::kStages, /*uneven_parts=*/true),
          {&L::Supports, &L::WorkspaceBytes, &L::Prepare, &L::Launch, &L::Dense::PrepareLinked,
           &L::LaunchLinked}};
}

}  // namespace bwgemm::scaled::sm90
