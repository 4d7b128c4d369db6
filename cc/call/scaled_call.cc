#include <string>

#include "call/contractions.h"
#include "call/plan.h"

namespace bwgemm::call {
namespace {

using dense::GemmOperand;
using scaled::ScaledProblem;
using scaled::Scales;

int64_t Blocks(int64_t extent) { return (extent + kScaleBlock - 1) / kScaleBlock; }

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

// The scales of an operand [batch, rows, k].
Status SetScales(Role role, const Buffer& buffer, std::string_view scaling, int64_t batch,
                 int64_t rows, int64_t k, Scales* scales) {
  const DType f32 = DType::kF32;
  bool batched = false;
  scales->data = static_cast<const float*>(buffer.data);
  int64_t count = 1;  // of one matrix
  if (scaling == "tensor") {
    BWGEMM_RETURN_IF_ERROR(CheckBuffer(role, buffer, f32, {batch}, &batched));
  } else if (scaling == "row") {
    BWGEMM_RETURN_IF_ERROR(CheckBuffer(role, buffer, f32, {batch, rows}, &batched));
    scales->row_pitch = 1;
    count = rows;
  } else if (scaling == "1x128") {
    BWGEMM_RETURN_IF_ERROR(CheckBuffer(role, buffer, f32, {batch, Blocks(k), rows}, &batched));
    scales->row_pitch = 1;
    scales->k_pitch = rows;
    count = Blocks(k) * rows;
  } else if (scaling == "128x128") {
    BWGEMM_RETURN_IF_ERROR(
        CheckBuffer(role, buffer, f32, {batch, Blocks(rows), Blocks(k)}, &batched));
    scales->row_pitch = Blocks(k);
    scales->k_pitch = 1;
    scales->log_rows = 7;
    count = Blocks(rows) * Blocks(k);
  } else {
    return Status::InvalidArgument("scaling '" + std::string(scaling) + "' of " +
                                   std::string(Name(role)) +
                                   " is none of 'tensor', 'row', '1x128', '128x128'");
  }
  scales->batch_pitch = batched && batch > 1 ? count : 0;
  return Status::Ok();
}

// Whether the kernel applies scales where these layouts need it.
Status CheckUse(const KernelInfo& kernel, const Options& options) {
  const std::string_view p = kernel.swap_ab ? options.b_scaling : options.a_scaling;
  const std::string_view q = kernel.swap_ab ? options.a_scaling : options.b_scaling;
  auto along_k = [](std::string_view s) { return s == "1x128" || s == "128x128"; };
  auto of_rows = [](std::string_view s) { return s == "row" || s == "1x128"; };
  const bool fits = kernel.scales == ScaleUse::kSums     ? !along_k(p) && !along_k(q)
                    : kernel.scales == ScaleUse::kBlocks ? !of_rows(q)
                                                         : of_rows(q);
  if (fits) return Status::Ok();
  return Status::InvalidArgument("kernel '" + std::string(kernel.name) + "' applies scales to " +
                                 Name(kernel.scales) + ", the call has a_scaling '" +
                                 std::string(options.a_scaling) + "', b_scaling '" +
                                 std::string(options.b_scaling) + "'");
}

Status MakeProblem(const KernelInfo& kernel, const ProductCall& call, int sm_count,
                   ScaledProblem* problem) {
  const Buffers& buffers = call.buffers;
  const Buffer &a = buffers[Role::kA], &b = buffers[Role::kB], &d = buffers[Role::kD];
  for (Role role : {Role::kA, Role::kB, Role::kD}) {
    if (buffers[role].rank == 3) continue;
    return Status::InvalidArgument(std::string(Name(role)) + " is " + ShapeString(buffers[role]) +
                                   ", expected rank 3");
  }
  const int64_t batch = d.dims[0], m = d.dims[1], n = d.dims[2], k = a.dims[2];
  BWGEMM_RETURN_IF_ERROR(SetSizes({m, n, k, batch}, sm_count, problem));
  bool a_batched, b_batched;
  BWGEMM_RETURN_IF_ERROR(CheckBuffer(Role::kA, a, kernel.a_dtype, {batch, m, k}, &a_batched));
  BWGEMM_RETURN_IF_ERROR(CheckBuffer(Role::kB, b, kernel.b_dtype, {batch, n, k}, &b_batched));
  dense::GemmProblem& gemm = problem->gemm;
  gemm.a = {a.data, k, batch == 1 || a_batched ? m * k : 0};
  gemm.b = {b.data, k, batch == 1 || b_batched ? n * k : 0};
  gemm.d = {d.data, n, m * n};
  const Options& options = call.options;
  BWGEMM_RETURN_IF_ERROR(CheckUse(kernel, options));
  BWGEMM_RETURN_IF_ERROR(SetScales(Role::kAScales, buffers[Role::kAScales], options.a_scaling,
                                   batch, m, k, &problem->a));
  return SetScales(Role::kBScales, buffers[Role::kBScales], options.b_scaling, batch, n, k,
                   &problem->b);
}

}  // namespace

Status RunScaled(const Kernel& kernel, const ProductCall& call, const Launch& launch) {
  ScaledProblem problem;
  problem.gemm.device = launch.device;
  BWGEMM_RETURN_IF_ERROR(MakeProblem(kernel.info, call, launch.properties.sm_count, &problem));
  return RunPlan(kernel, call, launch, problem);
}

Status ScaledWorkspaceBytes(const Kernel& kernel, const ProductSizes& sizes, const Options& options,
                            int sm_count, size_t* bytes) {
  ScaledProblem problem;
  BWGEMM_RETURN_IF_ERROR(SetSizes(sizes, sm_count, &problem));
  return PlannedBytes(kernel, options, problem, bytes);
}

}  // namespace bwgemm::call
