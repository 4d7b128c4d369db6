// The GEMM vocabulary shared by every layer: plain enums and structs, no CUDA, CUTLASS or XLA.
//
//   D[B,M,N] = A[B,M,K] x B[B,K,N], f32 accumulation, D row-major.
#pragma once

#include <cstdint>
#include <string>

namespace bwgemm {

enum class Arch { kSm90, kSm100 };
enum class DType { kBF16, kF16, kF32 };
enum class LhsMajor { kK, kM };  // stored [B,M,K] | [B,K,M]
enum class RhsMajor { kN, kK };  // stored [B,K,N] | [B,N,K]
enum class RasterOrder { kHeuristic, kAlongM, kAlongN };

// How a stream-K kernel divides the work among its CTAs.
enum class Decomposition {
  kHeuristic,     // kSplitK if splits > 1, else kStreamK, unless the last wave is half full or more
  kDataParallel,  // whole tiles
  kSplitK,        // every tile's K in `splits` parts
  kStreamK,       // the tiles of the first waves shared evenly, whole tiles for the rest
};

enum class Schedule {
  kCooperative,  // sm90: two consumer warpgroups share one tile
  kPingpong,     // sm90: two consumer warpgroups alternate tiles
  kClusterK,     // sm90: the CTAs of a cluster share one tile along K
  k1Sm,          // sm100: one CTA issues the MMA
  k2Sm,          // sm100: a pair of CTAs issues one MMA
};

// CTAs of a cluster that every GPU can place.
inline constexpr int kMaxClusterParts = 8;

// What TMA demands of every operand's base pointer and row pitch.
inline constexpr int kAlignmentBytes = 16;

// A matrix per batch element, in elements: `pitch` between its rows (the contiguous dimension has
// stride one), `batch_pitch` between matrices, 0 when one serves the whole batch.
struct GemmOperand {
  const void* data = nullptr;
  int64_t pitch = 0;
  int64_t batch_pitch = 0;
};

struct GemmProblem {
  GemmOperand a, b, d;
  int32_t m = 0, n = 0, k = 0, batch = 1;
  RasterOrder raster_order = RasterOrder::kHeuristic;
  int32_t swizzle = 1;                                      // tiles per raster band; 1 = none
  Decomposition decomposition = Decomposition::kHeuristic;  // stream-K kernels only
  int32_t splits = 1;  // parts of K that the kernel itself adds: stream-K, cluster-K
  int32_t device = 0;
  int32_t sm_count = 0;
  // Plain SM90 kernels: whether the batch is parts of K, as equal as whole blocks can be, of
  // operands without a batch.
  bool parts_of_k = false;

  std::string ToString() const {
    return "[B=" + std::to_string(batch) + ", M=" + std::to_string(m) + ", N=" + std::to_string(n) +
           ", K=" + std::to_string(k) + "]";
  }
};

inline const char* Name(Arch v) { return v == Arch::kSm90 ? "sm90" : "sm100"; }
inline const char* Name(DType v) {
  return v == DType::kBF16 ? "bfloat16" : v == DType::kF16 ? "float16" : "float32";
}
inline const char* Name(LhsMajor v) { return v == LhsMajor::kK ? "k" : "m"; }
inline const char* Name(RhsMajor v) { return v == RhsMajor::kN ? "n" : "k"; }
inline const char* Name(Schedule v) {
  switch (v) {
    case Schedule::kCooperative:
      return "cooperative";
    case Schedule::kPingpong:
      return "pingpong";
    case Schedule::kClusterK:
      return "clusterk";
    case Schedule::k1Sm:
      return "1sm";
    case Schedule::k2Sm:
      return "2sm";
  }
  return "?";
}
inline int SizeOf(DType v) { return v == DType::kF32 ? 4 : 2; }

}  // namespace bwgemm
