// One grouped GEMM call as it arrives from a framework: buffers plus attributes, checked and
// launched. Knows nothing of XLA or CUTLASS; the CUDA and the emulated FFI handlers both end here.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "core/status.h"
#include "grouped/kernel_table.h"

namespace bwgemm::grouped {

// A dense row-major buffer.
struct Operand {
  void* data = nullptr;
  std::vector<int64_t> dims;
  std::string dtype;  // as Name(DType), or "int32"
};

struct GroupedCall {
  std::string_view kernel;  // name in grouped.def
  std::string_view order;   // "heuristic", "horizontal" or "vertical"
  int64_t swizzle = 1;      // row tiles per band: 1 to 64
  Operand lhs;              // [Ba, M, K]
  Operand rhs;              // rows: [Bb, E, K, N] or [Bb, E, N, K]; contract: [Bb, M, N]
  Operand sizes;            // [Bs, G]
  Operand offset;           // [Bo]
  Operand d;                // rows: [B, M, N]; contract: [B, E, K, N]
  void* workspace = nullptr;
  size_t workspace_bytes = 0;
};

// Resolves the kernel and does what must not happen under graph capture. Cheap when repeated.
Status PrepareGrouped(std::string_view kernel, int device);

// Checks everything, then launches on the stream.
Status RunGrouped(const GroupedCall& call, int device, cudaStream_t stream);

// For the Python side, which allocates the workspace.
Status GroupedWorkspaceBytes(std::string_view kernel, int64_t m, int64_t n, int64_t k,
                             int64_t groups, int64_t experts, int64_t batch, int sm_count,
                             size_t* bytes);

}  // namespace bwgemm::grouped
