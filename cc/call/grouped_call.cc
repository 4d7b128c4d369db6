#include <cstdint>
#include <limits>
#include <string>

#include "call/contractions.h"
#include "call/linked.h"
#include "call/scales.h"

namespace bwgemm::call {
namespace {

using grouped::GroupedProblem;
using grouped::Order;
using scaled::GroupedScaledProblem;

constexpr int64_t kMaxSwizzle = 64;

Status SetSizes(const ProductSizes& sizes, int sm_count, GroupedProblem* problem) {
  BWGEMM_RETURN_IF_ERROR(CheckExtents(
      "a grouped product", {sizes.batch, sizes.m, sizes.n, sizes.k, sizes.groups, sizes.experts}));
  problem->m = static_cast<int32_t>(sizes.m);
  problem->n = static_cast<int32_t>(sizes.n);
  problem->k = static_cast<int32_t>(sizes.k);
  problem->groups = static_cast<int32_t>(sizes.groups);
  problem->experts = static_cast<int32_t>(sizes.experts);
  problem->batch = static_cast<int32_t>(sizes.batch);
  problem->sm_count = sm_count;
  return Status::Ok();
}

Status SetOptions(const Options& options, GroupedProblem* problem) {
  if (options.order == "heuristic") {
    problem->order = Order::kHeuristic;
  } else if (options.order == "horizontal") {
    problem->order = Order::kHorizontal;
  } else if (options.order == "vertical") {
    problem->order = Order::kVertical;
  } else {
    return Status::InvalidArgument("order '" + std::string(options.order) +
                                   "' is none of 'heuristic', 'horizontal', 'vertical'");
  }
  if (options.swizzle < 1 || options.swizzle > kMaxSwizzle) {
    return Status::InvalidArgument("swizzle " + std::to_string(options.swizzle) +
                                   " is outside [1, " + std::to_string(kMaxSwizzle) + "]");
  }
  problem->swizzle = static_cast<int32_t>(options.swizzle);
  return Status::Ok();
}

Status MakeProblem(const KernelInfo& kernel, const ProductCall& call, int sm_count,
                   GroupedProblem* p) {
  const Buffers& buffers = call.buffers;
  const Buffer &a = buffers[Role::kA], &b = buffers[Role::kB], &d = buffers[Role::kD];
  const Buffer &sizes = buffers[Role::kGroupSizes], &offset = buffers[Role::kGroupOffset];
  const bool m_grouped = kernel.contraction == Contraction::kMGrouped;
  BWGEMM_RETURN_IF_ERROR(CheckRank(Role::kA, a, 3));
  BWGEMM_RETURN_IF_ERROR(CheckRank(Role::kB, b, m_grouped ? 4 : 3));
  BWGEMM_RETURN_IF_ERROR(CheckRank(Role::kGroupSizes, sizes, 2));
  BWGEMM_RETURN_IF_ERROR(CheckRank(Role::kGroupOffset, offset, 1));
  BWGEMM_RETURN_IF_ERROR(CheckRank(Role::kD, d, m_grouped ? 3 : 4));

  // k-grouped operands are [rows, columns] or, with the contracted rows last, transposed.
  const bool rows_last = !m_grouped && kernel.a_major == AMajor::kK;
  p->gated = call.epilogue.form == "gated";
  p->halves = call.epilogue.form == "halves";
  if (p->halves && (d.last() % 2 != 0 || d.last() > std::numeric_limits<int32_t>::max())) {
    return Status::InvalidArgument("d's " + std::to_string(d.last()) +
                                   " columns are not those of two results side by side");
  }
  const int64_t batch = d.dims[0], n = d.last() / (p->halves ? 2 : 1);
  const int64_t m = a.dims[rows_last ? 2 : 1], k = a.dims[rows_last ? 1 : 2];
  const int64_t groups = sizes.dims[1], experts = m_grouped ? b.dims[1] : d.dims[1];
  BWGEMM_RETURN_IF_ERROR(SetSizes({m, n, k, batch, groups, experts}, sm_count, p));
  BWGEMM_RETURN_IF_ERROR(CheckBuffer(Role::kA, a, BufferType(kernel.a_dtype),
                                     {batch, a.dims[1], a.dims[2]}, &p->a_batched));
  bool d_batched;
  if (m_grouped) {
    const bool n_major = kernel.b_major == BMajor::kN;
    const int64_t columns = p->gated ? 2 * n : n;
    BWGEMM_RETURN_IF_ERROR(CheckExtents("b's matrices", {columns}));
    BWGEMM_RETURN_IF_ERROR(
        CheckBuffer(Role::kB, b, BufferType(kernel.b_dtype),
                    {batch, experts, n_major ? k : columns, n_major ? columns : k}, &p->b_batched));
    BWGEMM_RETURN_IF_ERROR(
        CheckBuffer(Role::kD, d, kernel.out_dtype, {batch, m, d.last()}, &d_batched));
  } else {
    BWGEMM_RETURN_IF_ERROR(CheckBuffer(Role::kB, b, BufferType(kernel.b_dtype),
                                       {batch, rows_last ? n : m, rows_last ? m : n},
                                       &p->b_batched));
    BWGEMM_RETURN_IF_ERROR(
        CheckBuffer(Role::kD, d, kernel.out_dtype, {batch, experts, k, n}, &d_batched));
  }
  BWGEMM_RETURN_IF_ERROR(
      CheckBuffer(Role::kGroupSizes, sizes, DType::kS32, {batch, groups}, &p->sizes_batched));
  BWGEMM_RETURN_IF_ERROR(
      CheckBuffer(Role::kGroupOffset, offset, DType::kS32, {batch}, &p->offset_batched));
  p->a = a.data;
  p->b = b.data;
  p->sizes = static_cast<const int32_t*>(sizes.data);
  p->offset = static_cast<const int32_t*>(offset.data);
  p->d = d.data;
  return SetOptions(call.options, p);
}

Status MakeProblem(const KernelInfo& kernel, const ProductCall& call, int sm_count,
                   GroupedScaledProblem* problem) {
  GroupedProblem& p = problem->grouped;
  BWGEMM_RETURN_IF_ERROR(MakeProblem(kernel, call, sm_count, &p));
  const Options& options = call.options;
  BWGEMM_RETURN_IF_ERROR(CheckUse(kernel, options));
  const bool m_grouped = kernel.contraction == Contraction::kMGrouped;
  const int64_t experts = m_grouped ? p.experts : 0;
  int32_t& depth = m_grouped ? p.k : p.m;
  if (kernel.a_dtype == DType::kE2M1) {  // whose operands are pairs
    if (depth > INT32_MAX / 2) {
      return Status::InvalidArgument("a has " + std::to_string(depth) +
                                     " pairs of elements in a row");
    }
    depth *= 2;
    BWGEMM_RETURN_IF_ERROR(SetScales(Role::kAlpha, call.buffers[Role::kAlpha], "tensor", p.batch,
                                     experts, 1, 1, &problem->alpha));
  }
  const int64_t bands = m_grouped ? RaggedScaleBands(p.m, p.experts) : 0;
  BWGEMM_RETURN_IF_ERROR(SetScales(Role::kAScales, call.buffers[Role::kAScales], options.a_scaling,
                                   p.batch, 0, m_grouped ? p.m : p.k, depth, &problem->a, bands));
  return SetScales(Role::kBScales, call.buffers[Role::kBScales], options.b_scaling, p.batch,
                   experts, p.n, depth, &problem->b);
}

GroupedProblem& Grouped(GroupedProblem& problem) { return problem; }
GroupedProblem& Grouped(GroupedScaledProblem& problem) { return problem.grouped; }

// A kernel with a linked epilogue: one that CheckLinkable accepts.
template <class Problem>
Status RunLinked(const KernelOps<Problem>& ops, const Kernel& kernel, const ProductCall& call,
                 const Launch& launch, const Problem& problem, const GroupedProblem& grouped) {
  if (grouped.batch != 1) {
    return Status::InvalidArgument("kernel '" + std::string(kernel.info.name) +
                                   "' with an epilogue has no batch");
  }
  EpilogueArguments arguments{};
  BWGEMM_RETURN_IF_ERROR(
      ReadEpilogue(call, kernel.info, {grouped.m, grouped.n, grouped.experts}, &arguments));
  const void* function;
  BWGEMM_RETURN_IF_ERROR(FindLinked(kernel, call.epilogue, launch.device, &function));
  return WithContext(ops.launch_linked(problem, function, &arguments,
                                       call.buffers[Role::kWorkspace].data, launch.stream),
                     kernel.info, problem);
}

template <class Problem>
Status RunAs(const KernelOps<Problem>& ops, const Kernel& kernel, const ProductCall& call,
             const Launch& launch) {
  Problem problem;
  BWGEMM_RETURN_IF_ERROR(WithContext(
      MakeProblem(kernel.info, call, launch.properties.sm_count, &problem), kernel.info, problem));
  BWGEMM_RETURN_IF_ERROR(WithContext(ops.supports(problem), kernel.info, problem));
  BWGEMM_RETURN_IF_ERROR(CheckWorkspace(call, ops.workspace_bytes(problem), problem));
  if (!call.epilogue.code.empty()) {
    return RunLinked(ops, kernel, call, launch, problem, Grouped(problem));
  }
  BWGEMM_RETURN_IF_ERROR(WithContext(ops.prepare(launch.device), kernel.info, problem));
  return WithContext(ops.launch(problem, call.buffers[Role::kWorkspace].data, launch.stream),
                     kernel.info, problem);
}

template <class Problem>
Status BytesAs(const KernelOps<Problem>& ops, const Kernel& kernel, const ProductSizes& sizes,
               const Options& options, int sm_count, size_t* bytes) {
  Problem problem;
  BWGEMM_RETURN_IF_ERROR(SetSizes(sizes, sm_count, &Grouped(problem)));
  BWGEMM_RETURN_IF_ERROR(SetOptions(options, &Grouped(problem)));
  BWGEMM_RETURN_IF_ERROR(WithContext(ops.supports(problem), kernel.info, problem));
  *bytes = ops.workspace_bytes(problem);
  return Status::Ok();
}

}  // namespace

Status RunGrouped(const Kernel& kernel, const ProductCall& call, const Launch& launch) {
  return kernel.grouped ? RunAs(*kernel.grouped, kernel, call, launch)
                        : RunAs(*kernel.scaled_grouped, kernel, call, launch);
}

Status GroupedWorkspaceBytes(const Kernel& kernel, const ProductSizes& sizes,
                             const Options& options, int sm_count, size_t* bytes) {
  return kernel.grouped ? BytesAs(*kernel.grouped, kernel, sizes, options, sm_count, bytes)
                        : BytesAs(*kernel.scaled_grouped, kernel, sizes, options, sm_count, bytes);
}

}  // namespace bwgemm::call
