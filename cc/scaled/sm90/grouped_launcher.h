// KernelOps for one grouped scaled SM90 kernel.
#pragma once

#include "core/ceil_div.h"
#include "grouped/sm90/launcher.h"
#include "scaled/limits.h"
#include "scaled/sm90/grouped_kernel.h"

namespace bwgemm::scaled::sm90 {

template <class C>
struct GroupedLauncher {
  using Plain = grouped::sm90::Launcher<C>;

  static Status Supports(const GroupedScaledProblem& problem) {
    const grouped::GroupedProblem& p = problem.grouped;
    BWGEMM_RETURN_IF_ERROR(CheckPitches(p, C::kKGrouped, C::kOut));
    // Boxes beyond the edge keep their places, which TMA counts in 32 bits.
    constexpr int kMost = INT32_MAX - 8 * 256;
    if (p.m > kMost || p.n > kMost || p.k > kMost) {
      return Status::InvalidArgument(p.ToString() + " has an extent above " +
                                     std::to_string(kMost));
    }
    const int64_t depth = C::kKGrouped ? p.m : p.k;
    const int64_t blocks = CeilDiv(depth, kScaleBlock);
    const int64_t matrices = C::kKGrouped ? 1 : p.experts;
    if (std::max<int64_t>(p.m, p.k) > INT32_MAX / blocks / p.batch ||
        p.n > INT32_MAX / blocks / matrices / p.batch) {
      return Status::InvalidArgument(p.ToString() + " may have more than 2^31 - 1 scales");
    }
    return grouped::CheckCounts(p, Plain::kTile);
  }

  static size_t WorkspaceBytes(const GroupedScaledProblem& problem) {
    return Plain::WorkspaceBytes(problem.grouped);
  }

  static Status Prepare(int device) {
    return SetSharedMemoryLimitOnce<&Function, C::kSharedBytes>(device);
  }

  static Status Launch(const GroupedScaledProblem& problem, void* workspace, cudaStream_t stream) {
    GroupedParams params{};
    return LaunchWithScales(problem, Function(), params, workspace, stream);
  }

  // With an epilogue linked in, which changes neither tiles nor shared memory.
  static Status LaunchLinked(const GroupedScaledProblem& problem, const void* function,
                             const void* arguments, void* workspace, cudaStream_t stream) {
    LinkedGroupedParams params{};
    params.epilogue = *static_cast<const EpilogueArguments*>(arguments);
    return LaunchWithScales(problem, function, params, workspace, stream);
  }

  static const void* Function() {
    return reinterpret_cast<const void*>(&GroupedScaledKernelSm90<C>);
  }

 private:
  template <class LaunchParams>
  static Status LaunchWithScales(const GroupedScaledProblem& problem, const void* function,
                                 LaunchParams& params, void* workspace, cudaStream_t stream) {
    const grouped::GroupedProblem& p = problem.grouped;
    BWGEMM_RETURN_IF_ERROR(Plain::MakeParams(p, &params));
    const int a_rows = C::kKGrouped ? p.k : p.m;
    params.p_scales = C::kSwapAb ? problem.b : problem.a;
    params.q_scales = C::kSwapAb ? problem.a : problem.b;
    params.p_rows = C::kSwapAb ? p.n : a_rows;
    params.q_rows = C::kSwapAb ? a_rows : p.n;
    return Plain::LaunchKernel(function, p, params, workspace, stream);
  }
};

template <class C>
GroupedKernelEntry MakeGroupedEntry(const char* name) {
  using L = GroupedLauncher<C>;
  GroupedKernelEntry entry{C::Info(name, Arch::kSm90, C::kStages),
                           {&L::Supports, &L::WorkspaceBytes, &L::Prepare, &L::Launch}};
  if constexpr (!C::kKGrouped) {
    entry.ops.prepare_linked = &L::Plain::PrepareLinked;
    entry.ops.launch_linked = &L::LaunchLinked;
  }
  return entry;
}

}  // namespace bwgemm::scaled::sm90
