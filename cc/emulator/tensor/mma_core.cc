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
        cells[i] =
            static_cast<uint32_t>(add_s32(input, static_cast<int32_t>(row[i]), rule.saturate));
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

TileChunks tile_chunks(const SmemDescriptor& descriptor, Major major, NumberFormat format, int mn,
                       int k) {
  TileChunks tile{mn, k, major, format, {}};
  const int per_chunk = elements_per_chunk(format);
  const int outer_count = major == Major::kK ? mn : k;
  // An MN extent smaller than a chunk (N=8 of an 8-bit type) still reads one chunk.
  const int inner_count = std::max(1, (major == Major::kK ? k : mn) / per_chunk);
  tile.addresses.reserve(static_cast<size_t>(outer_count) * inner_count);
  for (int outer = 0; outer < outer_count; ++outer) {
    for (int inner = 0; inner < inner_count; ++inner) {
      tile.addresses.push_back(chunk_address(descriptor, major, static_cast<uint32_t>(outer),
                                             static_cast<uint32_t>(inner)));
    }
  }
  return tile;
}

std::vector<ByteRange> merge_chunks(const TileChunks& tile) {
  std::vector<uint32_t> sorted = tile.addresses;
  std::sort(sorted.begin(), sorted.end());
  std::vector<ByteRange> ranges;
  for (const uint32_t address : sorted) {
    if (!ranges.empty() && address <= ranges.back().begin + ranges.back().bytes) {
      ranges.back().bytes = address + 16 - ranges.back().begin;
    } else {
      ranges.push_back({address, 16});
    }
  }
  return ranges;
}

void gather_tile(const TileChunks& tile, const uint8_t* memory, bool negate, bool k_outermost,
                 float* out) {
  const int limit = tile.major == Major::kK ? tile.k : tile.mn;
  const int per_chunk = elements_per_chunk(tile.format);
  const int inner_count = std::max(1, limit / per_chunk);
  // Distance in `out` between neighbours along the chunk and between outer indices.
  const bool along_rows = (tile.major == Major::kK) != k_outermost;
  const size_t inner_step = along_rows ? 1 : static_cast<size_t>(k_outermost ? tile.mn : tile.k);
  const size_t outer_step = along_rows ? static_cast<size_t>(limit) : 1;
  float elements[kMaxChunkElements];
  size_t chunk = 0;
  for (size_t outer = 0; chunk < tile.addresses.size(); ++outer) {
    for (int inner = 0; inner < inner_count; ++inner, ++chunk) {
      int count = decode_chunk(tile.format, memory + tile.addresses[chunk], elements);
      count = std::min(count, limit - inner * per_chunk);
      float* to = out + outer * outer_step + static_cast<size_t>(inner * per_chunk) * inner_step;
      for (int i = 0; i < count; ++i) {
        to[static_cast<size_t>(i) * inner_step] = negate ? -elements[i] : elements[i];
      }
    }
  }
}

}  // namespace bwgemm::emulator
