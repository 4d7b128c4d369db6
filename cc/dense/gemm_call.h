// One GEMM call as it arrives from a framework: buffers plus attributes, checked and launched.
// Knows nothing of XLA or CUTLASS; the CUDA and the emulated FFI handlers both end here.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/status.h"
#include "dense/kernel_table.h"

namespace bwgemm {

// A dense row-major rank-3 buffer.
struct Tensor3 {
  void* data = nullptr;
  std::array<int64_t, 3> dims{};
  DType dtype = DType::kBF16;
};

// What is chosen at run time, for any kernel.
struct GemmOptions {
  std::string_view raster_order = "heuristic";   // "heuristic", "m" or "n"
  int64_t swizzle = 1;                           // 1, 2, 4, 8 or 16
  int64_t splits = 1;                            // chunks of K computed side by side, then added
  std::string_view decomposition = "heuristic";  // stream-K kernels: also "data_parallel",
                                                 // "split_k", "stream_k"; see Decomposition
};

struct GemmCall {
  std::string_view kernel;  // name in kernels.def
  GemmOptions options;
  Tensor3 a;  // [Ba, M, K] or [Ba, K, M] by the kernel's lhs major
  Tensor3 b;  // [Bb, K, N] or [Bb, N, K] by the kernel's rhs major
  Tensor3 d;  // [B, M, N]; Ba and Bb are B or 1
  void* workspace = nullptr;
  size_t workspace_bytes = 0;
};

// Resolves the kernel and does what must not happen under graph capture. Cheap when repeated.
Status PrepareGemm(std::string_view kernel, int device);

// Checks everything, then launches on the stream.
Status RunGemm(const GemmCall& call, int device, cudaStream_t stream);

// For the Python side, which allocates the workspace: bytes for that kernel and problem.
Status GemmWorkspaceBytes(std::string_view kernel, int64_t m, int64_t n, int64_t k, int64_t batch,
                          const GemmOptions& options, int sm_count, size_t* bytes);

}  // namespace bwgemm
