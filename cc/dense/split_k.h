// Split-K: the K dimension is cut into `splits` chunks, which the GEMM kernel treats as a batch
// with f32 results; then one kernel adds the partial results, always in the order of the chunks, so
// that the bits of D do not depend on which finished first.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "core/status.h"
#include "dense/problem.h"

namespace bwgemm::dense {

inline constexpr int kMaxSplits = 64;

// d[i] = sum over s of partials[s * elements + i], converted to d_dtype. `elements` is a multiple
// of 4.
Status AddPartials(const float* partials, void* d, DType d_dtype, int64_t elements, int splits,
                   cudaStream_t stream);

// Writes zeros; bytes is a multiple of 16. A kernel and not a memset: timers count kernels.
Status ClearCounters(void* counters, size_t bytes, cudaStream_t stream);

}  // namespace bwgemm::dense
