// The arithmetic of tensor-core instructions on dense float buffers.
//
// Order of accumulation, fixed here for tcgen05.mma and wgmma alike: the products of one
// instruction are added to the accumulator one by one in ascending K, each sum rounded to f32.
// Products of the operand formats are exact in f32 (bf16: 16 significant bits, f16 and tf32: 22), so
// whether the compiler contracts to fused multiply-add does not change results. Real tensor cores
// align and truncate a few products at a time: sums that are exact in f32 (small integers) are
// bitwise the same, others agree within the usual f32 summation bound.
#pragma once

#include <cstdint>
#include <vector>

#include "emulator/tensor/number_formats.h"
#include "emulator/tensor/smem_descriptor.h"

namespace bwgemm::emulator {

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

// An operand tile as floats: A as [mn][k], B as [k][mn].
struct OperandTile {
  int mn = 0;
  int k = 0;
  std::vector<float> values;
};

// Reads a tile of `mn` x `k` elements through a descriptor. `read_chunk(address, bytes16)` copies 16
// bytes of shared memory and may throw on a bad address.
template <class ReadChunk>
void gather_tile(const SmemDescriptor& descriptor, Major major, NumberFormat format, int mn, int k,
                 bool negate, bool k_outermost, ReadChunk&& read_chunk, OperandTile* tile) {
  tile->mn = mn;
  tile->k = k;
  tile->values.resize(static_cast<size_t>(mn) * k);
  const int per_chunk = elements_per_chunk(format);
  const int outer_count = major == Major::kK ? mn : k;
  const int inner_count = (major == Major::kK ? k : mn) / per_chunk;
  // An MN extent smaller than a chunk (N=8 of an 8-bit type) still reads one chunk.
  const int chunks = inner_count > 0 ? inner_count : 1;
  uint8_t bytes[16];
  float elements[16];
  for (int outer = 0; outer < outer_count; ++outer) {
    for (int inner = 0; inner < chunks; ++inner) {
      read_chunk(chunk_address(descriptor, major, static_cast<uint32_t>(outer),
                               static_cast<uint32_t>(inner)),
                 bytes);
      int count = decode_chunk(format, bytes, elements);
      if (negate) {
        for (int i = 0; i < count; ++i) elements[i] = -elements[i];
      }
      const int first = inner * per_chunk;
      const int limit = major == Major::kK ? k : mn;
      if (first + count > limit) count = limit - first;
      for (int i = 0; i < count; ++i) {
        const int m = major == Major::kK ? outer : first + i;
        const int kk = major == Major::kK ? first + i : outer;
        tile->values[k_outermost ? static_cast<size_t>(kk) * mn + m
                                 : static_cast<size_t>(m) * k + kk] = elements[i];
      }
    }
  }
}

}  // namespace bwgemm::emulator
