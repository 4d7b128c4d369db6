#include "grouped/grouped_call.h"

#include <initializer_list>
#include <limits>
#include <string>

#include "core/device.h"

namespace bwgemm::grouped {
namespace {

constexpr int64_t kMaxSwizzle = 64;

std::string ShapeString(const std::string& dtype, const std::vector<int64_t>& dims) {
  std::string text = dtype + "[";
  for (size_t i = 0; i < dims.size(); ++i) text += (i ? "," : "") + std::to_string(dims[i]);
  return text + "]";
}

Status Lookup(std::string_view name, const KernelEntry** entry) {
  *entry = FindKernel(name);
  if (*entry) return Status::Ok();
  return Status::Unimplemented(
      "grouped kernel '" + std::string(name) +
      "' is not in this build of jax_bwgemm (`python -m jax_bwgemm info --kernels` "
      "lists those that are)");
}

// `expected` after its batch extent, which is B or 1. *batched tells whether the operand has one
// matrix for each.
Status CheckOperand(const char* what, const Operand& operand, const std::string& dtype,
                    int64_t batch, std::vector<int64_t> expected, bool* batched) {
  std::vector<int64_t> full = {batch};
  full.insert(full.end(), expected.begin(), expected.end());
  std::vector<int64_t> shared = full;
  shared[0] = 1;
  if (operand.dtype != dtype || (operand.dims != full && operand.dims != shared)) {
    return Status::InvalidArgument(
        std::string(what) + " is " + ShapeString(operand.dtype, operand.dims) + ", expected " +
        ShapeString(dtype, full) + (batch == 1 ? "" : " or a batch extent of 1"));
  }
  *batched = batch != 1 && operand.dims[0] == batch;
  return Status::Ok();
}

Status CheckExtents(const KernelInfo& kernel, const GroupedProblem& p) {
  const int64_t elements = kAlignmentBytes / SizeOf(kernel.in_dtype);
  for (int64_t extent : {p.k, p.n}) {
    if (extent % elements != 0) {
      return Status::InvalidArgument("K and N of " + p.ToString() + " must be multiples of " +
                                     std::to_string(elements));
    }
  }
  // Tiles are counted in 32 bits on the device: at worst one part-filled tile for every group.
  const int64_t row_tile = kernel.swap_ab ? kernel.tile_n : kernel.tile_m;
  const int64_t col_tile = kernel.swap_ab ? kernel.tile_m : kernel.tile_n;
  const int64_t columns = (p.n - 1) / col_tile + 1;
  const double rows = kernel.kind == Kind::kRows
                          ? static_cast<double>((p.m - 1) / row_tile + 2) + p.groups
                          : static_cast<double>((p.k - 1) / kernel.tile_m + 1) * p.experts;
  if (rows * columns * p.batch > std::numeric_limits<int32_t>::max() / 2) {
    return Status::InvalidArgument(p.ToString() + " has more than 2^30 tiles");
  }
  return Status::Ok();
}

Status CheckRange(std::initializer_list<int64_t> extents) {
  for (int64_t extent : extents) {
    if (extent < 1 || extent > std::numeric_limits<int32_t>::max()) {
      return Status::InvalidArgument("extent " + std::to_string(extent) +
                                     " of a grouped problem is outside [1, 2^31)");
    }
  }
  return Status::Ok();
}

Status MakeProblem(const GroupedCall& call, const KernelInfo& kernel, GroupedProblem* p) {
  const bool rows = kernel.kind == Kind::kRows;
  const size_t rhs_rank = rows ? 4 : 3, d_rank = rows ? 3 : 4;
  if (call.lhs.dims.size() != 3 || call.rhs.dims.size() != rhs_rank ||
      call.sizes.dims.size() != 2 || call.offset.dims.size() != 1 || call.d.dims.size() != d_rank) {
    return Status::InvalidArgument(std::string("a grouped call of kind ") + Name(kernel.kind) +
                                   " takes ranks 3, " + std::to_string(rhs_rank) +
                                   ", 2, 1 and gives rank " + std::to_string(d_rank) + "; got " +
                                   ShapeString(call.lhs.dtype, call.lhs.dims) + ", " +
                                   ShapeString(call.rhs.dtype, call.rhs.dims) + ", " +
                                   ShapeString(call.sizes.dtype, call.sizes.dims) + ", " +
                                   ShapeString(call.offset.dtype, call.offset.dims) + " -> " +
                                   ShapeString(call.d.dtype, call.d.dims));
  }
  const int64_t batch = call.d.dims[0], m = call.lhs.dims[1], k = call.lhs.dims[2];
  const int64_t n = call.d.dims.back(), groups = call.sizes.dims[1];
  const int64_t experts = rows ? call.rhs.dims[1] : call.d.dims[1];
  BWGEMM_RETURN_IF_ERROR(CheckRange({batch, m, n, k, groups, experts}));
  const bool n_major = kernel.rhs_major == RhsMajor::kN;
  const std::string in = Name(kernel.in_dtype);
  bool ignored;
  BWGEMM_RETURN_IF_ERROR(CheckOperand("operand lhs", call.lhs, in, batch, {m, k}, &p->lhs_batched));
  BWGEMM_RETURN_IF_ERROR(
      CheckOperand("operand rhs", call.rhs, in, batch,
                   rows ? std::vector<int64_t>{experts, n_major ? k : n, n_major ? n : k}
                        : std::vector<int64_t>{m, n},
                   &p->rhs_batched));
  BWGEMM_RETURN_IF_ERROR(
      CheckOperand("operand group_sizes", call.sizes, "int32", batch, {groups}, &p->sizes_batched));
  BWGEMM_RETURN_IF_ERROR(
      CheckOperand("operand group_offset", call.offset, "int32", batch, {}, &p->offset_batched));
  BWGEMM_RETURN_IF_ERROR(CheckOperand(
      "result d", call.d, Name(kernel.out_dtype), batch,
      rows ? std::vector<int64_t>{m, n} : std::vector<int64_t>{experts, k, n}, &ignored));
  for (const void* pointer : {call.lhs.data, call.rhs.data, call.d.data}) {
    if (reinterpret_cast<uintptr_t>(pointer) % kAlignmentBytes != 0) {
      return Status::InvalidArgument("a buffer is not aligned to " +
                                     std::to_string(kAlignmentBytes) + " bytes");
    }
  }
  p->lhs = call.lhs.data;
  p->rhs = call.rhs.data;
  p->sizes = static_cast<const int32_t*>(call.sizes.data);
  p->offset = static_cast<const int32_t*>(call.offset.data);
  p->d = call.d.data;
  p->m = static_cast<int32_t>(m);
  p->n = static_cast<int32_t>(n);
  p->k = static_cast<int32_t>(k);
  p->groups = static_cast<int32_t>(groups);
  p->experts = static_cast<int32_t>(experts);
  p->batch = static_cast<int32_t>(batch);

  if (call.order == "heuristic") {
    p->order = Order::kHeuristic;
  } else if (call.order == "horizontal") {
    p->order = Order::kHorizontal;
  } else if (call.order == "vertical") {
    p->order = Order::kVertical;
  } else {
    return Status::InvalidArgument("order '" + std::string(call.order) +
                                   "' is none of 'heuristic', 'horizontal', 'vertical'");
  }
  if (call.swizzle < 1 || call.swizzle > kMaxSwizzle) {
    return Status::InvalidArgument("swizzle " + std::to_string(call.swizzle) + " is outside [1, " +
                                   std::to_string(kMaxSwizzle) + "]");
  }
  p->swizzle = static_cast<int32_t>(call.swizzle);
  return CheckExtents(kernel, *p);
}

// Says which kernel and problem an error of the layers below belongs to.
Status WithContext(Status status, const KernelInfo& kernel, const GroupedProblem& problem) {
  if (!status.ok()) {
    status.message += " (kernel '" + std::string(kernel.name) + "', " + problem.ToString() + ")";
  }
  return status;
}

}  // namespace

Status PrepareGrouped(std::string_view kernel, int device) {
  const KernelEntry* entry;
  BWGEMM_RETURN_IF_ERROR(Lookup(kernel, &entry));
  DeviceProperties props;
  BWGEMM_RETURN_IF_ERROR(QueryDevice(device, &props));
  BWGEMM_RETURN_IF_ERROR(CheckArch(entry->info.name, entry->info.arch, device, props));
  DeviceScope scope;
  BWGEMM_RETURN_IF_ERROR(scope.Enter(device));
  return entry->ops.prepare(device);
}

Status RunGrouped(const GroupedCall& call, int device, cudaStream_t stream) {
  const KernelEntry* entry;
  BWGEMM_RETURN_IF_ERROR(Lookup(call.kernel, &entry));
  DeviceProperties props;
  BWGEMM_RETURN_IF_ERROR(QueryDevice(device, &props));
  BWGEMM_RETURN_IF_ERROR(CheckArch(entry->info.name, entry->info.arch, device, props));
  GroupedProblem problem;
  problem.sm_count = props.sm_count;
  BWGEMM_RETURN_IF_ERROR(
      WithContext(MakeProblem(call, entry->info, &problem), entry->info, problem));
  const size_t need = entry->ops.workspace_bytes(problem);
  if (call.workspace_bytes < need) {
    return Status::InvalidArgument("kernel '" + std::string(entry->info.name) + "' needs " +
                                   std::to_string(need) + " bytes of workspace for " +
                                   problem.ToString() + ", got " +
                                   std::to_string(call.workspace_bytes));
  }
  DeviceScope scope;
  BWGEMM_RETURN_IF_ERROR(scope.Enter(device));
  BWGEMM_RETURN_IF_ERROR(WithContext(entry->ops.prepare(device), entry->info, problem));
  return WithContext(entry->ops.launch(problem, call.workspace, stream), entry->info, problem);
}

Status GroupedWorkspaceBytes(std::string_view kernel, int64_t m, int64_t n, int64_t k,
                             int64_t groups, int64_t experts, int64_t batch, int sm_count,
                             size_t* bytes) {
  const KernelEntry* entry;
  BWGEMM_RETURN_IF_ERROR(Lookup(kernel, &entry));
  BWGEMM_RETURN_IF_ERROR(CheckRange({m, n, k, groups, experts, batch, sm_count}));
  GroupedProblem problem;
  problem.m = static_cast<int32_t>(m);
  problem.n = static_cast<int32_t>(n);
  problem.k = static_cast<int32_t>(k);
  problem.groups = static_cast<int32_t>(groups);
  problem.experts = static_cast<int32_t>(experts);
  problem.batch = static_cast<int32_t>(batch);
  problem.sm_count = sm_count;
  BWGEMM_RETURN_IF_ERROR(WithContext(CheckExtents(entry->info, problem), entry->info, problem));
  *bytes = entry->ops.workspace_bytes(problem);
  return Status::Ok();
}

}  // namespace bwgemm::grouped
