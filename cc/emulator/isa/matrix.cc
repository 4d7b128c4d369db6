// mma.sync (PTX ISA 9.7.14.5).
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "emulator/isa/isa.h"
#include "emulator/isa/lanes.h"
#include "emulator/isa/numbers.h"
#include "emulator/machine/launch.h"
#include "emulator/tensor/number_formats.h"

namespace bwgemm::emulator {
namespace {

// ---- mma.sync. For m16n8kK with elements of e to a 32-bit register (PTX ISA 9.7.14.5.x, figures
// of the fragments), lane = 4 g + t: register 2 b + h of A holds row g + 8 h, columns 4 e b + e t +
// (0 .. e-1); register b of B holds column g, the same rows; C and D hold rows g and g + 8, columns
// 2 t and 2 t + 1.

struct Mma {
  int k = 0;
  NumberFormat a_type, b_type;
  bool integer = false, satfinite = false;
  bool half_c = false, half_d = false;  // f16 accumulators
  int a_count = 0, b_count = 0, c_count = 0, d_count = 0;
  Row a[4], b[2], c[4], d[4];
};

Step exec_mma(Warp& w, const Instr& in, uint32_t mask) {
  const auto& m = *static_cast<const Mma*>(in.aux);
  if (mask != kFullMask) w.fault("mma.sync needs all 32 lanes");
  double a[16][64], b[64][8];
  const int bits = format_bits(m.a_type), e = 32 / bits;
  const uint32_t field = bits == 32 ? ~0u : (1u << bits) - 1;
  for (int lane = 0; lane < kWarpSize; ++lane) {
    const int g = lane / 4, t = lane % 4;
    for (int r = 0; r < m.a_count; ++r) {
      const uint32_t word = w.r32(m.a[r])[lane];
      for (int i = 0; i < e; ++i)
        a[g + 8 * (r % 2)][4 * e * (r / 2) + e * t + i] =
            decode_exactly(m.a_type, word >> (bits * i) & field);
    }
    for (int r = 0; r < m.b_count; ++r) {
      const uint32_t word = w.r32(m.b[r])[lane];
      for (int i = 0; i < e; ++i)
        b[4 * e * r + e * t + i][g] = decode_exactly(m.b_type, word >> (bits * i) & field);
    }
  }
  for (int lane = 0; lane < kWarpSize; ++lane) {
    const int g = lane / 4, t = lane % 4;
    uint32_t out[4];
    for (int i = 0; i < 4; ++i) {
      const int row = g + 8 * (i / 2), col = 2 * t + i % 2;
      double sum = 0;  // exact for integers, and more than the machine keeps for floats
      for (int k = 0; k < m.k; ++k) sum += a[row][k] * b[k][col];
      if (m.integer) {
        const int64_t exact = static_cast<int64_t>(sum) + static_cast<int32_t>(w.r32(m.c[i])[lane]);
        out[i] = m.satfinite ? static_cast<uint32_t>(static_cast<int32_t>(
                                   std::clamp<int64_t>(exact, INT32_MIN, INT32_MAX)))
                             : static_cast<uint32_t>(exact);
      } else {
        const double c = m.half_c ? f16_to_f32(w.r32(m.c[i / 2])[lane] >> (16 * (i % 2)) & 0xFFFF)
                                  : f32_of(w.r32(m.c[i])[lane]);
        const float value = static_cast<float>(sum + c);
        out[i] = m.half_d ? f32_to_f16_rn(value) : bits_of(value);
      }
    }
    // Each lane reads and writes its own accumulators only, so D may be C.
    if (m.half_d) {
      for (int i = 0; i < 2; ++i) w.r32(m.d[i])[lane] = out[2 * i] | out[2 * i + 1] << 16;
    } else {
      for (int i = 0; i < 4; ++i) w.r32(m.d[i])[lane] = out[i];
    }
  }
  w.launch().stats().mma_flops += uint64_t{2} * 16 * 8 * static_cast<uint64_t>(m.k);
  ++w.launch().stats().mma_instructions;
  ++w.launch().warp_stats(w.origin()).mma;
  return Step::kNext;
}

// mma.m8n8k4 on f64: A row g column t, B row t column g, C row g columns 2 t, 2 t + 1.
Step exec_mma_f64(Warp& w, const Instr& in, uint32_t mask) {
  const auto& m = *static_cast<const Mma*>(in.aux);
  if (mask != kFullMask) w.fault("mma.sync needs all 32 lanes");
  double out[kWarpSize][2];
  const double *a = w.f64(m.a[0]), *b = w.f64(m.b[0]);
  for (int lane = 0; lane < kWarpSize; ++lane) {
    for (int i = 0; i < 2; ++i) {
      double sum = w.f64(m.c[i])[lane];
      for (int k = 0; k < 4; ++k)
        sum = std::fma(a[lane / 4 * 4 + k], b[(2 * (lane % 4) + i) * 4 + k], sum);
      out[lane][i] = sum;
    }
  }
  for (int lane = 0; lane < kWarpSize; ++lane) {
    for (int i = 0; i < 2; ++i) w.f64(m.d[i])[lane] = out[lane][i];
  }
  w.launch().stats().mma_flops += 2 * 8 * 8 * 4;
  ++w.launch().stats().mma_instructions;
  ++w.launch().warp_stats(w.origin()).mma;
  return Step::kNext;
}

int take_rows(Decoder& d, size_t operand, bool destination, int bits, int expected, Row* rows) {
  const ptx::Operand& o = d.operand(operand);
  const auto* items = Decoder::vector_items(o);
  const int n = items == nullptr ? 1 : static_cast<int>(items->size());
  if (n != expected)
    d.error(format("operand %zu has %d registers, this shape needs %d", operand + 1, n, expected));
  for (int i = 0; i < n; ++i) {
    const ptx::Operand& item = items == nullptr ? o : (*items)[static_cast<size_t>(i)];
    rows[i] = destination ? d.dst(item, bits) : d.src(item, bits);
  }
  return n;
}

void decode_mma(Decoder& d) {
  auto* m = d.make_aux<Mma>();
  if (!d.mod("aligned")) d.error("mma.sync needs .aligned");
  const auto shape =
      d.mod_one_of({"m16n8k4", "m16n8k8", "m16n8k16", "m16n8k32", "m16n8k64", "m8n8k4"});
  if (shape.empty()) d.unsupported("shape" + d.mods_left());
  if (!d.mod("row") || !d.mod("col")) d.unsupported("layout other than .row.col");
  m->satfinite = d.mod("satfinite");
  d.mod("kind::f8f6f4");
  d.expect_operands(4, 4);
  d.out().flags |= kConverge | kWholeWarp;
  // The types are the last four modifiers: D, A, B, C.
  std::array<std::string_view, 4> types;
  for (auto& type : types) {
    type = d.next_mod();
    if (type.empty() || !d.mod(type)) d.error("mma.sync needs four types");
  }
  if (shape == "m8n8k4") {
    for (auto type : types) {
      if (type != "f64") d.unsupported("type ." + std::string(type) + " with m8n8k4");
    }
    take_rows(d, 0, true, 64, 2, m->d);
    take_rows(d, 1, false, 64, 1, m->a);
    take_rows(d, 2, false, 64, 1, m->b);
    take_rows(d, 3, false, 64, 2, m->c);
    d.out().exec = exec_mma_f64;
    return;
  }
  const auto pick = [&](std::string_view name) {
    const auto found =
        format_named(name, {NumberFormat::kF16, NumberFormat::kBF16, NumberFormat::kTF32,
                            NumberFormat::kE4M3, NumberFormat::kE5M2, NumberFormat::kS8,
                            NumberFormat::kU8, NumberFormat::kS4, NumberFormat::kU4});
    if (!found) d.unsupported("type ." + std::string(name));
    return *found;
  };
  m->a_type = pick(types[1]);
  m->b_type = pick(types[2]);
  m->k = std::stoi(std::string(shape.substr(6)));
  const int bits = format_bits(m->a_type);
  if (format_bits(m->b_type) != bits) d.unsupported("A and B of different widths");
  m->integer = types[0] == "s32";
  const bool integer_inputs = is_integer(m->a_type);
  if (m->integer != integer_inputs || is_integer(m->b_type) != integer_inputs ||
      (m->integer && types[3] != "s32"))
    d.unsupported("combination of types");
  if (!m->integer) {
    if ((types[0] != "f32" && types[0] != "f16") || (types[3] != "f32" && types[3] != "f16"))
      d.unsupported("accumulator type");
    m->half_d = types[0] == "f16";
    m->half_c = types[3] == "f16";
  }
  // One block of k is 4 e columns; one or two of them.
  const int block = 4 * 32 / bits;
  const int blocks = m->k / block;
  if (m->k % block != 0 || blocks < 1 || blocks > 2)
    d.unsupported("shape ." + std::string(shape) + " with ." + std::string(types[1]));
  m->d_count = take_rows(d, 0, true, 32, m->half_d ? 2 : 4, m->d);
  m->a_count = take_rows(d, 1, false, 32, 2 * blocks, m->a);
  m->b_count = take_rows(d, 2, false, 32, blocks, m->b);
  m->c_count = take_rows(d, 3, false, 32, m->half_c ? 2 : 4, m->c);
  d.out().exec = exec_mma;
}

}  // namespace

void register_matrix(IsaTable& t) { t.add({"mma.sync", decode_mma, "9.7.14.5.14"}); }

}  // namespace bwgemm::emulator
