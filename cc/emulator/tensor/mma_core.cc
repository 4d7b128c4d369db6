#include "emulator/tensor/mma_core.h"

#include <algorithm>
#include <cstring>

// One wheel serves every x86-64 processor; the loop that does the work is compiled per vector set.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(BWGEMM_SANITIZED)
#define BWGEMM_VECTOR_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define BWGEMM_VECTOR_CLONES
#endif

namespace bwgemm::emulator {

BWGEMM_VECTOR_CLONES
void accumulate_row(const float* __restrict a, const float* __restrict b, int b_stride, int n,
                    int k, float* __restrict d) {
  int i = 0;
  // Blocks of 64 accumulators stay in vector registers over the whole K loop.
  for (; i + 64 <= n; i += 64) {
    float sum[64];
    std::memcpy(sum, d + i, sizeof(sum));
    for (int kk = 0; kk < k; ++kk) {
      const float scale = a[kk];
      const float* row = b + static_cast<long>(kk) * b_stride + i;
      for (int j = 0; j < 64; ++j) sum[j] += scale * row[j];
    }
    std::memcpy(d + i, sum, sizeof(sum));
  }
  for (; i + 8 <= n; i += 8) {
    float sum[8];
    std::memcpy(sum, d + i, sizeof(sum));
    for (int kk = 0; kk < k; ++kk) {
      const float scale = a[kk];
      const float* row = b + static_cast<long>(kk) * b_stride + i;
      for (int j = 0; j < 8; ++j) sum[j] += scale * row[j];
    }
    std::memcpy(d + i, sum, sizeof(sum));
  }
}

namespace {

constexpr int kMaxRow = 256;

int32_t add_s32(int32_t a, int32_t b, bool saturate) {
  const int64_t sum = static_cast<int64_t>(a) + b;
  if (saturate) {
    return static_cast<int32_t>(std::clamp<int64_t>(sum, INT32_MIN, INT32_MAX));
  }
  return static_cast<int32_t>(static_cast<uint32_t>(sum));  // wraps
}

}  // namespace

void update_cells(const AccumulatorRule& rule, const float* a, const float* b, int b_stride, int n,
                  int k, uint32_t* cells) {
  float row[kMaxRow] = {};
  switch (rule.format) {
    case NumberFormat::kS32:
      // At most 32 products of 8-bit integers: below 2^24, exact as float.
      accumulate_row(a, b, b_stride, n, k, row);
      for (int i = 0; i < n; ++i) {
        const int32_t input = rule.use_input ? static_cast<int32_t>(cells[i]) : 0;
        cells[i] = static_cast<uint32_t>(
            add_s32(input, static_cast<int32_t>(row[i]), rule.saturate));
      }
      return;
    case NumberFormat::kF16:
      if (rule.use_input) {
        for (int i = 0; i < n; ++i) {
          row[i] = decode(NumberFormat::kF16, cells[i] & 0xffffu) * rule.input_scale;
        }
      }
      accumulate_row(a, b, b_stride, n, k, row);
      for (int i = 0; i < n; ++i) cells[i] = encode_f16(row[i]);
      return;
    default:
      if (rule.use_input) {
        std::memcpy(row, cells, sizeof(float) * n);
        if (rule.input_scale != 1.0f) {
          for (int i = 0; i < n; ++i) row[i] *= rule.input_scale;
        }
      }
      accumulate_row(a, b, b_stride, n, k, row);
      std::memcpy(cells, row, sizeof(float) * n);
      return;
  }
}

}  // namespace bwgemm::emulator
