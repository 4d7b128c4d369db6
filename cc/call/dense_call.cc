#include <limits>
#include <string>

#include "call/contractions.h"
#include "call/linked.h"
#include "dense/split_k.h"

namespace bwgemm::call {
namespace {

using dense::Decomposition;
using dense::GemmOperand;
using dense::GemmProblem;
using dense::kMaxClusterParts;
using dense::kMaxSplits;
using dense::RasterOrder;

// Their bytes are a positive int64.
constexpr int64_t kMaxPartialElements = std::numeric_limits<int64_t>::max() / sizeof(float);

Status SetSizes(const ProductSizes& sizes, int sm_count, GemmProblem* problem) {
  BWGEMM_RETURN_IF_ERROR(CheckExtents(
      "the problem [B=" + std::to_string(sizes.batch) + ", M=" + std::to_string(sizes.m) +
          ", N=" + std::to_string(sizes.n) + ", K=" + std::to_string(sizes.k) + "]",
      {sizes.batch, sizes.m, sizes.n, sizes.k}));
  problem->m = static_cast<int32_t>(sizes.m);
  problem->n = static_cast<int32_t>(sizes.n);
  problem->k = static_cast<int32_t>(sizes.k);
  problem->batch = static_cast<int32_t>(sizes.batch);
  problem->sm_count = sm_count;
  return Status::Ok();
}

Status MakeProblem(const KernelInfo& kernel, const ProductCall& call, int sm_count,
                   GemmProblem* problem) {
  const Buffer &a = call.buffers[Role::kA], &b = call.buffers[Role::kB],
               &d = call.buffers[Role::kD];
  for (Role role : {Role::kA, Role::kB, Role::kD}) {
    const Buffer& buffer = call.buffers[role];
    if (buffer.rank == 3) continue;
    return Status::InvalidArgument(std::string(Name(role)) + " is " + ShapeString(buffer) +
                                   ", expected rank 3");
  }
  const bool a_k = kernel.a_major == AMajor::kK, b_n = kernel.b_major == BMajor::kN;
  const int64_t batch = d.dims[0], m = d.dims[1], n = d.dims[2], k = a.dims[a_k ? 2 : 1];
  BWGEMM_RETURN_IF_ERROR(SetSizes({m, n, k, batch}, sm_count, problem));
  bool a_batched, b_batched;
  BWGEMM_RETURN_IF_ERROR(
      CheckBuffer(Role::kA, a, kernel.a_dtype, {batch, a_k ? m : k, a_k ? k : m}, &a_batched));
  BWGEMM_RETURN_IF_ERROR(
      CheckBuffer(Role::kB, b, kernel.b_dtype, {batch, b_n ? k : n, b_n ? n : k}, &b_batched));
  // Row-major: the last extent is the pitch.
  const auto operand = [](const Buffer& x, bool batched) {
    return GemmOperand{x.data, x.dims[2], batched ? x.dims[1] * x.dims[2] : 0};
  };
  problem->a = operand(a, batch == 1 || a_batched);
  problem->b = operand(b, batch == 1 || b_batched);
  problem->d = operand(d, true);
  return Status::Ok();
}

Status ToDecomposition(std::string_view text, Decomposition* decomposition) {
  if (text == "heuristic") {
    *decomposition = Decomposition::kHeuristic;
  } else if (text == "data_parallel") {
    *decomposition = Decomposition::kDataParallel;
  } else if (text == "split_k") {
    *decomposition = Decomposition::kSplitK;
  } else if (text == "stream_k") {
    *decomposition = Decomposition::kStreamK;
  } else {
    return Status::InvalidArgument(
        "decomposition '" + std::string(text) +
        "' is none of 'heuristic', 'data_parallel', 'split_k', 'stream_k'");
  }
  return Status::Ok();
}

// Into how many parts along K a launch is divided whose f32 results a second launch adds. A
// stream-K kernel adds all of them itself, a cluster-K kernel as many as a cluster has CTAs.
int64_t PartsApart(const KernelInfo& kernel, int64_t splits) {
  if (kernel.stream_k) return 1;
  if (kernel.schedule != Schedule::kClusterK) return splits;
  int64_t inside = kMaxClusterParts;
  while (splits % inside != 0) --inside;
  return splits / inside;
}

// Writes the options to the problem; the splits as far as the kernel itself adds the parts.
Status SetOptions(const Options& options, const KernelInfo& kernel, GemmProblem* problem) {
  if (options.raster_order == "heuristic") {
    problem->raster_order = RasterOrder::kHeuristic;
  } else if (options.raster_order == "m") {
    problem->raster_order = RasterOrder::kAlongM;
  } else if (options.raster_order == "n") {
    problem->raster_order = RasterOrder::kAlongN;
  } else {
    return Status::InvalidArgument("raster_order '" + std::string(options.raster_order) +
                                   "' is none of 'heuristic', 'm', 'n'");
  }
  if (options.swizzle < 1 || options.swizzle > 16 ||
      (options.swizzle & (options.swizzle - 1)) != 0) {
    return Status::InvalidArgument("swizzle " + std::to_string(options.swizzle) +
                                   " is none of 1, 2, 4, 8, 16");
  }
  problem->swizzle = static_cast<int32_t>(options.swizzle);
  BWGEMM_RETURN_IF_ERROR(ToDecomposition(options.decomposition, &problem->decomposition));
  if (!kernel.stream_k && problem->decomposition != Decomposition::kHeuristic) {
    return Status::InvalidArgument("decomposition '" + std::string(options.decomposition) +
                                   "' needs a stream-K kernel, '" + std::string(kernel.name) +
                                   "' is none");
  }
  if (options.splits < 1 || options.splits > kMaxSplits) {
    return Status::InvalidArgument("splits " + std::to_string(options.splits) + " is outside [1, " +
                                   std::to_string(kMaxSplits) + "]");
  }
  problem->splits = static_cast<int32_t>(options.splits / PartsApart(kernel, options.splits));
  return Status::Ok();
}

// Why a problem cannot be split, or OK.
Status CheckSplits(const KernelInfo& kernel, const GemmProblem& problem, int64_t all_splits) {
  const int64_t elements = kernel.alignment_bytes / SizeOf(kernel.a_dtype);
  const int64_t k = problem.k, batch = problem.batch;
  if (kernel.stream_k) {
    if (all_splits > 1 && (problem.decomposition == Decomposition::kDataParallel ||
                           problem.decomposition == Decomposition::kStreamK)) {
      return Status::InvalidArgument("splits " + std::to_string(all_splits) +
                                     " needs the decomposition 'split_k' or 'heuristic'");
    }
    return Status::Ok();
  }
  const int64_t splits = PartsApart(kernel, all_splits);
  if (splits == 1) return Status::Ok();
  auto asked = [&] {
    const std::string text = "splits " + std::to_string(all_splits);
    if (splits == all_splits) return text;
    return text + " (clusters of " + std::to_string(all_splits / splits) + " leave " +
           std::to_string(splits) + ")";
  };
  if (batch != 1) {
    return Status::InvalidArgument("a batch of " + std::to_string(batch) +
                                   " cannot be combined with " + asked());
  }
  if (int64_t{problem.m} * problem.n > kMaxPartialElements / splits) {
    return Status::InvalidArgument("the parts of M=" + std::to_string(problem.m) + ", N=" +
                                   std::to_string(problem.n) + " do not fit in memory: " + asked());
  }
  if (!kernel.uneven_parts && k % (splits * elements) != 0) {
    return Status::InvalidArgument("K=" + std::to_string(k) + " is not a multiple of " +
                                   std::to_string(splits * elements) + ": " + asked());
  }
  return Status::Ok();
}

// The kernel that computes the parts.
Status FindTwin(const KernelInfo& kernel, const Kernel** twin) {
  *twin = FindKernel(kernel.f32_twin);
  if (*twin) return Status::Ok();
  return Status::Unimplemented("kernel '" + std::string(kernel.name) +
                               "' cannot split K: this build has no kernel that computes its parts "
                               "in f32");
}

size_t PartialBytes(int64_t m, int64_t n, int64_t splits) {
  return static_cast<size_t>(m) * n * splits * sizeof(float);
}

// The problem of all chunks at once: chunks as a batch, f32 partial results.
GemmProblem SplitProblem(const GemmProblem& whole, const KernelInfo& kernel, int64_t splits,
                         void* partials) {
  GemmProblem p = whole;
  p.batch = static_cast<int32_t>(splits);
  p.d = {partials, whole.n, static_cast<int64_t>(whole.m) * whole.n};
  if (kernel.uneven_parts) {
    p.parts_of_k = true;
    p.a.batch_pitch = p.b.batch_pitch = 0;
    return p;
  }
  const int64_t chunk = whole.k / splits;
  p.k = static_cast<int32_t>(chunk);
  p.a.batch_pitch = kernel.a_major == AMajor::kK ? chunk : chunk * whole.a.pitch;
  p.b.batch_pitch = kernel.b_major == BMajor::kK ? chunk : chunk * whole.b.pitch;
  return p;
}

// A problem as launches see it: by one kernel, or in parts of K whose results are then added.
struct Plan {
  const Kernel* kernel = nullptr;  // that is launched
  GemmProblem problem;
  int64_t parts = 1;         // more: f32 results of the launch, at the workspace's beginning
  size_t partial_bytes = 0;  // of them all
  size_t workspace_bytes() const { return partial_bytes + kernel->dense->workspace_bytes(problem); }
};

Status MakePlan(const Kernel& kernel, const Options& options, const GemmProblem& whole,
                void* workspace, Plan* plan) {
  const KernelInfo& info = kernel.info;
  plan->kernel = &kernel;
  plan->problem = whole;
  BWGEMM_RETURN_IF_ERROR(SetOptions(options, info, &plan->problem));
  BWGEMM_RETURN_IF_ERROR(
      WithContext(CheckSplits(info, plan->problem, options.splits), info, plan->problem));
  BWGEMM_RETURN_IF_ERROR(WithContext(kernel.dense->supports(plan->problem), info, plan->problem));
  plan->parts = PartsApart(info, options.splits);
  if (plan->parts == 1) return Status::Ok();
  BWGEMM_RETURN_IF_ERROR(FindTwin(info, &plan->kernel));
  plan->problem = SplitProblem(plan->problem, info, plan->parts, workspace);
  plan->partial_bytes = PartialBytes(whole.m, whole.n, plan->parts);
  return WithContext(plan->kernel->dense->supports(plan->problem), plan->kernel->info,
                     plan->problem);
}

// The kernel with an epilogue: it adds no parts of K, and stores every element itself.
Status RunLinked(const Kernel& kernel, const ProductCall& call, GemmProblem& problem,
                 const Launch& launch) {
  BWGEMM_RETURN_IF_ERROR(SetOptions(call.options, kernel.info, &problem));
  if (call.options.splits != 1 || problem.batch != 1) {
    return Status::InvalidArgument("kernel '" + std::string(kernel.info.name) +
                                   "' with an epilogue has no splits and no batch");
  }
  BWGEMM_RETURN_IF_ERROR(WithContext(kernel.dense->supports(problem), kernel.info, problem));
  dense::EpilogueArguments arguments{};
  BWGEMM_RETURN_IF_ERROR(ReadEpilogue(call, problem.m, problem.n, &arguments));
  const void* function;
  BWGEMM_RETURN_IF_ERROR(
      FindLinked(kernel, call.epilogue, launch.device, /*compare=*/false, &function));
  return WithContext(kernel.dense->launch_linked(problem, function, &arguments, launch.stream),
                     kernel.info, problem);
}

}  // namespace

Status RunDense(const Kernel& kernel, const ProductCall& call, const Launch& launch) {
  GemmProblem problem;
  problem.device = launch.device;
  BWGEMM_RETURN_IF_ERROR(MakeProblem(kernel.info, call, launch.properties.sm_count, &problem));
  if (!call.epilogue.code.empty()) return RunLinked(kernel, call, problem, launch);
  char* workspace = static_cast<char*>(call.buffers[Role::kWorkspace].data);
  Plan plan;
  BWGEMM_RETURN_IF_ERROR(MakePlan(kernel, call.options, problem, workspace, &plan));
  BWGEMM_RETURN_IF_ERROR(CheckWorkspace(call, plan.workspace_bytes(), plan.problem));
  const dense::KernelOps& ops = *plan.kernel->dense;
  const KernelInfo& launched = plan.kernel->info;
  BWGEMM_RETURN_IF_ERROR(WithContext(ops.prepare(launch.device), launched, plan.problem));
  BWGEMM_RETURN_IF_ERROR(
      WithContext(ops.launch(plan.problem, workspace + plan.partial_bytes, launch.stream), launched,
                  plan.problem));
  if (plan.parts == 1) return Status::Ok();
  return WithContext(
      dense::AddPartials(reinterpret_cast<const float*>(workspace), call.buffers[Role::kD].data,
                         kernel.info.out_dtype, int64_t{problem.m} * problem.n,
                         static_cast<int>(plan.parts), launch.stream),
      kernel.info, plan.problem);
}

Status DenseWorkspaceBytes(const Kernel& kernel, const ProductSizes& sizes, const Options& options,
                           int sm_count, size_t* bytes) {
  const bool a_k = kernel.info.a_major == AMajor::kK, b_n = kernel.info.b_major == BMajor::kN;
  GemmProblem problem;
  BWGEMM_RETURN_IF_ERROR(SetSizes(sizes, sm_count, &problem));
  // Any pitches that are as aligned as the extents: the answer depends on the extents alone.
  problem.a = {nullptr, a_k ? sizes.k : sizes.m, sizes.m * sizes.k};
  problem.b = {nullptr, b_n ? sizes.n : sizes.k, sizes.k * sizes.n};
  problem.d = {nullptr, sizes.n, sizes.m * sizes.n};
  Plan plan;
  BWGEMM_RETURN_IF_ERROR(MakePlan(kernel, options, problem, nullptr, &plan));
  *bytes = plan.workspace_bytes();
  return Status::Ok();
}

}  // namespace bwgemm::call
