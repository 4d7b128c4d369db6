// The problem of a dense product: plain enums and structs, no device code, CUTLASS or XLA.
//
//   D[B,M,N] = A[B,M,K] x B[B,K,N], f32 accumulation, D row-major.
#pragma once

#include <cstdint>
#include <string>

#include "core/kernel.h"

namespace bwgemm::dense {

// Along which dimension of D neighbouring tiles are computed one after the other.
enum class RasterOrder { kHeuristic, kAlongM, kAlongN };

// How a stream-K kernel divides the work among its CTAs.
enum class Decomposition {
  kHeuristic,     // kSplitK if splits > 1, else kStreamK unless the last wave is half full or more.
                  // SM90: PlanStreamK says what else stays whole
  kDataParallel,  // whole tiles
  kSplitK,        // every tile's K in `splits` parts
  kStreamK,       // the tiles of the first waves shared evenly, whole tiles for the rest
};

// Most CTAs of a cluster that every GPU can place.
inline constexpr int kMaxClusterParts = 8;

// A matrix per batch element. In elements: `pitch` from row to row (the contiguous dimension has
// stride one), `batch_pitch` from matrix to matrix, 0 when one matrix serves the whole batch.
struct GemmOperand {
  const void* data = nullptr;
  int64_t pitch = 0;
  int64_t batch_pitch = 0;
};

struct GemmProblem {
  GemmOperand a, b, d;
  const void* b_up = nullptr;  // of gated kernels: the second matrix, which lies as b does
  int32_t m = 0, n = 0, k = 0, batch = 1;
  RasterOrder raster_order = RasterOrder::kHeuristic;
  int32_t swizzle = 1;  // height of a band of tiles, in clusters; 1: no bands
  Decomposition decomposition = Decomposition::kHeuristic;  // stream-K kernels only
  int32_t splits = 1;  // parts of K that the kernel itself adds: stream-K, cluster-K
  int32_t device = 0;
  int32_t sm_count = 0;
  // Kernels with uneven_parts: the batch index counts parts of K, which differ by at most a block,
  // of operands without a batch.
  bool parts_of_k = false;

  std::string ToString() const {
    return "[B=" + std::to_string(batch) + ", M=" + std::to_string(m) + ", N=" + std::to_string(n) +
           ", K=" + std::to_string(k) + "]";
  }
};

using KernelOps = bwgemm::KernelOps<GemmProblem>;
using KernelEntry = bwgemm::KernelEntry<GemmProblem>;

}  // namespace bwgemm::dense
