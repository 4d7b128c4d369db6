#include <climits>
#include <cstdint>
#include <string>

#include "core/ceil_div.h"
#include "core/cuda_status.h"
#include "core/helper_kernels.h"
#include "core/launch.h"
#include "scaled/quantize/linked.h"
#include "scaled/quantize/problem.h"
#include "scaled/quantize/tile.h"

namespace bwgemm::scaled {
namespace {

template <DType kIn, DType kOut>
Status Launch(const QuantizeParams& params, int64_t tiles, cudaStream_t stream) {
  const QuantizeProblem& p = params.problem;
  const auto kernel = p.t_values ? p.random ? QuantizeKernel<kIn, kOut, true, true>
                                            : QuantizeKernel<kIn, kOut, true, false>
                      : p.random ? QuantizeKernel<kIn, kOut, false, true>
                                 : QuantizeKernel<kIn, kOut, false, false>;
  kernel<<<static_cast<unsigned>(tiles), kThreads, 0, stream>>>(params);
  return BWGEMM_CUDA_STATUS(cudaGetLastError());
}

template <DType kIn>
Status LaunchInto(const QuantizeParams& params, int64_t tiles, cudaStream_t stream) {
  return params.problem.out_dtype == DType::kE4M3
             ? Launch<kIn, DType::kE4M3>(params, tiles, stream)
             : Launch<kIn, DType::kE5M2>(params, tiles, stream);
}

template <DType kIn, DType kOut>
HelperKernels Kernels() {
  return {reinterpret_cast<const void*>(&QuantizeKernel<kIn, kOut, true, true>),
          reinterpret_cast<const void*>(&QuantizeKernel<kIn, kOut, true, false>),
          reinterpret_cast<const void*>(&QuantizeKernel<kIn, kOut, false, true>),
          reinterpret_cast<const void*>(&QuantizeKernel<kIn, kOut, false, false>)};
}
const HelperKernels kKernels[] = {
    Kernels<DType::kBF16, DType::kE4M3>(), Kernels<DType::kBF16, DType::kE5M2>(),
    Kernels<DType::kF16, DType::kE4M3>(),  Kernels<DType::kF16, DType::kE5M2>(),
    Kernels<DType::kF32, DType::kE4M3>(),  Kernels<DType::kF32, DType::kE5M2>()};

bool Aligned(const void* pointer, int bytes) {
  return reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
}

// The parameters of a launch and its CTAs.
Status Prepare(const QuantizeProblem& problem, QuantizeParams* params, int64_t* tiles) {
  params->problem = problem;
  params->row_tiles = static_cast<int32_t>(CeilDiv(problem.rows, kTile));
  params->column_tiles = static_cast<int32_t>(CeilDiv(problem.columns, kTile));
  params->vectors = problem.columns % kPatch == 0 && Aligned(problem.x, 16) &&
                    Aligned(problem.values, sizeof(uint2));
  params->t_vectors = problem.rows % kPatch == 0 && Aligned(problem.t_values, sizeof(uint2));
  *tiles = int64_t{params->row_tiles} * params->column_tiles * problem.batch;
  if (*tiles <= INT_MAX) return Status::Ok();
  return Status::InvalidArgument("quantize: " + problem.ToString() + " has too many tiles");
}

}  // namespace

Status Quantize(const QuantizeProblem& problem, cudaStream_t stream) {
  QuantizeParams params;
  int64_t tiles;
  BWGEMM_RETURN_IF_ERROR(Prepare(problem, &params, &tiles));
  switch (problem.x_dtype) {
    case DType::kBF16:
      return LaunchInto<DType::kBF16>(params, tiles, stream);
    case DType::kF16:
      return LaunchInto<DType::kF16>(params, tiles, stream);
    case DType::kF32:
      return LaunchInto<DType::kF32>(params, tiles, stream);
    default:
      return Status::Internal("quantize: unknown type of x");
  }
}

Status QuantizeLinked(const QuantizeProblem& problem, const EpilogueArguments& source,
                      const void* function, cudaStream_t stream) {
  LinkedQuantizeParams params{};
  int64_t tiles;
  BWGEMM_RETURN_IF_ERROR(Prepare(problem, &params, &tiles));
  params.source = source;
  const dim3 grid(static_cast<unsigned>(tiles)), one(1);
  return LaunchClusters(function, params, {grid, one, dim3(kThreads), 0}, stream);
}

}  // namespace bwgemm::scaled
