// Execution of tcgen05.mma: PTX ISA 9.7.16.10.
#include <optional>

#include "emulator/tensor/tcgen05_mma.h"

namespace bwgemm::emulator {

DataPath data_path(const InstrDescriptor& d, int cta_group, bool weight_stationary) {
  DataPath path;
  path.rows = d.m / cta_group;
  path.part_columns = d.n;
  if (cta_group == 2) {
    // Each CTA brings half of B. Layout A keeps the halves side by side, layout B one above the
    // other.
    path.parts = 2;
    path.part_columns = d.n / 2;
    if (d.m == 256) {
      path.column_step = path.part_columns;
    } else {
      path.lane_step = 64;
    }
  } else if (weight_stationary && d.m < 128) {  // layouts E and G
    path.parts = 128 / d.m;
    path.part_columns = d.n / path.parts;
    path.lane_step = d.m;
  } else if (d.m == 64) {
    path.spread = true;  // layout F
  }
  return path;
}

namespace {

// Row of A kept in tensor memory: K elements from column `column` on, packed into 32-bit cells.
void read_tmem_row(TensorMemory& memory, NumberFormat format, int lane, int column, int k,
                   bool negate, float* out) {
  const int bits = tmem_bits(format);
  const int per_cell = 32 / bits;
  const uint32_t mask = bits == 32 ? ~0u : (1u << bits) - 1;
  const int shift = tmem_shift(format);
  for (int i = 0; i < k; ++i) {
    const uint32_t cell = *memory.cell(lane, column + i / per_cell);
    const float value = decode(format, (cell >> (i % per_cell * bits) & mask) >> shift);
    out[i] = negate ? -value : value;
  }
}

}  // namespace

bool MmaOp::step(Launch& launch) {
  const MmaOperands& o = operands;
  const InstrDescriptor& d = o.descriptor;
  // B as [K][columns] for each CTA that holds a part of it.
  const size_t b_size = static_cast<size_t>(o.b_chunks.mn) * d.k;
  std::vector<float> b(o.ctas.count * b_size);
  for (int c = 0; c < o.ctas.count; ++c) {
    gather_tile(o.b_chunks, o.ctas.ctas[c]->shared().data(0), d.negate_b, true, &b[c * b_size]);
  }
  std::vector<float> a(static_cast<size_t>(o.path.rows) * d.k);
  for (int c = 0; c < o.ctas.count; ++c) {
    if (!o.a_in_tmem) {
      gather_tile(o.a_chunks, o.ctas.ctas[c]->shared().data(0), d.negate_a, false, a.data());
    }
    accumulate(launch, c, a, b);
  }
  return true;
}

// The part of D in the tensor memory of CTA number `cta`.
void MmaOp::accumulate(Launch& launch, int cta, const std::vector<float>& a,
                       const std::vector<float>& b) {
  const MmaOperands& o = operands;
  const InstrDescriptor& d = o.descriptor;
  const DataPath& path = o.path;
  const int k = d.k, b_columns = o.b_chunks.mn, count = path.part_columns;
  TensorMemory& memory = tmem_of(*o.ctas.ctas[cta]);
  std::optional<Scales> scales_a, scales_b;
  if (o.scales.block != 0) {
    const int blocks = k / o.scales.block;
    scales_a.emplace(memory, o.scales.a, d.scale_a_id, d.scale, blocks, path.rows);
    scales_b.emplace(memory, o.scales.b, d.scale_b_id, d.scale, blocks, d.n);
    if (scales_a->unwritten() || scales_b->unwritten()) {
      launch.report(Rule::kUninitializedTensor, origin,
                    format("scales of %s in tensor memory that nothing has written (all four "
                           "quarters of the lanes are read)",
                           scales_a->unwritten() ? "A" : "B"));
    }
  }
  std::vector<float> tmem_row(k);
  bool unwritten = false;
  for (int part = 0; part < path.parts; ++part) {
    // With a CTA pair part p is CTA p's half of B, else a slice of the only B.
    const float* columns = o.ctas.count == 2 ? &b[static_cast<size_t>(part) * b_columns * k]
                                             : &b[static_cast<size_t>(part) * count];
    for (int row = 0; row < path.rows; ++row) {
      const int lane = o.d.lane + path.lane(row, part);
      if ((o.disabled[cta * 4 + lane / 32] >> (lane % 32)) & 1) continue;
      const float* a_row = &a[static_cast<size_t>(row) * k];
      if (o.a_in_tmem) {
        // Every data path reads A from its own lanes, so the kernel keeps a copy for each part.
        read_tmem_row(memory, d.a, o.a.lane + path.lane(row, part), o.a.column, k, d.negate_a,
                      tmem_row.data());
        a_row = tmem_row.data();
      }
      const int column = o.d.column + path.column(part);
      if (o.rule.use_input && !unwritten && !memory.is_written(lane, column, count)) {
        unwritten = true;
        launch.report(Rule::kUninitializedTensor, origin,
                      format("accumulates on tensor memory that nothing has written: lane %d, "
                             "columns %d-%d",
                             lane, column, column + count - 1));
      }
      memory.mark_written(lane, column, count);
      uint32_t* cells = memory.cell(lane, column);
      if (o.scales.block == 0) {
        update_cells(o.rule, a_row, columns, b_columns, count, k, cells);
        continue;
      }
      std::array<double, 4> scale_a{};
      std::array<const double*, 4> scale_b{};
      for (int i = 0; i < k / o.scales.block; ++i) {
        scale_a[i] = scales_a->of(lane / 32, i)[row];
        scale_b[i] = scales_b->of(lane / 32, i) + part * count;
      }
      update_scaled_cells(o.rule, a_row, columns, b_columns, count, k, o.scales.block, scale_a,
                          scale_b, cells);
    }
  }
}

}  // namespace bwgemm::emulator
