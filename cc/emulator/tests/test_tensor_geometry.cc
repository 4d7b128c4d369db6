// Pure parts of tensor/: number formats, swizzles, descriptors, boxes, tensor-memory shapes, sums.
#include <cmath>
#include <set>

#include "emulator/tensor/instr_descriptor.h"
#include "emulator/tensor/mma_core.h"
#include "emulator/tensor/number_formats.h"
#include "emulator/tensor/smem_descriptor.h"
#include "emulator/tensor/swizzle.h"
#include "emulator/tensor/tmem.h"
#include "emulator/tensor/tmem_shapes.h"
#include "emulator/tests/tensor_check.h"

using namespace bwgemm::emulator;

TEST(formats_decode_known_values) {
  CHECK_EQ(decode(NumberFormat::kBF16, 0x3f80), 1.0f);
  CHECK_EQ(decode(NumberFormat::kF16, 0xc000), -2.0f);
  CHECK_EQ(decode(NumberFormat::kF16, 0x0001), std::ldexp(1.0f, -24));
  CHECK_EQ(decode(NumberFormat::kTF32, 0x3f801fff), 1.0f);
  CHECK_EQ(decode(NumberFormat::kE4M3, 0x7e), 448.0f);
  CHECK(std::isnan(decode(NumberFormat::kE4M3, 0x7f)));
  CHECK_EQ(decode(NumberFormat::kE5M2, 0x7b), 57344.0f);
  CHECK(std::isinf(decode(NumberFormat::kE5M2, 0x7c)));
  CHECK_EQ(decode(NumberFormat::kE2M3, 0x1f), 7.5f);
  CHECK_EQ(decode(NumberFormat::kE3M2, 0x1f), 28.0f);
  CHECK_EQ(decode(NumberFormat::kE2M1, 0x0f), -6.0f);
  CHECK_EQ(decode(NumberFormat::kS8, 0xff), -1.0f);
  CHECK_EQ(decode(NumberFormat::kU8, 0xff), 255.0f);
}

TEST(f16_encoding_inverts_decoding_and_rounds_to_even) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = decode(NumberFormat::kF16, bits);
    if (!std::isnan(value)) CHECK_EQ(encode_f16(value), bits);
  }
  CHECK_EQ(encode_f16(65519.0f), 0x7bff);
  CHECK_EQ(encode_f16(65520.0f), 0x7c00);
  CHECK_EQ(encode_f16(2049.0f), encode_f16(2048.0f));
  CHECK_EQ(encode_f16(2051.0f), encode_f16(2052.0f));
  CHECK_EQ(encode_f16(std::ldexp(1.0f, -25)), 0);
  CHECK_EQ(encode_f16(std::ldexp(1.5f, -25)), 1);
}

TEST(chunks_decode_packed_elements) {
  uint8_t bytes[16] = {};
  float out[16];
  bytes[0] = 0x21;  // e2m1: 0.5, then 1.0
  CHECK_EQ(decode_chunk(NumberFormat::kE2M1, bytes, out), 16);
  CHECK_EQ(out[0], 0.5f);
  CHECK_EQ(out[1], 1.0f);
  bytes[0] = 0x08 | (0x3 << 6);  // e2m3: 1.0 in bits 0-5, 0b001011 in bits 6-11
  bytes[1] = 0x02;
  CHECK_EQ(decode_chunk(NumberFormat::kE2M3, bytes, out), 16);
  CHECK_EQ(out[0], 1.0f);
  CHECK_EQ(out[1], 1.375f);
}

TEST(swizzles_permute_their_repeat) {
  const struct {
    Swizzle swizzle;
    uint32_t repeat;
    uint32_t unit;
  } kCases[] = {{Swizzle::k32B, 256, 16},
                {Swizzle::k64B, 512, 16},
                {Swizzle::k128B, 1024, 16},
                {Swizzle::k128BAtom32B, 512, 32},
                {Swizzle::k128BAtom64B, 256, 64}};
  for (const auto& c : kCases) {
    std::set<uint32_t> seen;
    for (uint32_t a = 0; a < c.repeat; ++a) {
      const uint32_t s = swizzle_address(c.swizzle, a);
      CHECK_EQ(s / 128, a / 128);
      CHECK_EQ(s % c.unit, a % c.unit);
      seen.insert(s);
      CHECK_EQ(swizzle_address(c.swizzle, a + c.repeat), s + c.repeat);
    }
    CHECK_EQ(seen.size(), c.repeat);
  }
  // Row 3 of the 128-byte pattern: chunk 5 moves to chunk 5 xor 3.
  CHECK_EQ(swizzle_address(Swizzle::k128B, 3 * 128 + 5 * 16), 3u * 128 + 6 * 16);
  // A pattern that starts at row 3 leaves that row alone.
  CHECK_EQ(swizzle_address(Swizzle::k128B, 3 * 128 + 5 * 16, 3), 3u * 128 + 5 * 16);
}

