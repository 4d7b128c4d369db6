// Matrices between shared memory and registers: ldmatrix, stmatrix, movmatrix (PTX ISA 9.7.14.5.15
// - 9.7.14.5.17).
#include <cstring>

#include "emulator/isa/arithmetic.h"
#include "emulator/isa/isa.h"
#include "emulator/isa/lanes.h"
#include "emulator/machine/launch.h"

namespace bwgemm::emulator {
namespace {

struct MatrixAccess {
  Address addr;
  bool generic = false;
  bool trans = false;
  int count = 1;
  Row rows[4];
};

// `stored`: the row's new values, before they are there; null for a read.
uint8_t* row_address(Warp& w, const MatrixAccess& a, int lane, const void* stored) {
  const uint64_t address = w.address(a.addr, lane);
  if (a.generic) return w.generic(address, lane, 16, 16, stored != nullptr, kAllLanes, stored);
  const auto ref = w.shared(address, 16, 16, false);
  SharedMemory& memory = ref.cta->shared();
  uint8_t* data = memory.data(ref.offset);
  if (stored != nullptr) {
    const bool same = std::memcmp(data, stored, 16) == 0;
    memory.note_write(w, ref.offset, 16, w.proxy_stamp(),
                      static_cast<uint16_t>(kAllLanes | (same ? kSameValue : 0)));
  } else {
    memory.check_read(w, ref.offset, 16, kAllLanes);
  }
  return data;
}

// 8x8 matrices of 16-bit elements; lane 8 i + r gives the address of row r of matrix i; lane t
// holds row t / 4, columns 2 (t % 4) and the next.
Step exec_ldmatrix(Warp& w, const Instr& in, uint32_t mask) {
  const auto& a = *static_cast<const MatrixAccess*>(in.aux);
  if (mask != kFullMask) w.fault("ldmatrix needs all 32 lanes");
  uint16_t matrix[4][8][8];
  for (int i = 0; i < 8 * a.count; ++i)
    std::memcpy(matrix[i / 8][i % 8], row_address(w, a, i, nullptr), 16);
  for (int m = 0; m < a.count; ++m) {
    uint32_t* d = w.r32(a.rows[m]);
    for (int lane = 0; lane < kWarpSize; ++lane) {
      const int r = lane / 4, c = 2 * (lane % 4);
      d[lane] = a.trans ? matrix[m][c][r] | static_cast<uint32_t>(matrix[m][c + 1][r]) << 16
                        : matrix[m][r][c] | static_cast<uint32_t>(matrix[m][r][c + 1]) << 16;
    }
  }
  return Step::kNext;
}

Step exec_stmatrix(Warp& w, const Instr& in, uint32_t mask) {
  const auto& a = *static_cast<const MatrixAccess*>(in.aux);
  if (mask != kFullMask) w.fault("stmatrix needs all 32 lanes");
  uint16_t matrix[4][8][8];
  for (int m = 0; m < a.count; ++m) {
    const uint32_t* s = w.r32(a.rows[m]);
    for (int lane = 0; lane < kWarpSize; ++lane) {
      const int r = lane / 4, c = 2 * (lane % 4);
      const uint16_t low = static_cast<uint16_t>(s[lane]),
                     high = static_cast<uint16_t>(s[lane] >> 16);
      if (a.trans) {
        matrix[m][c][r] = low;
        matrix[m][c + 1][r] = high;
      } else {
        matrix[m][r][c] = low;
        matrix[m][r][c + 1] = high;
      }
    }
  }
  for (int i = 0; i < 8 * a.count; ++i)
    std::memcpy(row_address(w, a, i, matrix[i / 8][i % 8]), matrix[i / 8][i % 8], 16);
  w.launch().progress();
  return Step::kNext;
}

// 16x16 matrices of bytes, transposed: lane 16 i + r gives the address of row r of matrix i; lane
// 4 g + t holds rows 4 t to 4 t + 3 of column g in one register, of column g + 8 in the next.
Step exec_ldmatrix_bytes(Warp& w, const Instr& in, uint32_t mask) {
  const auto& a = *static_cast<const MatrixAccess*>(in.aux);
  if (mask != kFullMask) w.fault("ldmatrix needs all 32 lanes");
  uint8_t matrix[2][16][16];
  for (int i = 0; i < 8 * a.count; ++i)
    std::memcpy(matrix[i / 16][i % 16], row_address(w, a, i, nullptr), 16);
  for (int r = 0; r < a.count; ++r) {
    uint32_t* d = w.r32(a.rows[r]);
    for (int lane = 0; lane < kWarpSize; ++lane) {
      const int column = lane / 4 + 8 * (r % 2);
      d[lane] = 0;
      for (int i = 0; i < 4; ++i)
        d[lane] |= uint32_t{matrix[r / 2][4 * (lane % 4) + i][column]} << (8 * i);
    }
  }
  return Step::kNext;
}

// 16x8 matrices of bytes, transposed: lane 8 i + c gives the address of column c of matrix i; lane
// 4 g + t holds elements 2 t and 2 t + 1 of row g, then of row g + 8.
Step exec_stmatrix_bytes(Warp& w, const Instr& in, uint32_t mask) {
  const auto& a = *static_cast<const MatrixAccess*>(in.aux);
  if (mask != kFullMask) w.fault("stmatrix needs all 32 lanes");
  uint8_t columns[4][8][16];
  for (int m = 0; m < a.count; ++m) {
    const uint32_t* s = w.r32(a.rows[m]);
    for (int lane = 0; lane < kWarpSize; ++lane) {
      for (int i = 0; i < 4; ++i) {
        columns[m][2 * (lane % 4) + i % 2][lane / 4 + 8 * (i / 2)] =
            static_cast<uint8_t>(s[lane] >> (8 * i));
      }
    }
  }
  for (int i = 0; i < 8 * a.count; ++i)
    std::memcpy(row_address(w, a, i, columns[i / 8][i % 8]), columns[i / 8][i % 8], 16);
  w.launch().progress();
  return Step::kNext;
}

void decode_matrix_access(Decoder& d, bool store) {
  auto* a = d.make_aux<MatrixAccess>();
  if (!d.mod("sync") || !d.mod("aligned")) d.error("needs .sync.aligned");
  const auto shape = d.mod_one_of({"m8n8", "m16n16", "m8n16", "m16n8"});
  const auto count = d.mod_one_of({"x1", "x2", "x4"});
  a->count = count == "x4" ? 4 : count == "x2" ? 2 : 1;
  a->trans = d.mod("trans");
  const auto space = d.space();
  a->generic = space.space == ptx::Space::kGeneric;
  if (space.cluster) d.unsupported(".shared::cluster");
  const auto type = d.next_mod();
  d.expect_operands(2, 2);
  // Those that unpack 6- and 4-bit elements are not implemented.
  const bool bytes = type == "b8" && a->trans && shape == (store ? "m16n8" : "m16n16");
  if (!bytes && (shape != "m8n8" || type != "b16"))
    d.unsupported("matrix shape or type ." + std::string(shape) + "." + std::string(type));
  d.mod(type);
  if (bytes && !store) a->count *= 2;  // registers, of 8 rows each
  if (a->count > 4) d.error(".x4 of this shape");
  const ptx::Operand& registers = d.operand(store ? 1 : 0);
  const auto* items = Decoder::vector_items(registers);
  if (items == nullptr ? a->count != 1 : items->size() != static_cast<size_t>(a->count))
    d.error("the vector operand has another number of elements");
  for (int i = 0; i < a->count; ++i) {
    const ptx::Operand& item = items == nullptr ? registers : (*items)[static_cast<size_t>(i)];
    a->rows[i] = store ? d.src(item, 32) : d.dst(item, 32);
  }
  a->addr = d.address(store ? 0 : 1, a->generic ? ptx::Space::kGeneric : ptx::Space::kShared);
  d.out().flags |= kConverge | kWholeWarp;
  if (bytes) {
    d.out().exec = store ? exec_stmatrix_bytes : exec_ldmatrix_bytes;
  } else {
    d.out().exec = store ? exec_stmatrix : exec_ldmatrix;
  }
}
void decode_ldmatrix(Decoder& d) { decode_matrix_access(d, false); }
void decode_stmatrix(Decoder& d) { decode_matrix_access(d, true); }

// Transposes an 8x8 matrix held in the fragment layout.
Step exec_movmatrix(Warp& w, const Instr& in, uint32_t mask) {
  if (mask != kFullMask) w.fault("movmatrix needs all 32 lanes");
  const uint32_t* s = w.r32(in.op[1]);
  uint16_t m[8][8];
  for (int lane = 0; lane < kWarpSize; ++lane) {
    m[lane / 4][2 * (lane % 4)] = static_cast<uint16_t>(s[lane]);
    m[lane / 4][2 * (lane % 4) + 1] = static_cast<uint16_t>(s[lane] >> 16);
  }
  uint32_t* d = w.r32(in.op[0]);
  for (int lane = 0; lane < kWarpSize; ++lane) {
    d[lane] = m[2 * (lane % 4)][lane / 4] | static_cast<uint32_t>(m[2 * (lane % 4) + 1][lane / 4])
                                                << 16;
  }
  return Step::kNext;
}

void decode_movmatrix(Decoder& d) {
  d.ignore_mods({"sync", "aligned", "m8n8", "trans", "b16"});
  decode_operands(d, 1, 32, 32);
  d.out().flags |= kConverge | kWholeWarp;
  d.out().exec = exec_movmatrix;
}

}  // namespace

void register_matrix_access(IsaTable& t) {
  t.add({"ldmatrix", decode_ldmatrix, "9.7.14.5.15"});
  t.add({"stmatrix", decode_stmatrix, "9.7.14.5.16"});
  t.add({"movmatrix", decode_movmatrix, "9.7.14.5.17"});
}

}  // namespace bwgemm::emulator
