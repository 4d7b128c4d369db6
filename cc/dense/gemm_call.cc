#include "dense/gemm_call.h"

#include <limits>
#include <string>

#include "core/cuda_status.h"
#include "core/device.h"
#include "dense/split_k.h"

namespace bwgemm {
namespace {

// Their bytes are a positive int64.
constexpr int64_t kMaxPartialElements = std::numeric_limits<int64_t>::max() / sizeof(float);

std::string ShapeString(const Tensor3& t) {
  return std::string(Name(t.dtype)) + "[" + std::to_string(t.dims[0]) + "," +
         std::to_string(t.dims[1]) + "," + std::to_string(t.dims[2]) + "]";
}

Status Lookup(std::string_view name, const KernelEntry** entry) {
  *entry = FindKernel(name);
  if (*entry) return Status::Ok();
  return Status::Unimplemented(
      "kernel '" + std::string(name) +
      "' is not in this build of jax_bwgemm (`python -m jax_bwgemm info --kernels` "
      "lists those that are)");
}

Status CheckDims(std::string_view what, const Tensor3& t, const std::array<int64_t, 3>& expected,
                 bool batch_may_be_one) {
  const bool batch_ok = t.dims[0] == expected[0] || (batch_may_be_one && t.dims[0] == 1);
  if (batch_ok && t.dims[1] == expected[1] && t.dims[2] == expected[2]) return Status::Ok();
  Tensor3 want = t;
  want.dims = expected;
  return Status::InvalidArgument(std::string(what) + " is " + ShapeString(t) + ", expected " +
                                 ShapeString(want));
}

Status MakeProblem(const GemmCall& call, const KernelInfo& kernel, GemmProblem* problem) {
  if (call.a.dtype != kernel.in_dtype || call.b.dtype != kernel.in_dtype ||
      call.d.dtype != kernel.out_dtype) {
    return Status::InvalidArgument("kernel '" + std::string(kernel.name) + "' computes " +
                                   Name(kernel.in_dtype) + " x " + Name(kernel.in_dtype) + " -> " +
                                   Name(kernel.out_dtype) + ", the call is " + ShapeString(call.a) +
                                   " x " + ShapeString(call.b) + " -> " + ShapeString(call.d));
  }
  const int64_t batch = call.d.dims[0], m = call.d.dims[1], n = call.d.dims[2];
  const int64_t k = kernel.lhs_major == LhsMajor::kK ? call.a.dims[2] : call.a.dims[1];
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  for (int64_t extent : {batch, m, n, k}) {
    if (extent < 1 || extent > kMax) {
      return Status::InvalidArgument("extent " + std::to_string(extent) +
                                     " of the problem [B=" + std::to_string(batch) +
                                     ", M=" + std::to_string(m) + ", N=" + std::to_string(n) +
                                     ", K=" + std::to_string(k) + "] is outside [1, 2^31)");
    }
  }
  const bool a_k = kernel.lhs_major == LhsMajor::kK, b_n = kernel.rhs_major == RhsMajor::kN;
  BWGEMM_RETURN_IF_ERROR(CheckDims("operand a", call.a, {batch, a_k ? m : k, a_k ? k : m}, true));
  BWGEMM_RETURN_IF_ERROR(CheckDims("operand b", call.b, {batch, b_n ? k : n, b_n ? n : k}, true));
  for (const void* pointer : {call.a.data, call.b.data, call.d.data}) {
    if (reinterpret_cast<uintptr_t>(pointer) % kAlignmentBytes != 0) {
      return Status::InvalidArgument("a buffer is not aligned to " +
                                     std::to_string(kAlignmentBytes) + " bytes");
    }
  }

  // Row-major rank 3: the last extent is the pitch, a batch of one serves all.
  auto operand = [batch](const Tensor3& t) {
    return GemmOperand{t.data, t.dims[2], t.dims[0] == batch ? t.dims[1] * t.dims[2] : 0};
  };
  problem->a = operand(call.a);
  problem->b = operand(call.b);
  problem->d = operand(call.d);
  problem->m = static_cast<int32_t>(m);
  problem->n = static_cast<int32_t>(n);
  problem->k = static_cast<int32_t>(k);
  problem->batch = static_cast<int32_t>(batch);
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

// Whether parts of K may differ in length by a block: the kernels of cc/dense/sm90.
bool SplitsUnevenly(const KernelInfo& kernel) {
  return !kernel.stream_k &&
         (kernel.schedule == Schedule::kCooperative || kernel.schedule == Schedule::kPingpong);
}

// Writes the options to the problem; the splits as far as the kernel itself adds the parts.
Status SetOptions(const GemmOptions& options, const KernelInfo& kernel, GemmProblem* problem) {
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
  const int64_t elements = kAlignmentBytes / SizeOf(kernel.in_dtype);
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
  if (!SplitsUnevenly(kernel) && k % (splits * elements) != 0) {
    return Status::InvalidArgument("K=" + std::to_string(k) + " is not a multiple of " +
                                   std::to_string(splits * elements) + ": " + asked());
  }
  return Status::Ok();
}

// The kernel that computes the same with f32 results.
Status PartialKernel(const KernelEntry& kernel, const KernelEntry** partial) {
  std::string name = kernel.info.name;  // arch_in_out_...
  const size_t out = name.find('_', name.find('_') + 1) + 1;
  name.replace(out, name.find('_', out) - out, "f32");
  *partial = FindKernel(name);
  if (*partial) return Status::Ok();
  return Status::Unimplemented("kernel '" + std::string(kernel.info.name) +
                               "' cannot split K: this build has no '" + name +
                               "', which computes the parts in f32");
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
  if (SplitsUnevenly(kernel)) {
    p.parts_of_k = true;
    p.a.batch_pitch = p.b.batch_pitch = 0;
    return p;
  }
  const int64_t chunk = whole.k / splits;
  p.k = static_cast<int32_t>(chunk);
  p.a.batch_pitch = kernel.lhs_major == LhsMajor::kK ? chunk : chunk * whole.a.pitch;
  p.b.batch_pitch = kernel.rhs_major == RhsMajor::kK ? chunk : chunk * whole.b.pitch;
  return p;
}

// Says which kernel and problem an error of the layers below belongs to.
Status WithContext(Status status, const KernelInfo& kernel, const GemmProblem& problem) {
  if (!status.ok()) {
    status.message += " (kernel '" + std::string(kernel.name) + "', " + problem.ToString() + ")";
  }
  return status;
}

}  // namespace

Status PrepareGemm(std::string_view kernel, int device) {
  const KernelEntry* entry;
  BWGEMM_RETURN_IF_ERROR(Lookup(kernel, &entry));
  DeviceProperties props;
  BWGEMM_RETURN_IF_ERROR(QueryDevice(device, &props));
  BWGEMM_RETURN_IF_ERROR(CheckArch(entry->info.name, entry->info.arch, device, props));
  DeviceScope scope;
  BWGEMM_RETURN_IF_ERROR(scope.Enter(device));
  return entry->ops.prepare(device);
}

Status RunGemm(const GemmCall& call, int device, cudaStream_t stream) {
  const KernelEntry* entry;
  BWGEMM_RETURN_IF_ERROR(Lookup(call.kernel, &entry));
  DeviceProperties props;
  BWGEMM_RETURN_IF_ERROR(QueryDevice(device, &props));
  BWGEMM_RETURN_IF_ERROR(CheckArch(entry->info.name, entry->info.arch, device, props));
  GemmProblem problem;
  problem.device = device;
  problem.sm_count = props.sm_count;
  BWGEMM_RETURN_IF_ERROR(MakeProblem(call, entry->info, &problem));
  BWGEMM_RETURN_IF_ERROR(SetOptions(call.options, entry->info, &problem));
  BWGEMM_RETURN_IF_ERROR(
      WithContext(CheckSplits(entry->info, problem, call.options.splits), entry->info, problem));
  BWGEMM_RETURN_IF_ERROR(WithContext(entry->ops.supports(problem), entry->info, problem));
  const KernelEntry* gemm = entry;
  size_t partial_bytes = 0;
  const int64_t splits = PartsApart(entry->info, call.options.splits);
  if (splits > 1) {
    BWGEMM_RETURN_IF_ERROR(PartialKernel(*entry, &gemm));
    problem = SplitProblem(problem, entry->info, splits, call.workspace);
    BWGEMM_RETURN_IF_ERROR(WithContext(gemm->ops.supports(problem), gemm->info, problem));
    partial_bytes = PartialBytes(problem.m, problem.n, splits);
  }
  const size_t need = partial_bytes + gemm->ops.workspace_bytes(problem);
  if (call.workspace_bytes < need) {
    return Status::InvalidArgument("kernel '" + std::string(entry->info.name) + "' needs " +
                                   std::to_string(need) + " bytes of workspace for " +
                                   problem.ToString() + ", got " +
                                   std::to_string(call.workspace_bytes));
  }
  DeviceScope scope;
  BWGEMM_RETURN_IF_ERROR(scope.Enter(device));
  BWGEMM_RETURN_IF_ERROR(WithContext(gemm->ops.prepare(device), gemm->info, problem));
  BWGEMM_RETURN_IF_ERROR(WithContext(
      gemm->ops.launch(problem, static_cast<char*>(call.workspace) + partial_bytes, stream),
      gemm->info, problem));
  if (partial_bytes == 0) return Status::Ok();
  return WithContext(
      AddPartials(static_cast<const float*>(call.workspace), call.d.data, entry->info.out_dtype,
                  static_cast<int64_t>(problem.m) * problem.n, static_cast<int>(splits), stream),
      entry->info, problem);
}

Status GemmWorkspaceBytes(std::string_view kernel, int64_t m, int64_t n, int64_t k, int64_t batch,
                          const GemmOptions& options, int sm_count, size_t* bytes) {
  const KernelEntry* entry;
  BWGEMM_RETURN_IF_ERROR(Lookup(kernel, &entry));
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  for (int64_t extent : {m, n, k, batch, int64_t{sm_count}}) {
    if (extent < 1 || extent > kMax) {
      return Status::InvalidArgument("m, n, k, batch and sm_count must be in [1, 2^31), got " +
                                     std::to_string(extent));
    }
  }
  // Any pitches that are as aligned as the extents: the answer depends on the extents alone.
  const bool a_k = entry->info.lhs_major == LhsMajor::kK,
             b_n = entry->info.rhs_major == RhsMajor::kN;
  GemmProblem problem;
  problem.a = {nullptr, a_k ? k : m, m * k};
  problem.b = {nullptr, b_n ? n : k, k * n};
  problem.d = {nullptr, n, m * n};
  problem.m = static_cast<int32_t>(m);
  problem.n = static_cast<int32_t>(n);
  problem.k = static_cast<int32_t>(k);
  problem.batch = static_cast<int32_t>(batch);
  problem.sm_count = sm_count;
  BWGEMM_RETURN_IF_ERROR(SetOptions(options, entry->info, &problem));
  BWGEMM_RETURN_IF_ERROR(
      WithContext(CheckSplits(entry->info, problem, options.splits), entry->info, problem));
  BWGEMM_RETURN_IF_ERROR(WithContext(entry->ops.supports(problem), entry->info, problem));
  const int64_t splits = PartsApart(entry->info, options.splits);
  if (splits == 1) {
    *bytes = entry->ops.workspace_bytes(problem);
    return Status::Ok();
  }
  const KernelEntry* gemm;
  BWGEMM_RETURN_IF_ERROR(PartialKernel(*entry, &gemm));
  const GemmProblem parts = SplitProblem(problem, entry->info, splits, nullptr);
  BWGEMM_RETURN_IF_ERROR(WithContext(gemm->ops.supports(parts), gemm->info, parts));
  *bytes = PartialBytes(m, n, splits) + gemm->ops.workspace_bytes(parts);
  return Status::Ok();
}

}  // namespace bwgemm
