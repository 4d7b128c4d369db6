// One issued tcgen05.mma: operands, where its accumulators lie, and its execution.
#pragma once

#include <array>
#include <vector>

#include "emulator/tensor/block_scale.h"
#include "emulator/tensor/instr_descriptor.h"
#include "emulator/tensor/mma_core.h"
#include "emulator/tensor/tensor_state.h"

namespace bwgemm::emulator {

// Data paths of the accumulator matrix (PTX ISA 9.7.16.10.5). Row m of one CTA's part, columns
// [first, first+count) of N, lie in one lane from one column on.
struct DataPath {
  int rows = 0;   // of D (and A) in each CTA
  int parts = 1;  // parts of N, each in its own lanes or columns
  int part_columns = 0;
  int lane_step = 0;    // lanes from one part to the next (layouts B, E, G)
  int column_step = 0;  // columns from one part to the next (layout A)
  bool spread = false;  // layout F: 16 lanes of each quarter

  int lane(int row, int part) const {
    return (spread ? row / 16 * 32 + row % 16 : row) + part * lane_step;
  }
  int column(int part) const { return part * column_step; }
  int columns() const { return column_step != 0 ? parts * part_columns : part_columns; }
};

DataPath data_path(const InstrDescriptor& descriptor, int cta_group, bool weight_stationary);

struct MmaOperands {
  InstrDescriptor descriptor;
  AccumulatorRule rule;
  DataPath path;
  CtaSet ctas;
  TmemAddress d{0};
  bool a_in_tmem = false;
  TmemAddress a{0};
  TileChunks a_chunks;  // of each CTA's half, at the same offsets in both
  TileChunks b_chunks;
  ScaleOperands scales;
  std::array<uint32_t, 8> disabled{};  // a bit for each lane of the first CTA, then of the second
};

struct MmaOp : AsyncOp {
  MmaOperands operands;
  bool step(Launch& launch) override;

 private:
  void accumulate(Launch& launch, int cta, const std::vector<float>& a,
                  const std::vector<float>& b);
};

}  // namespace bwgemm::emulator
