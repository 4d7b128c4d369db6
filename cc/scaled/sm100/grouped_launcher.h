// KernelOps for one grouped scaled SM100 kernel.
#pragma once

#include "core/epilogue_arguments.h"
#include "core/mma_format.h"
#include "grouped/sm100/launcher.h"
#include "scaled/limits.h"
#include "scaled/sm100/grouped_kernel.h"
#include "scaled/sm100/grouped_mma_launcher.h"

namespace bwgemm::scaled::sm100 {

template <class C>
struct GroupedLauncher {
  using Plain = grouped::sm100::Launcher<C>;

  static Status Supports(const GroupedScaledProblem& problem) {
    const grouped::GroupedProblem& p = problem.grouped;
    BWGEMM_RETURN_IF_ERROR(CheckPitches(p, C::kKGrouped, C::kOut));
    return grouped::CheckCounts(p, Plain::kTile);
  }

  static size_t WorkspaceBytes(const GroupedScaledProblem&) { return 0; }

  static Status Prepare(int device) {
    return SetSharedMemoryLimitOnce<&Function, C::kSharedBytes>(device);
  }

  static Status Launch(const GroupedScaledProblem& problem, void*, cudaStream_t stream) {
    GroupedParams params{};
    return LaunchWithScales(problem, Function(), params, stream);
  }

  static Status LaunchLinked(const GroupedScaledProblem& problem, const void* function,
                             const void* arguments, void*, cudaStream_t stream) {
    WithEpilogue<GroupedParams> params{};
    params.epilogue = *static_cast<const EpilogueArguments*>(arguments);
    return LaunchWithScales(problem, function, params, stream);
  }

  // That of all types.
  static const void* Function() {
    return reinterpret_cast<const void*>(
        &GroupedScaledKernel<GroupedScaledConfig<typename C::Bytes>>);
  }

 private:
  template <class LaunchParams>
  static Status LaunchWithScales(const GroupedScaledProblem& problem, const void* function,
                                 LaunchParams& params, cudaStream_t stream) {
    const grouped::GroupedProblem& p = problem.grouped;
    BWGEMM_RETURN_IF_ERROR(Plain::MakeMaps(p, &params));
    Plain::SetSchedule(p, &params);
    params.p_scales = problem.a;
    params.q_scales = problem.b;
    params.p_rows = C::kKGrouped ? p.k : p.m;
    params.q_rows = p.n;
    params.p_format = MmaFormat(C::kA);
    params.q_format = MmaFormat(C::kB);
    return Plain::LaunchKernel(function, p, params, stream);
  }
};

template <class Spec>
using GroupedConfig = std::conditional_t<Spec::kScaleUse == ScaleUse::kMma, GroupedMmaConfig<Spec>,
                                         GroupedScaledConfig<Spec>>;

template <class C>
GroupedKernelEntry MakeGroupedEntry(const char* name) {
  using L =
      std::conditional_t<C::kScaleUse == ScaleUse::kMma, GroupedMmaLauncher<C>, GroupedLauncher<C>>;
  GroupedKernelEntry entry{C::Info(name, Arch::kSm100, C::kStages),
                           {&L::Supports, &L::WorkspaceBytes, &L::Prepare, &L::Launch}};
  if constexpr (!C::kKGrouped) {
    entry.ops.prepare_linked = &L::Plain::PrepareLinked;
    entry.ops.launch_linked = &L::LaunchLinked;
  }
  return entry;
}

}  // namespace bwgemm::scaled::sm100
