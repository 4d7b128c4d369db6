#include "emulator/tensor/block_scale.h"

#include <cstring>

namespace bwgemm::emulator {

TmemRegion scale_region(const TmemAddress& address, int rows) {
  return {address.lane, kTmemLanes, address.column, (rows + 31) / 32};
}

Scales::Scales(TensorMemory& memory, const TmemAddress& address, int id, NumberFormat format,
               int blocks, int rows)
    : blocks_(blocks), rows_(rows), values_(size_t{4} * blocks * rows) {
  for (int quarter = 0; quarter < 4; ++quarter) {
    for (int row = 0; row < rows; ++row) {
      const int lane = quarter * 32 + row % 32, column = address.column + row / 32;
      unwritten_ = unwritten_ || !memory.is_written(lane, column, 1);
      const uint32_t cell = *memory.cell(lane, column);
      for (int block = 0; block < blocks; ++block) {
        values_[static_cast<size_t>(quarter * blocks + block) * rows + row] =
            decode(format, cell >> (8 * (id + block)) & 0xff);
      }
    }
  }
}

void update_scaled_cells(const AccumulatorRule& rule, const float* a, const float* b, int b_stride,
                         int n, int k, int block, const std::array<double, 4>& scale_a,
                         const std::array<const double*, 4>& scale_b, uint32_t* cells) {
  float row[kMaxRow] = {};
  if (rule.use_input) std::memcpy(row, cells, sizeof(float) * n);
  for (int i = 0; i * block < k; ++i) {
    float sum[kMaxRow] = {};
    accumulate_row(a + i * block, b + static_cast<long>(i) * block * b_stride, b_stride, n, block,
                   sum);
    const double* columns = scale_b[i];
    for (int j = 0; j < n; ++j) {
      row[j] = static_cast<float>(row[j] + sum[j] * (scale_a[i] * columns[j]));
    }
  }
  std::memcpy(cells, row, sizeof(float) * n);
}

}  // namespace bwgemm::emulator
