// KernelOps for one gated SM90 kernel, which exists with an epilogue alone.
#pragma once

#include "dense/sm90/launcher.h"

namespace bwgemm::dense::sm90 {

template <class C>
struct GatedLauncher {
  using Dense = Launcher<C>;

  static Status LaunchLinked(const GemmProblem& p, const void* function, const void* arguments,
                             void*, cudaStream_t stream) {
    GatedParams params{};
    const auto& epilogue = params.epilogue = *static_cast<const EpilogueArguments*>(arguments);
    dim3 grid;
    BWGEMM_RETURN_IF_ERROR(Dense::MakeParams(p, &params, &grid));
    GemmOperand other = p.b;
    other.data = p.b_up;
    BWGEMM_RETURN_IF_ERROR(
        Dense::template Map<typename C::P>(other, C::kTypeP, params.p_rows, p, &params.other_p));
    for (int i = 0; i < kMaxEpilogueResults; ++i) {
      if (!epilogue.results[i]) continue;
      GemmProblem result = p;
      result.d.data = epilogue.results[i];
      BWGEMM_RETURN_IF_ERROR(Dense::MapD(result, &params.results[i]));
    }
    const LaunchShape shape{grid, dim3(C::kClusterM, C::kClusterN), dim3(kThreads),
                            C::kSharedBytes};
    return LaunchClusters(function, params, shape, stream);
  }
};

template <class Spec>
KernelEntry MakeGatedEntry(const char* name, const char*) {
  using C = Config<Spec, /*kLinked=*/true, /*kGated=*/true>;
  using L = Launcher<C>;
  KernelInfo info = C::Info(name, /*f32_twin=*/"", Arch::kSm90, C::kStages, /*uneven_parts=*/false);
  info.contraction = Contraction::kGated;
  return {info,
          {&L::Supports, &L::WorkspaceBytes, /*prepare=*/nullptr, /*launch=*/nullptr,
           &L::PrepareLinked, &GatedLauncher<C>::LaunchLinked}};
}

}  // namespace bwgemm::dense::sm90
