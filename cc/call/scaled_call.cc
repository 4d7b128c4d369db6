#include <string>

#include "call/contractions.h"
#include "call/plan.h"
#include "call/scales.h"

namespace bwgemm::call {
namespace {

using dense::GemmOperand;
using scaled::ScaledProblem;

Status SetSizes(const ProductSizes& sizes, int sm_count, ScaledProblem* problem) {
  BWGEMM_RETURN_IF_ERROR(
      CheckExtents("the scaled product", {sizes.batch, sizes.m, sizes.n, sizes.k}));
  dense::GemmProblem& gemm = problem->gemm;
  gemm.m = static_cast<int32_t>(sizes.m);
  gemm.n = static_cast<int32_t>(sizes.n);
  gemm.k = static_cast<int32_t>(sizes.k);
  gemm.batch = static_cast<int32_t>(sizes.batch);
  gemm.sm_count = sm_count;
  gemm.a.pitch = gemm.b.pitch = sizes.k;
  gemm.d.pitch = sizes.n;
  return Status::Ok();
}

Status MakeProblem(const KernelInfo& kernel, const ProductCall& call, int sm_count,
                   ScaledProblem* problem) {
  const Buffers& buffers = call.buffers;
  const Buffer &a = buffers[Role::kA], &b = buffers[Role::kB], &d = buffers[Role::kD];
  for (Role role : {Role::kA, Role::kB, Role::kD}) {
    BWGEMM_RETURN_IF_ERROR(CheckRank(role, buffers[role], 3));
  }
  const bool pairs = kernel.a_dtype == DType::kE2M1;
  const int64_t columns = a.dims[2];
  if (pairs && columns > INT32_MAX / 2) {
    return Status::InvalidArgument("a has " + std::to_string(columns) +
                                   " pairs of elements in a row");
  }
  const int64_t batch = d.dims[0], m = d.dims[1], n = d.dims[2], k = pairs ? 2 * columns : columns;
  BWGEMM_RETURN_IF_ERROR(SetSizes({m, n, k, batch}, sm_count, problem));
  bool a_batched, b_batched;
  BWGEMM_RETURN_IF_ERROR(
      CheckBuffer(Role::kA, a, BufferType(kernel.a_dtype), {batch, m, columns}, &a_batched));
  BWGEMM_RETURN_IF_ERROR(
      CheckBuffer(Role::kB, b, BufferType(kernel.b_dtype), {batch, n, columns}, &b_batched));
  dense::GemmProblem& gemm = problem->gemm;
  gemm.a = {a.data, k, batch == 1 || a_batched ? m * k : 0};
  gemm.b = {b.data, k, batch == 1 || b_batched ? n * k : 0};
  gemm.d = {d.data, n, m * n};
  if (pairs) {
    BWGEMM_RETURN_IF_ERROR(
        SetScales(Role::kAlpha, buffers[Role::kAlpha], "tensor", batch, 0, 1, 1, &problem->alpha));
  }
  const Options& options = call.options;
  BWGEMM_RETURN_IF_ERROR(CheckUse(kernel, options));
  BWGEMM_RETURN_IF_ERROR(SetScales(Role::kAScales, buffers[Role::kAScales], options.a_scaling,
                                   batch, 0, m, k, &problem->a));
  return SetScales(Role::kBScales, buffers[Role::kBScales], options.b_scaling, batch, 0, n, k,
                   &problem->b);
}

}  // namespace

Status RunScaled(const Kernel& kernel, const ProductCall& call, const Launch& launch) {
  ScaledProblem problem;
  problem.gemm.device = launch.device;
  BWGEMM_RETURN_IF_ERROR(MakeProblem(kernel.info, call, launch.properties.sm_count, &problem));
  if (!call.epilogue.code.empty()) return RunWithEpilogue(kernel, call, launch, problem);
  return RunPlan(kernel, call, launch, problem);
}

Status ScaledWorkspaceBytes(const Kernel& kernel, const ProductSizes& sizes, const Options& options,
                            int sm_count, size_t* bytes) {
  ScaledProblem problem;
  BWGEMM_RETURN_IF_ERROR(SetSizes(sizes, sm_count, &problem));
  return PlannedBytes(kernel, options, problem, bytes);
}

}  // namespace bwgemm::call
