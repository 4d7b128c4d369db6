// Geometry of a TMA box: which bytes of global memory correspond to which bytes of shared memory
// (PTX ISA 5.5.2 to 5.5.6, tiled mode). Pure functions; tma.cc gives them to the machine.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "emulator/tensor/tensor_map.h"

namespace bwgemm::emulator {

// A run of bytes of one box row, never longer than 16 bytes where the box is swizzled.
// `global` is meaningless for bytes outside the tensor.
struct BoxSpan {
  uint32_t shared = 0;  // address in shared memory
  uint64_t global = 0;  // address in global memory
  uint32_t bytes = 0;
  bool inside = false;  // false: out of bounds, filled on loads and skipped on stores
};

struct Box {
  std::vector<BoxSpan> spans;
  uint32_t bytes = 0;         // of the whole box, as counted by mbarriers (out of bounds included)
  uint32_t bytes_inside = 0;  // that touch global memory
  uint32_t footprint = 0;     // of shared memory, from the box's address to its end
};

// The box of `map` at element coordinates `start`, kept at shared address `shared`.
Box make_box(const TensorMap& map, const std::array<int32_t, 5>& start, uint32_t shared);

// Four rows of a two-dimensional map whose box is one row (.tile::gather4, .tile::scatter4):
// `start` is the column, then the rows.
Box make_row_box(const TensorMap& map, const std::array<int32_t, 5>& start, uint32_t shared);

// Bytes of shared memory from the box's address to its end.
uint32_t box_footprint(const TensorMap& map);
// The same in 64 bits. Boxes that shared memory cannot hold are refused by it, before the other
// functions, which count in 32 bits, are called.
uint64_t unbounded_box_footprint(const TensorMap& map);
uint32_t row_box_footprint(const TensorMap& map);

}  // namespace bwgemm::emulator
