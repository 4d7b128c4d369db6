#include "emulator/tensor/tmem_shapes.h"

namespace bwgemm::emulator {

bool parse_ldst_shape(const std::string& modifier, LdStShape* shape) {
  static constexpr struct {
    const char* name;
    LdStShape shape;
  } kShapes[] = {{"32x32b", LdStShape::k32x32b},
                 {"16x64b", LdStShape::k16x64b},
                 {"16x128b", LdStShape::k16x128b},
                 {"16x256b", LdStShape::k16x256b},
                 {"16x32bx2", LdStShape::k16x32bx2}};
  const size_t skip = !modifier.empty() && modifier[0] == '.' ? 1 : 0;
  for (const auto& known : kShapes) {
    if (modifier.compare(skip, std::string::npos, known.name) == 0) {
      *shape = known.shape;
      return true;
    }
  }
  return false;
}

int ldst_registers(LdStShape shape, int num) {
  switch (shape) {
    case LdStShape::k16x128b:
      return 2 * num;
    case LdStShape::k16x256b:
      return 4 * num;
    default:
      return num;
  }
}

bool ldst_num_allowed(LdStShape shape, int num) {
  if (num < 1 || (num & (num - 1)) != 0) return false;
  return ldst_registers(shape, num) <= 128;
}

CellOffset ldst_cell(LdStShape shape, bool packed, int half_split, int thread, int reg) {
  const int scale = packed ? 2 : 1;  // a register covers one 32-bit word or two half-used columns
  switch (shape) {
    case LdStShape::k32x32b:
      return {thread, reg * scale};
    case LdStShape::k16x64b:
      // Pairs of threads: the even one has row t/4, the odd one row t/4+8.
      return {thread / 4 + 8 * (thread % 2), ((thread / 2) % 2 + 2 * reg) * scale};
    case LdStShape::k16x128b:
      return {thread / 4 + 8 * (reg % 2), (thread % 4 + 4 * (reg / 2)) * scale};
    case LdStShape::k16x256b:
      return {thread / 4 + 8 * (reg / 2 % 2), (2 * (thread % 4) + reg % 2 + 8 * (reg / 4)) * scale};
    case LdStShape::k16x32bx2:
      return {thread % 16, reg * scale + (thread >= 16 ? half_split : 0)};
  }
  return {0, 0};
}

bool parse_cp_shape(const std::string& shape, const std::string& multicast, CpShape* out) {
  *out = CpShape{};
  if (shape == "128x256b" && multicast.empty()) {
    *out = {128, 2, {0}, 1, 0};
  } else if (shape == "4x256b" && multicast.empty()) {
    *out = {4, 2, {0}, 32, 0};  // one lane in each quarter
  } else if (shape == "128x128b" && multicast.empty()) {
    *out = {128, 1, {0}, 1, 0};
  } else if (shape == "64x128b" && multicast == "warpx2::02_13") {
    *out = {64, 1, {0, 64}, 1, 0};  // quarters 0 and 2 get rows 0-31, quarters 1 and 3 rows 32-63
  } else if (shape == "64x128b" && multicast == "warpx2::01_23") {
    *out = {64, 1, {0, 32}, 1, 32};  // quarters 0 and 1 get rows 0-31, quarters 2 and 3 rows 32-63
  } else if (shape == "32x128b" && multicast == "warpx4") {
    *out = {32, 1, {0, 32, 64, 96}, 1, 0};
  } else {
    return false;
  }
  return true;
}

int cp_lane(const CpShape& shape, int row, int copy) {
  return row * shape.row_stride + (row >= 32 ? shape.half_gap : 0) + shape.copies[copy];
}

}  // namespace bwgemm::emulator
