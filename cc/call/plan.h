// How a dense or scaled product is launched: by one kernel, which may have an epilogue, or in parts
// of K, whose results a second launch adds.
#pragma once

#include "call/contractions.h"
#include "call/linked.h"

namespace bwgemm::call {

// The part of a problem that the choice of parts and of the tile order depends on.
inline dense::GemmProblem& GemmOf(dense::GemmProblem& problem) { return problem; }
inline dense::GemmProblem& GemmOf(scaled::ScaledProblem& problem) { return problem.gemm; }
inline const dense::KernelOps& OpsOf(const Kernel& kernel, const dense::GemmProblem&) {
  return *kernel.dense;
}
inline const scaled::KernelOps& OpsOf(const Kernel& kernel, const scaled::ScaledProblem&) {
  return *kernel.scaled;
}

// Writes the options to the problem. Of the splits, only those whose parts the kernel itself adds.
Status SetOptions(const Options& options, const KernelInfo& kernel, dense::GemmProblem* problem);

// How many parts a second launch adds, or why the problem cannot be split.
Status PartsOf(const Options& options, const KernelInfo& kernel, const dense::GemmProblem& problem,
               int64_t* parts);

// Changes a problem into that of its parts: parts as a batch, f32 results at `partials`. Finds the
// kernel that computes the parts, and the bytes of their results.
Status Divide(const Kernel& kernel, int64_t parts, void* partials, dense::GemmProblem* problem,
              const Kernel** twin, size_t* bytes);

// Adds the parts that a launch left in the workspace.
Status AddParts(const Kernel& kernel, const ProductCall& call, int64_t parts,
                const dense::GemmProblem& problem, cudaStream_t stream);

// A problem as launches see it.
template <class Problem>
struct Plan {
  const Kernel* kernel = nullptr;  // that is launched
  Problem problem;
  int64_t parts = 1;         // if more, their f32 results are at the workspace's beginning
  size_t partial_bytes = 0;  // of all parts
  size_t workspace_bytes() const {
    return partial_bytes + OpsOf(*kernel, problem).workspace_bytes(problem);
  }
};

template <class Problem>
Status MakePlan(const Kernel& kernel, const Options& options, const Problem& whole, void* workspace,
                Plan<Problem>* plan) {
  const KernelInfo& info = kernel.info;
  plan->kernel = &kernel;
  plan->problem = whole;
  dense::GemmProblem& gemm = GemmOf(plan->problem);
  BWGEMM_RETURN_IF_ERROR(SetOptions(options, info, &gemm));
  BWGEMM_RETURN_IF_ERROR(WithContext(PartsOf(options, info, gemm, &plan->parts), info, whole));
  const auto supports = [&] {
    return WithContext(OpsOf(*plan->kernel, whole).supports(plan->problem), plan->kernel->info,
                       plan->problem);
  };
  BWGEMM_RETURN_IF_ERROR(supports());
  if (plan->parts == 1) return Status::Ok();
  BWGEMM_RETURN_IF_ERROR(
      Divide(kernel, plan->parts, workspace, &gemm, &plan->kernel, &plan->partial_bytes));
  return supports();
}

template <class Problem>
Status PlannedBytes(const Kernel& kernel, const Options& options, const Problem& problem,
                    size_t* bytes) {
  Plan<Problem> plan;
  BWGEMM_RETURN_IF_ERROR(MakePlan(kernel, options, problem, nullptr, &plan));
  *bytes = plan.workspace_bytes();
  return Status::Ok();
}

// The kernel with the call's linked epilogue. It stores final results, so it leaves no parts of K
// to add; a cluster-K kernel adds its parts before the epilogue.
template <class Problem>
Status RunWithEpilogue(const Kernel& kernel, const ProductCall& call, const Launch& launch,
                       Problem& problem) {
  const KernelInfo& info = kernel.info;
  dense::GemmProblem& gemm = GemmOf(problem);
  BWGEMM_RETURN_IF_ERROR(SetOptions(call.options, info, &gemm));
  const int32_t within = info.schedule == Schedule::kClusterK ? gemm.splits : 1;
  if (call.options.splits != within) {
    return Status::InvalidArgument("kernel '" + std::string(info.name) +
                                   "' with an epilogue has no splits");
  }
  const auto& ops = OpsOf(kernel, problem);
  BWGEMM_RETURN_IF_ERROR(WithContext(ops.supports(problem), info, problem));
  EpilogueArguments arguments{};
  BWGEMM_RETURN_IF_ERROR(ReadEpilogue(call, info, {gemm.m, gemm.n, gemm.batch}, &arguments));
  const void* function;
  BWGEMM_RETURN_IF_ERROR(FindLinked(kernel, call.epilogue, launch.device, &function));
  return WithContext(ops.launch_linked(problem, function, &arguments, nullptr, launch.stream), info,
                     problem);
}

// add: launches the kernel that adds the parts of a problem, if it was divided.
template <class Problem, class Add>
Status RunPlan(const Kernel& kernel, const ProductCall& call, const Launch& launch,
               Problem& problem, Add add) {
  char* workspace = static_cast<char*>(call.buffers[Role::kWorkspace].data);
  Plan<Problem> plan;
  BWGEMM_RETURN_IF_ERROR(MakePlan(kernel, call.options, problem, workspace, &plan));
  BWGEMM_RETURN_IF_ERROR(CheckWorkspace(call, plan.workspace_bytes(), plan.problem));
  const auto& ops = OpsOf(*plan.kernel, problem);
  const KernelInfo& launched = plan.kernel->info;
  BWGEMM_RETURN_IF_ERROR(WithContext(ops.prepare(launch.device), launched, plan.problem));
  BWGEMM_RETURN_IF_ERROR(
      WithContext(ops.launch(plan.problem, workspace + plan.partial_bytes, launch.stream), launched,
                  plan.problem));
  if (plan.parts == 1) return Status::Ok();
  return WithContext(add(plan.parts), kernel.info, plan.problem);
}

template <class Problem>
Status RunPlan(const Kernel& kernel, const ProductCall& call, const Launch& launch,
               Problem& problem) {
  return RunPlan(kernel, call, launch, problem, [&](int64_t parts) {
    return AddParts(kernel, call, parts, GemmOf(problem), launch.stream);
  });
}

}  // namespace bwgemm::call