uint64_t tcgen05_bits(uint32_t start, uint32_t lbo, uint32_t sbo, uint64_t layout) {
  return static_cast<uint64_t>(start >> 4) | (static_cast<uint64_t>(lbo >> 4) << 16) |
         (static_cast<uint64_t>(sbo >> 4) << 32) | (uint64_t{1} << 46) | (layout << 61);
}

TEST(smem_descriptor_fields) {
  SmemDescriptor d;
  std::string error;
  CHECK(decode_tcgen05_descriptor(tcgen05_bits(0x8420, 0x10, 0x400, 2), &d, &error));
  CHECK_EQ(d.start, 0x8420u);
  CHECK_EQ(d.leading_offset, 0x10u);
  CHECK_EQ(d.stride_offset, 0x400u);
  CHECK(d.swizzle == Swizzle::k128B);
  CHECK(!decode_tcgen05_descriptor(0, &d, &error));
  CHECK_TEXT(error, "bits 46-48 must be 0b001, got 0");
  CHECK(!decode_tcgen05_descriptor(tcgen05_bits(0, 0, 0, 3), &d, &error));
  CHECK_TEXT(error, "layout type 3 is reserved");
  CHECK(!decode_tcgen05_descriptor(tcgen05_bits(0, 0, 0, 2) | (uint64_t{1} << 52), &d, &error));
  CHECK_TEXT(error, "bit 52");
  CHECK(decode_wgmma_descriptor((uint64_t{1} << 62) | (uint64_t{5} << 49), &d, &error));
  CHECK(d.swizzle == Swizzle::k128B);
  CHECK_EQ(d.base_offset, 5u);
}

TEST(smem_descriptor_addresses) {
  SmemDescriptor d;
  d.start = 0x2000;
  d.leading_offset = 0x800;
  d.stride_offset = 0x400;
  // K-major: no swizzle uses the leading offset between 16-byte columns.
  CHECK_EQ(chunk_address(d, Major::kK, 9, 1), 0x2000u + 0x400 + 16 + 0x800);
  d.swizzle = Swizzle::k128B;
  CHECK_EQ(chunk_address(d, Major::kK, 9, 1), 0x2000u + 0x400 + 128 + (1 ^ 1) * 16);
  // Advancing the start inside the swizzled row is how the next K block is named.
  d.start = 0x2020;
  CHECK_EQ(chunk_address(d, Major::kK, 9, 1), 0x2000u + 0x400 + 128 + (3 ^ 1) * 16);
  // MN-major, 128-byte swizzle: 64 two-byte elements a row, then the leading offset.
  d.start = 0x2000;
  CHECK_EQ(chunk_address(d, Major::kMN, 10, 11), 0x2000u + 0x800 + 0x400 + 2 * 128 + (3 ^ 2) * 16);
  d.swizzle = Swizzle::kNone;
  CHECK_EQ(chunk_address(d, Major::kMN, 10, 11), 0x2000u + 11 * 0x400 + 2 * 16 + 0x800);
  d.swizzle = Swizzle::k128BAtom32B;
  CHECK_EQ(chunk_address(d, Major::kMN, 5, 2), 0x2000u + 0x400 + 128 + (2 ^ 2) * 16);
}

