#include "call/plan.h"

#include <limits>
#include <string>

#include "dense/split_k.h"

namespace bwgemm::call {
namespace {

using dense::Decomposition;
using dense::GemmProblem;
using dense::kMaxClusterParts;
using dense::kMaxSplits;
using dense::RasterOrder;

// Their bytes are a positive int64.
constexpr int64_t kMaxPartialElements = std::numeric_limits<int64_t>::max() / sizeof(float);

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

Status CheckRange(const Options& options) {
  if (options.splits >= 1 && options.splits <= kMaxSplits) return Status::Ok();
  return Status::InvalidArgument("splits " + std::to_string(options.splits) + " is outside [1, " +
                                 std::to_string(kMaxSplits) + "]");
}

// Why a problem cannot be split, or OK.
Status CheckSplits(const KernelInfo& kernel, const GemmProblem& problem, int64_t all_splits) {
  const int64_t elements = kernel.alignment_bytes * 8 / BitsOf(kernel.a_dtype);
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

}  // namespace

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
  BWGEMM_RETURN_IF_ERROR(CheckRange(options));
  problem->splits = static_cast<int32_t>(options.splits / PartsApart(kernel, options.splits));
  return Status::Ok();
}

Status PartsOf(const Options& options, const KernelInfo& kernel, const GemmProblem& problem,
               int64_t* parts) {
  BWGEMM_RETURN_IF_ERROR(CheckRange(options));
  *parts = PartsApart(kernel, options.splits);
  return CheckSplits(kernel, problem, options.splits);
}

Status Divide(const Kernel& kernel, int64_t parts, void* partials, GemmProblem* problem,
              const Kernel** twin, size_t* bytes) {
  BWGEMM_RETURN_IF_ERROR(FindTwin(kernel.info, twin));
  const int64_t elements = int64_t{problem->m} * problem->n;
  *bytes = static_cast<size_t>(elements) * parts * sizeof(float);
  problem->batch = static_cast<int32_t>(parts);
  problem->d = {partials, problem->n, elements};
  if (kernel.info.uneven_parts) {
    problem->parts_of_k = true;
    problem->a.batch_pitch = problem->b.batch_pitch = 0;
    return Status::Ok();
  }
  const int64_t chunk = problem->k / parts;
  problem->k = static_cast<int32_t>(chunk);
  problem->a.batch_pitch = kernel.info.a_major == AMajor::kK ? chunk : chunk * problem->a.pitch;
  problem->b.batch_pitch = kernel.info.b_major == BMajor::kK ? chunk : chunk * problem->b.pitch;
  return Status::Ok();
}

Status AddParts(const Kernel& kernel, const ProductCall& call, int64_t parts,
                const GemmProblem& problem, cudaStream_t stream) {
  return dense::AddPartials(static_cast<const float*>(call.buffers[Role::kWorkspace].data),
                            call.buffers[Role::kD].data, kernel.info.out_dtype,
                            int64_t{problem.m} * problem.n, static_cast<int>(parts), stream);
}

}  // namespace bwgemm::call
