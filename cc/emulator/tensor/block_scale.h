// Scales of block-scaled MMAs in tensor memory: PTX ISA 9.7.16.10.7.
//
// The scales of row r of A (or of column r of B) are bytes of the cell in lane r % 32, column
// r / 32 of the operand's address, from the byte on that the instruction descriptor names. Each
// quarter of the lanes has all of them: the tensor core's part behind a quarter reads its own copy.
#pragma once

#include <array>
#include <vector>

#include "emulator/tensor/instr_descriptor.h"
#include "emulator/tensor/mma_core.h"
#include "emulator/tensor/tmem.h"

namespace bwgemm::emulator {

// Where an instruction finds its scales; not block-scaled if `block` is 0.
struct ScaleOperands {
  int block = 0;  // elements of K that share a scale
  TmemAddress a{0};
  TmemAddress b{0};
};

// Cells that hold the scales of `rows` rows.
TmemRegion scale_region(const TmemAddress& address, int rows);

// The scales of rows [first, first + rows) as [quarter][k / block][row].
class Scales {
 public:
  Scales(TensorMemory& memory, const TmemAddress& address, int id, NumberFormat format, int blocks,
         int rows);
  const double* of(int quarter, int block) const {
    return &values_[static_cast<size_t>(quarter * blocks_ + block) * rows_];
  }
  // Nothing has written the cells that hold them.
  bool unwritten() const { return unwritten_; }

 private:
  int blocks_;
  int rows_;
  bool unwritten_ = false;
  std::vector<double> values_;
};

// One row of D = scale_a * scale_b * A * B + D. Blocks of K follow each other in ascending order:
// the products of one are summed as `accumulate_row` does, scaled exactly, added to D and rounded
// to f32. `scale_a` has a value for each block; `scale_b` points to those of each block's columns.
void update_scaled_cells(const AccumulatorRule& rule, const float* a, const float* b, int b_stride,
                         int n, int k, int block, const std::array<double, 4>& scale_a,
                         const std::array<const double*, 4>& scale_b, uint32_t* cells);

}  // namespace bwgemm::emulator