TEST(instr_descriptor_fields_and_errors) {
  InstrDescriptor d;
  std::string error;
  const uint32_t bf16_f32 = (1u << 4) | (1u << 7) | (1u << 10);
  const auto shape = [](uint32_t m, uint32_t n) { return (n / 8 << 17) | (m / 16 << 24); };
  CHECK(decode_instr_descriptor(bf16_f32 | shape(256, 256) | (1u << 16) | (1u << 13), MmaKind::kF16,
                                2, false, &d, &error));
  CHECK_EQ(d.m, 256);
  CHECK_EQ(d.n, 256);
  CHECK_EQ(d.k, 16);
  CHECK(d.a == NumberFormat::kBF16 && d.d == NumberFormat::kF32);
  CHECK(d.a_major == Major::kK && d.b_major == Major::kMN);
  CHECK(d.negate_a && !d.negate_b);
  CHECK(decode_instr_descriptor((1u << 4) | (1u << 7) | (5u << 10) | shape(64, 8), MmaKind::kF8F6F4,
                                1, false, &d, &error));
  CHECK(d.a == NumberFormat::kE5M2 && d.b == NumberFormat::kE2M1);
  const auto refused = [&](uint32_t bits, MmaKind kind, int group, const char* why) {
    CHECK(!decode_instr_descriptor(bits, kind, group, false, &d, &error));
    CHECK_TEXT(error, why);
  };
  refused(bf16_f32 | shape(256, 256), MmaKind::kF16, 1, "shape M=256 N=256 is not allowed");
  refused(bf16_f32 | shape(64, 8), MmaKind::kF16, 2, "shape M=64 N=8 is not allowed");
  refused(bf16_f32 | shape(128, 8), MmaKind::kF16, 1, "shape M=128 N=8 is not allowed");
  refused((2u << 4) | shape(128, 64), MmaKind::kF16, 1, "D format 2");
  refused((1u << 4) | (3u << 7) | shape(128, 64), MmaKind::kF16, 1, "A format 3");
  refused((1u << 4) | (2u << 7) | shape(128, 64), MmaKind::kTF32, 1, "B format 0");
  refused(bf16_f32 | 4 | shape(128, 64), MmaKind::kF16, 1, "sparse A");
  refused(bf16_f32 | 8 | shape(128, 64), MmaKind::kF16, 1, "saturate");
  refused((2u << 4) | (1u << 13) | shape(128, 64), MmaKind::kI8, 1, "negation");
  refused((1u << 4) | (5u << 7) | (1u << 15) | shape(128, 64), MmaKind::kF8F6F4, 1, "narrower");
}

TEST(ldst_shapes_touch_each_cell_once) {
  for (LdStShape shape : {LdStShape::k32x32b, LdStShape::k16x64b, LdStShape::k16x128b,
                          LdStShape::k16x256b, LdStShape::k16x32bx2}) {
    for (int num : {1, 2, 4, 32}) {
      if (!ldst_num_allowed(shape, num)) continue;
      std::set<std::pair<int, int>> cells;
      const int regs = ldst_registers(shape, num);
      int columns = 0;
      for (int thread = 0; thread < 32; ++thread) {
        for (int reg = 0; reg < regs; ++reg) {
          const CellOffset cell = ldst_cell(shape, false, num, thread, reg);
          CHECK(cell.lane < ldst_lanes(shape));
          columns = std::max(columns, cell.column + 1);
          cells.insert({cell.lane, cell.column});
          const CellOffset packed = ldst_cell(shape, true, 2 * num, thread, reg);
          CHECK_EQ(packed.lane, cell.lane);
          CHECK_EQ(packed.column, 2 * cell.column);
        }
      }
      CHECK_EQ(static_cast<int>(cells.size()), 32 * regs);
      CHECK_EQ(columns * ldst_lanes(shape), 32 * regs);
    }
  }
  CHECK(!ldst_num_allowed(LdStShape::k16x256b, 64));
  CHECK(!ldst_num_allowed(LdStShape::k32x32b, 3));
  const CellOffset cell = ldst_cell(LdStShape::k16x256b, false, 0, 5, 6);
  CHECK_EQ(cell.lane, 9);
  CHECK_EQ(cell.column, 10);
}

TEST(cp_shapes) {
  CpShape shape;
  CHECK(parse_cp_shape("128x256b", "", &shape));
  CHECK_EQ(cp_lane(shape, 77, 0), 77);
  CHECK(parse_cp_shape("4x256b", "", &shape));
  CHECK_EQ(cp_lane(shape, 3, 0), 96);
  CHECK(parse_cp_shape("64x128b", "warpx2::02_13", &shape));
  CHECK_EQ(cp_lane(shape, 40, 1), 104);
  CHECK(parse_cp_shape("64x128b", "warpx2::01_23", &shape));
  CHECK_EQ(cp_lane(shape, 40, 0), 72);
  CHECK_EQ(cp_lane(shape, 40, 1), 104);
  CHECK_EQ(cp_lane(shape, 5, 1), 37);
  CHECK(parse_cp_shape("32x128b", "warpx4", &shape));
  CHECK_EQ(cp_lane(shape, 5, 3), 101);
  CHECK(!parse_cp_shape("32x128b", "", &shape));
}

