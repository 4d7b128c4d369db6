// The words that every layer shares: architectures, element types, memory orders, schedules. Plain
// enums, no CUDA, CUTLASS or XLA.
#pragma once

namespace bwgemm {

enum class Arch { kSm90, kSm100 };

// Element types of buffers. Kernels multiply those of 16 bits and, with scales, of 8 and 4: kE4M3
// has no infinities. Elements of kE2M1 lie in pairs in buffers of kU8, the first in the low half.
// kS32 are group sizes, kU8 also workspaces.
enum class DType { kBF16, kF16, kF32, kE4M3, kE5M2, kE2M1, kS32, kU8 };

// What a product contracts. Matrices of A, B and the result D, where G groups own rows of A:
//   kDense     D[M, N] = A[M, K] x B[K, N]
//   kMGrouped  D[rows of g, N] = A[rows of g, K] x B[g][K, N]
//   kKGrouped  D[g][K, N] = transpose(A[rows of g, K]) x B[rows of g, N]: M is contracted
//   kScaled    D[M, N] = A[M, K] x transpose(B[N, K]), whose elements are values times scales
//   kGated     D[M, N] = f(A[M, K] x B0[K, N], A[M, K] x B1[K, N]), f being linked in
enum class Contraction { kDense, kMGrouped, kKGrouped, kScaled, kGated };

// The contiguous dimension of an operand: A is stored [M, K] or [K, M], B [K, N] or [N, K].
enum class AMajor { kK, kM };
enum class BMajor { kN, kK };

enum class Schedule {
  kCooperative,  // sm90: two consumer warpgroups share one tile
  kPingpong,     // sm90: two consumer warpgroups alternate tiles
  kClusterK,     // sm90: the CTAs of a cluster share one tile along K
  k1Sm,          // sm100: one CTA issues the MMA
  k2Sm,          // sm100: a pair of CTAs issues one MMA
};

// Where the scales of a product of scaled operands, grouped or not, are applied. Q is the operand
// on the N side of the MMA.
enum class ScaleUse {
  kNone,
  kSums,    // to sums over all of K: no scale changes along K
  kBlocks,  // to sums of 128 products, one scale for 128 rows of Q
  kRows,    // to sums of 128 products, one scale for each row of Q
  kMma,     // to 32 or 16 products, by the MMA instruction: formats with 8-bit scales
};

// Elements along K that share a scale, and rows of a square block.
inline constexpr int kScaleBlock = 128;

// Scales that an MMA reads (kMma) lie in tiles, one byte for each: those of 128 rows and of four
// blocks along K. A block is one of MXFP8 or, of kE2M1, of NVFP4.
inline constexpr int kScaleTileRows = 128, kScaleTileBytes = 512;
constexpr int ScaleTileK(DType values) { return 4 * (values == DType::kE2M1 ? 16 : 32); }
// Bands of kScaleTileRows in which the scales of ragged rows lie. Row r of matrix e's group, which
// begins at row `first`, is in band first / 128 + e + (r - first) / 128: no two groups share a
// band.
constexpr long long RaggedScaleBands(long long rows, long long experts) {
  return (rows + kScaleTileRows - 1) / kScaleTileRows + experts - 1;
}

// TMA's alignment of base addresses and row pitches.
inline constexpr int kAlignmentBytes = 16;

constexpr int BitsOf(DType v) {
  switch (v) {
    case DType::kBF16:
    case DType::kF16:
      return 16;
    case DType::kF32:
    case DType::kS32:
      return 32;
    case DType::kE4M3:
    case DType::kE5M2:
    case DType::kU8:
      return 8;
    case DType::kE2M1:
      return 4;
  }
  return 0;
}

// Bytes of an element; only for types of whole bytes.
constexpr int SizeOf(DType v) { return BitsOf(v) / 8; }

inline const char* Name(Arch v) { return v == Arch::kSm90 ? "sm90" : "sm100"; }
inline const char* Name(AMajor v) { return v == AMajor::kK ? "k" : "m"; }
inline const char* Name(BMajor v) { return v == BMajor::kN ? "n" : "k"; }
inline const char* Name(Contraction v) {
  switch (v) {
    case Contraction::kDense:
      return "dense";
    case Contraction::kMGrouped:
      return "m_grouped";
    case Contraction::kKGrouped:
      return "k_grouped";
    case Contraction::kScaled:
      return "scaled";
    case Contraction::kGated:
      return "gated";
  }
  return "?";
}
inline const char* Name(ScaleUse v) {
  switch (v) {
    case ScaleUse::kNone:
      return "";
    case ScaleUse::kSums:
      return "sums";
    case ScaleUse::kBlocks:
      return "blocks";
    case ScaleUse::kRows:
      return "rows";
    case ScaleUse::kMma:
      return "mma";
  }
  return "?";
}
inline const char* Name(DType v) {
  switch (v) {
    case DType::kBF16:
      return "bfloat16";
    case DType::kF16:
      return "float16";
    case DType::kF32:
      return "float32";
    case DType::kE4M3:
      return "float8_e4m3fn";
    case DType::kE5M2:
      return "float8_e5m2";
    case DType::kE2M1:
      return "float4_e2m1fn";
    case DType::kS32:
      return "int32";
    case DType::kU8:
      return "uint8";
  }
  return "?";
}
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

}  // namespace bwgemm
