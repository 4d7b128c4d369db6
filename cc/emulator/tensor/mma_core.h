// The arithmetic of tensor-core instructions on dense float buffers.
//
// Order of accumulation, fixed here for tcgen05.mma and wgmma alike: the products of one
// instruction are added to the accumulator one by one in ascending K, each sum rounded to f32.
// Products of the operand formats are exact in f32 (bf16: 16 significant bits, f16 and tf32: 22),
// so whether the compiler contracts to fused multiply-add does not change results. Real tensor
// cores align and truncate a few products at a time: sums that are exact in f32 (small integers)
// are bitwise the same, others agree within the usual f32 summation bound.
#pragma once

#include <cstdint>
#include <vector>

#include "emulator/tensor/number_formats.h"
#include "emulator/tensor/smem_descriptor.h"

namespace bwgemm::emulator {

constexpr int kMaxRow = 256;  // columns of D in one instruction

// d[n] += sum_k a[k] * b[k * b_stride + n] for one row of the result.
void accumulate_row(const float* a, const float* b, int b_stride, int n, int k, float* d);

// How a row of accumulators is kept and combined.
struct AccumulatorRule {
  NumberFormat format = NumberFormat::kF32;  // kF32, kF16 (low half of a cell) or kS32
  bool use_input = true;                     // false: D = A*B
  float input_scale = 1.0f;                  // D = A*B + D*input_scale
  bool saturate = false;                     // kS32
};

// Applies one instruction's products to `n` 32-bit accumulator cells.
void update_cells(const AccumulatorRule& rule, const float* a, const float* b, int b_stride, int n,
                  int k, uint32_t* cells);

// An operand tile of `mn` x `k` elements in shared memory: where its 16-byte chunks lie.
struct TileChunks {
  int mn = 0;
  int k = 0;
  Major major = Major::kK;
  NumberFormat format = NumberFormat::kBF16;
  std::vector<uint32_t> addresses;  // rows of K chunks (K-major) or K rows of MN chunks
};

TileChunks tile_chunks(const SmemDescriptor& descriptor, Major major, NumberFormat format, int mn,
                       int k);

// Contiguous ranges that cover the chunks, each once.
struct ByteRange {
  uint32_t begin;
  uint32_t bytes;
};
std::vector<ByteRange> merge_chunks(const TileChunks& tile);

// Reads the tile as floats from the CTA's shared memory `memory`: [mn][k], or [k][mn] with
// k_outermost. Every chunk has to lie inside.
void gather_tile(const TileChunks& tile, const uint8_t* memory, bool negate, bool k_outermost,
                 float* out);

}  // namespace bwgemm::emulator
