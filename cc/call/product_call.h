// A call of a kernel as it arrives from a framework: buffers and options, checked and launched.
// Knows nothing of XLA or CUTLASS; the CUDA and the emulated FFI handlers both end here.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "call/buffer.h"
#include "call/kernel_table.h"

namespace bwgemm::call {

// What is chosen at run time. A kernel refuses options that it does not have.
struct Options {
  std::string_view raster_order = "heuristic";  // dense, scaled: "heuristic", "m" or "n"
  int64_t swizzle = 1;                          // dense, scaled: 1, 2, 4, 8 or 16; grouped: 1 to 64
  int64_t splits = 1;                           // dense, scaled: parts of K, computed side by side
  std::string_view decomposition = "heuristic";  // stream-K kernels: also "data_parallel",
                                                 // "split_k", "stream_k"; see Decomposition
  // scaled, and grouped ones with scales: "tensor", "row", "1x128", "128x128", "mxfp8" or "nvfp4"
  std::string_view a_scaling, b_scaling;
  std::string_view order = "heuristic";  // grouped: "heuristic", "horizontal" or "vertical"
};

// Raise it when an older library cannot launch what is linked now, and the oldest one when code
// that was linked before cannot be launched any more, because parameters or shared memory differ.
// 5: SM100's kernels read their operands' formats, to which 4's library gives no values.
// 6: dense kernels may move two matrices.
inline constexpr int64_t kEpilogueVersion = 6, kOldestEpilogueVersion = 4;

// An epilogue that is linked into the kernel; without one, `code` is empty.
struct LinkedEpilogue {
  std::string_view code;      // the kernel, base64: a cubin or, for the emulator, PTX
  std::string_view digest;    // a name for the code
  int64_t version = 0;        // kEpilogueVersion of the library that it was linked for
  std::string_view form;      // "" or, of an m-grouped product, "gated" or "halves"; of a dense
                              // one "split_k": it follows the second kernel's sum over parts of K
  std::string_view operands;  // type and dimensions of x0, ...: "bfloat16:n float32:mn int32:".
                              // g: the matrices of a grouped product
  std::string_view results;   // types of y1, ..., which are [1, M, N] as d is
  // "bfloat16:mn:staged", "bfloat16:staged": TMA moves the array; one operand, one result at most;
  // two operands of a dense ping-pong kernel, two of each of a grouped product.
  // "float32:summed": not [1, M, N] but the partial sums over rows, of PartialSumRows; of a grouped
  // product over columns, each of kPartColumns. "bfloat16:half": no buffer of its own but columns N
  // to 2 N of d, which has so many in the form "halves"; the first.
};

struct ProductCall {
  std::string_view kernel;   // its name
  std::string_view windows;  // of a, b and d, as SetWindows reads them; dense products have them
  Options options;
  LinkedEpilogue epilogue;
  // A's and B's memory order is the kernel's a_major and b_major:
  //   dense      a [Ba, M, K] or [Ba, K, M], b [Bb, K, N] or [Bb, N, K]; d [B, M, N]
  //   m-grouped  a [Ba, M, K], b [Bb, E, K, N] or [Bb, E, N, K], group_sizes [Bs, G],
  //              group_offset [Bo]; d [B, M, N]. With an epilogue of the form "gated" b is
  //              [1, E, K, 2N], of the form "halves" d is [1, M, 2N]
  //   k-grouped  a [Ba, M, K], b [Bb, M, N], group_sizes [Bs, G], group_offset [Bo];
  //              d [B, E, K, N]
  //   scaled     a [Ba, M, K], b [Bb, N, K], a_scales, b_scales; d [B, M, N]. Two 4-bit values make
  //              one element, so "nvfp4" has K/2 of them, and alpha, f32 [Bs] (m-grouped [Bs, E]).
  //              Scales of [R, K], f32: tensor [Bs], row [Bs, R], 1x128 [Bs, K/128, R],
  //              128x128 [Bs, R/128, K/128]. Of mxfp8 and nvfp4: tiles of bytes (SetScales)
  //   gated      a [1, M, K], b [K, 2, N], or b and b_up [1, K, N]; d and all of the epilogue's
  //              results [1, M, N]
  // In grouped products with scales the contracted dimension is the last of both operands:
  //   m-grouped  b [Bb, E, N, K], its scales [Bs, E, ...]
  //   k-grouped  a [Ba, K, M], b [Bb, N, M]
  // Batch extents of operands are B or 1. workspace: bytes.
  Buffers buffers;
};

// Sizes of a problem. Only grouped ones have groups and experts.
struct ProductSizes {
  int64_t m = 0, n = 0, k = 0, batch = 1, groups = 0, experts = 0;
};

// Loads the kernels of a call on a device ahead of it; Run does if nobody did. Cheap when repeated.
// Of the call, buffers are not needed.
Status Prepare(const ProductCall& call, int device);

// Checks everything, then launches on the stream.
Status Run(const ProductCall& call, int device, cudaStream_t stream);

// For the Python side, which allocates the workspace.
Status WorkspaceBytes(std::string_view kernel, const ProductSizes& sizes, const Options& options,
                      int sm_count, size_t* bytes);

// Says which kernel and problem an error of the layers below belongs to.
template <class Problem>
Status WithContext(Status status, const KernelInfo& kernel, const Problem& problem) {
  if (!status.ok()) {
    status.message += " (kernel '" + std::string(kernel.name) + "', " + problem.ToString() + ")";
  }
  return status;
}

// InvalidArgument unless the call's workspace has so many bytes.
template <class Problem>
Status CheckWorkspace(const ProductCall& call, size_t need, const Problem& problem) {
  const size_t got = call.buffers[Role::kWorkspace].bytes;
  if (got >= need) return Status::Ok();
  return Status::InvalidArgument("kernel '" + std::string(call.kernel) + "' needs " +
                                 std::to_string(need) + " bytes of workspace for " +
                                 problem.ToString() + ", got " + std::to_string(got));
}

}  // namespace bwgemm::call