TEST(tensor_memory_allocation) {
  TensorMemory t;
  const int me = 0, other = 0;
  CHECK(TensorMemory::valid_size(32) && TensorMemory::valid_size(512));
  CHECK(!TensorMemory::valid_size(0) && !TensorMemory::valid_size(48) &&
        !TensorMemory::valid_size(1024) && !TensorMemory::valid_size(16));
  CHECK_EQ(t.first_fit(256), 0);
  t.allocate(0, 256, &me);
  CHECK_EQ(*t.cell(127, 255), kTmemPoison);
  CHECK_EQ(t.first_fit(512), -1);
  CHECK_EQ(t.first_fit(256), 256);
  t.allocate(256, 64, &me);
  CHECK_TEXT(t.check({0, 128, 200, 100}, &me), "");
  CHECK_TEXT(t.check({0, 128, 200, 121}, &me), "access to unallocated tensor memory");
  CHECK_TEXT(t.check({0, 128, 200, 100}, &other), "access to unallocated tensor memory");
  CHECK_TEXT(t.check({100, 32, 0, 1}, &me), "outside 128 lanes x 512 columns");
  CHECK_TEXT(t.deallocate(0, 128, &me), "not one live allocation");
  CHECK_TEXT(t.deallocate(0, 256, &other), "not one live allocation");
  const TmemRegion written{0, 128, 0, 64};
  const auto ticket = t.begin_access({written, true, true, "tcgen05.mma", 7, &me});
  CHECK_TEXT(t.deallocate(0, 256, &me), "still in use by tcgen05.mma of line 7");
  CHECK(t.conflict({64, 32, 63, 1}, false, false) != nullptr);
  CHECK(t.conflict({64, 32, 63, 1}, true, true) == nullptr);
  CHECK(t.conflict({64, 32, 64, 1}, true, false) == nullptr);
  t.end_access(ticket);
  CHECK_TEXT(t.deallocate(0, 256, &me), "");
  CHECK_EQ(t.allocated_columns(&me), 64);
}

TEST(update_cells_accumulates_in_each_format) {
  const float a[2] = {3.0f, -2.0f};
  const float b[2 * 72] = {};
  float bb[2 * 72];
  for (int i = 0; i < 2 * 72; ++i) bb[i] = static_cast<float>(i % 11) - 5 + b[i];
  uint32_t cells[72];
  for (int i = 0; i < 72; ++i) cells[i] = bits_from_float(static_cast<float>(i));
  update_cells({}, a, bb, 72, 72, 2, cells);
  for (int i = 0; i < 72; ++i) CHECK_EQ(float_from_bits(cells[i]), i + 3 * bb[i] - 2 * bb[72 + i]);
  update_cells({NumberFormat::kF32, true, 0.25f, false}, a, bb, 72, 72, 2, cells);
  for (int i = 0; i < 72; ++i) {
    const float sum = 3 * bb[i] - 2 * bb[72 + i];
    CHECK_EQ(float_from_bits(cells[i]), 0.25f * (i + sum) + sum);
  }
  update_cells({NumberFormat::kF16, false, 1.0f, false}, a, bb, 72, 72, 2, cells);
  for (int i = 0; i < 72; ++i) CHECK_EQ(cells[i], encode_f16(3 * bb[i] - 2 * bb[72 + i]));
  cells[0] = 0x7fffffff;
  bb[0] = 1;
  bb[72] = 0;
  update_cells({NumberFormat::kS32, true, 1.0f, true}, a, bb, 72, 8, 2, cells);
  CHECK_EQ(cells[0], 0x7fffffffu);
  update_cells({NumberFormat::kS32, true, 1.0f, false}, a, bb, 72, 8, 2, cells);
  CHECK_EQ(cells[0], 0x80000002u);
}

TEST(gather_reads_both_majors) {
  std::vector<uint8_t> memory(1 << 16);
  SmemDescriptor d;
  d.start = 1024;
  d.leading_offset = 2048;
  d.stride_offset = 1024;
  d.swizzle = Swizzle::k128B;
  for (Major major : {Major::kK, Major::kMN}) {
    for (int m = 0; m < 64; ++m) {
      for (int k = 0; k < 16; ++k) {
        const int outer = major == Major::kK ? m : k, inner = major == Major::kK ? k : m;
        const uint16_t bits = encode_f16(static_cast<float>(m * 16 + k));
        std::memcpy(&memory[chunk_address(d, major, outer, inner / 8) + inner % 8 * 2], &bits, 2);
      }
    }
    const TileChunks tile = tile_chunks(d, major, NumberFormat::kF16, 64, 16);
    CHECK_EQ(tile.addresses.size(), 128u);
    uint32_t covered = 0;
    for (const ByteRange& range : merge_chunks(tile)) covered += range.bytes;
    CHECK_EQ(covered, 128u * 16);
    for (bool k_outermost : {false, true}) {
      float values[64 * 16];
      gather_tile(tile, memory.data(), true, k_outermost, values);
      for (int m = 0; m < 64; ++m) {
        for (int k = 0; k < 16; ++k) {
          CHECK_EQ(values[k_outermost ? k * 64 + m : m * 16 + k], -(m * 16.0f + k));
        }
      }
    }
  }
}

int main(int argc, char** argv) { return bwgemm::emulator::testing::run_all(argc, argv); }
