// Which cell of tensor memory belongs to which register of which thread in tcgen05.ld and .st
// (PTX ISA 9.7.16.2.3), and which rows tcgen05.cp writes (9.7.16.2.3, 9.7.16.9.2).
#pragma once

#include <string>
#include <vector>

namespace bwgemm::emulator {

enum class LdStShape { k32x32b, k16x64b, k16x128b, k16x256b, k16x32bx2 };

// From a modifier such as ".16x64b"; false if it is not one.
bool parse_ldst_shape(const std::string& modifier, LdStShape* shape);

// Registers per thread of `shape` repeated `num` times.
int ldst_registers(LdStShape shape, int num);

// Lanes touched, from the lane of the address.
constexpr int ldst_lanes(LdStShape shape) { return shape == LdStShape::k32x32b ? 32 : 16; }

// True for the combinations PTX defines (Table 49).
bool ldst_num_allowed(LdStShape shape, int num);

// Lane and first column, relative to the address, of register `reg` of `thread`. With `packed` a
// register holds the low halves of two neighbouring columns. `half_split` is the immediate of
// .16x32bx2: the column offset of threads 16 to 31.
struct CellOffset {
  int lane;
  int column;
};
CellOffset ldst_cell(LdStShape shape, bool packed, int half_split, int thread, int reg);

// tcgen05.cp: rows of source in shared memory, 16-byte chunks of a row, and for each source row the
// lanes (relative to the address) that receive it.
struct CpShape {
  int rows = 0;
  int chunks = 0;
  std::vector<int> copies;  // lane offset of each copy
  int row_stride = 1;       // lanes between source rows
  int half_gap = 0;         // extra lanes ahead of rows 32 to 63
};
bool parse_cp_shape(const std::string& shape, const std::string& multicast, CpShape* out);
int cp_lane(const CpShape& shape, int row, int copy);

}  // namespace bwgemm::emulator
