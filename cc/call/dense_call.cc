#include <string>

#include "call/contractions.h"
#include "call/linked.h"
#include "call/plan.h"
#include "core/ceil_div.h"
#include "core/launch.h"
#include "dense/split_k/linked.h"

namespace bwgemm::call {
namespace {

using dense::GemmOperand;
using dense::GemmProblem;

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

GemmOperand Operand(const Buffer& x, bool batched) {
  return {x.data, x.pitch, batched ? x.dims[1] * x.pitch : 0};
}

// Fills in the operands of a gated product; the problem has its sizes already.
Status GatedOperands(const KernelInfo& kernel, const ProductCall& call, GemmProblem* problem) {
  const Buffer &b = call.buffers[Role::kB], &up = call.buffers[Role::kBUp];
  const int64_t n = problem->n, k = problem->k;
  problem->a = Operand(call.buffers[Role::kA], true);
  problem->d = Operand(call.buffers[Role::kD], true);
  if (problem->batch != 1) {
    return Status::InvalidArgument("kernel '" + std::string(kernel.name) + "' has no batch");
  }
  bool batched;
  if (up.present()) {
    BWGEMM_RETURN_IF_ERROR(CheckBuffer(Role::kB, b, kernel.b_dtype, {1, k, n}, &batched));
    BWGEMM_RETURN_IF_ERROR(CheckBuffer(Role::kBUp, up, kernel.b_dtype, {1, k, n}, &batched));
    problem->b = Operand(b, true);
    problem->b_up = up.data;
    return Status::Ok();
  }
  BWGEMM_RETURN_IF_ERROR(CheckBuffer(Role::kB, b, kernel.b_dtype, {k, 2, n}, &batched));
  if (b.dims[0] != k) {  // CheckBuffer took it for a batch, which may be 1
    return Status::InvalidArgument("operand b is " + ShapeString(b) + ", K is " +
                                   std::to_string(k));
  }
  problem->b = {b.data, 2 * n, 2 * n * k};
  problem->b_up = static_cast<const char*>(b.data) + n * SizeOf(kernel.b_dtype);
  return Status::Ok();
}

Status MakeProblem(const KernelInfo& kernel, const ProductCall& call, int sm_count,
                   GemmProblem* problem) {
  const Buffer &a = call.buffers[Role::kA], &b = call.buffers[Role::kB],
               &d = call.buffers[Role::kD];
  for (Role role : {Role::kA, Role::kB, Role::kD}) {
    BWGEMM_RETURN_IF_ERROR(CheckRank(role, call.buffers[role], 3));
  }
  const bool a_k = kernel.a_major == AMajor::kK, b_n = kernel.b_major == BMajor::kN;
  const int64_t batch = d.dims[0], m = d.dims[1], n = d.dims[2], k = a.dims[a_k ? 2 : 1];
  BWGEMM_RETURN_IF_ERROR(SetSizes({m, n, k, batch}, sm_count, problem));
  bool a_batched, b_batched = false;
  BWGEMM_RETURN_IF_ERROR(
      CheckBuffer(Role::kA, a, kernel.a_dtype, {batch, a_k ? m : k, a_k ? k : m}, &a_batched));
  if (kernel.contraction == Contraction::kGated) return GatedOperands(kernel, call, problem);
  BWGEMM_RETURN_IF_ERROR(
      CheckBuffer(Role::kB, b, kernel.b_dtype, {batch, b_n ? k : n, b_n ? n : k}, &b_batched));
  problem->a = Operand(a, batch == 1 || a_batched);
  problem->b = Operand(b, batch == 1 || b_batched);
  problem->d = Operand(d, true);
  return Status::Ok();
}

// Split-K whose second kernel has the epilogue.
Status RunLinkedParts(const Kernel& kernel, const ProductCall& call, GemmProblem& problem,
                      const Launch& launch) {
  int64_t parts;
  BWGEMM_RETURN_IF_ERROR(PartsOf(call.options, kernel.info, problem, &parts));
  if (parts == 1) {
    return Status::InvalidArgument("kernel '" + std::string(kernel.info.name) +
                                   "' leaves no parts of K for an epilogue to follow");
  }
  dense::split_k::LinkedParams params{};
  BWGEMM_RETURN_IF_ERROR(
      ReadEpilogue(call, kernel.info, {problem.m, problem.n, /*matrices=*/1}, &params.epilogue));
  if (problem.n % 2 != 0) {
    return Status::InvalidArgument("an epilogue after split-K needs an even N, not " +
                                   std::to_string(problem.n));
  }
  const void* function;
  BWGEMM_RETURN_IF_ERROR(FindLinked(kernel, call.epilogue, launch.device, &function));
  const int64_t pairs = int64_t{problem.m} * problem.n / 2;
  constexpr int kThreads = dense::split_k::kThreads;
  // Fits in 32 bits: a workspace for 2^31 blocks is larger than any memory.
  const int64_t blocks = CeilDiv(pairs, kThreads);
  const auto add = [&](int64_t) {
    params.partials = static_cast<const float2*>(call.buffers[Role::kWorkspace].data);
    params.d = call.buffers[Role::kD].data;
    params.pairs = pairs;
    params.splits = static_cast<int32_t>(parts);
    return LaunchClusters(function, params,
                          {dim3(static_cast<unsigned>(blocks)), dim3(1), dim3(kThreads), 0},
                          launch.stream);
  };
  return RunPlan(kernel, call, launch, problem, add);
}

// A gated kernel's results, D included, are of one type.
Status CheckGatedResults(const KernelInfo& kernel, const Buffers& buffers) {
  for (int i = 0; kernel.contraction == Contraction::kGated && i < kMaxEpilogueResults; ++i) {
    const Buffer& result = buffers[EpilogueResult(i)];
    if (!result.present() || result.dtype == kernel.out_dtype) continue;
    return Status::InvalidArgument("result " + std::string(Name(EpilogueResult(i))) + " is " +
                                   ShapeString(result) + ", a gated kernel's are all of " +
                                   Name(kernel.out_dtype));
  }
  return Status::Ok();
}

Status NoWindow(const KernelInfo& kernel, Role role, const char* reason) {
  return Status::InvalidArgument("kernel '" + std::string(kernel.name) + "' takes no window of " +
                                 std::string(Name(role)) + ": " + reason);
}

}  // namespace

Status RunDense(const Kernel& kernel, const ProductCall& call, const Launch& launch) {
  GemmProblem problem;
  problem.device = launch.device;
  BWGEMM_RETURN_IF_ERROR(MakeProblem(kernel.info, call, launch.properties.sm_count, &problem));
  if (call.buffers[Role::kD].is_window() && !call.epilogue.code.empty()) {
    return NoWindow(kernel.info, Role::kD, "an epilogue follows the product");
  }
  if (call.epilogue.form == "split_k") return RunLinkedParts(kernel, call, problem, launch);
  if (!call.epilogue.code.empty()) {
    BWGEMM_RETURN_IF_ERROR(CheckGatedResults(kernel.info, call.buffers));
    return RunWithEpilogue(kernel, call, launch, problem);
  }
  if (call.buffers[Role::kD].is_window()) {
    int64_t parts;
    BWGEMM_RETURN_IF_ERROR(PartsOf(call.options, kernel.info, problem, &parts));
    if (parts != 1) return NoWindow(kernel.info, Role::kD, "parts of K are added there");
  }
  return RunPlan(kernel, call, launch, problem);
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
  return PlannedBytes(kernel, options, problem, bytes);
}

}  // namespace bwgemm::call
