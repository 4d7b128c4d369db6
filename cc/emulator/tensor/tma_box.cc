#include "emulator/tensor/tma_box.h"

#include <algorithm>

namespace bwgemm::emulator {
namespace {

// Elements of the box along a dimension. The innermost traversal stride is ignored by tiled,
// non-interleaved maps (PTX ISA 5.5.3).
uint32_t box_count(const TensorMap& map, int dim) {
  if (dim == 0) return map.box[0];
  return (map.box[dim] + map.element_strides[dim] - 1) / map.element_strides[dim];
}

// Bytes from one box row to the next: a swizzled row always takes the whole span.
uint32_t row_pitch(const TensorMap& map) {
  return map.swizzle == TensorMapSwizzle::kNone ? shared_row_bytes(map)
                                                : swizzle_span(swizzle_of(map));
}

// Adds the row as runs that are inside or outside the tensor, cut into swizzle units. Positions are
// those of the packed elements; padded types spread them over shared memory.
void add_row(const TensorMap& map, bool row_inside, uint64_t row_address, int64_t start,
             uint32_t shared, Box* box) {
  const int bits = element_bits(map.type);
  const uint32_t row_bytes = map.box[0] * static_cast<uint32_t>(bits) / 8;
  const int64_t extent = static_cast<int64_t>(map.dims[0]);
  // Range of box elements that lies inside the tensor.
  const int64_t first = row_inside ? std::clamp<int64_t>(-start, 0, map.box[0]) : 0;
  const int64_t last = row_inside ? std::clamp<int64_t>(extent - start, first, map.box[0]) : 0;
  const uint32_t inside_begin = static_cast<uint32_t>(first * bits / 8);
  const uint32_t inside_end = static_cast<uint32_t>(last * bits / 8);
  const Swizzle swizzle = swizzle_of(map);
  const bool padded = is_padded(map.type);
  const uint32_t unit = padded ? kPaddedElements * static_cast<uint32_t>(bits) / 8
                        : swizzle == Swizzle::kNone ? row_bytes
                                                    : 16;
  for (uint32_t begin = 0; begin < row_bytes;) {
    uint32_t end = std::min(row_bytes, (begin / unit + 1) * unit);
    const bool inside = begin >= inside_begin && begin < inside_end;
    if (inside) {
      end = std::min(end, inside_end);
    } else if (begin < inside_begin) {
      end = std::min(end, inside_begin);
    }
    BoxSpan span;
    const uint32_t offset = padded ? begin / unit * 16 + begin % unit : begin;
    span.shared = swizzle_address(swizzle, shared + offset);
    span.bytes = end - begin;
    span.inside = inside;
    if (inside) {
      span.global = row_address + static_cast<uint64_t>(start * bits / 8 + begin);
      box->bytes_inside += span.bytes;
    }
    box->spans.push_back(span);
    begin = end;
  }
  box->bytes += row_bytes;
}

}  // namespace

Box make_box(const TensorMap& map, const std::array<int32_t, 5>& start, uint32_t shared) {
  Box box;
  box.footprint = box_footprint(map);
  std::array<uint32_t, 5> count{1, 1, 1, 1, 1};
  uint32_t rows = 1;
  for (int d = 1; d < map.rank; ++d) {
    count[d] = box_count(map, d);
    rows *= count[d];
  }
  const uint32_t pitch = row_pitch(map);
  std::array<uint32_t, 5> index{};
  for (uint32_t row = 0; row < rows; ++row) {
    uint64_t address = map.address;
    bool inside = true;
    for (int d = 1; d < map.rank; ++d) {
      const int64_t coordinate =
          static_cast<int64_t>(start[d]) + static_cast<int64_t>(index[d]) * map.element_strides[d];
      inside = inside && coordinate >= 0 && coordinate < static_cast<int64_t>(map.dims[d]);
      address += static_cast<uint64_t>(coordinate) * map.strides[d];
    }
    add_row(map, inside, address, start[0], shared + row * pitch, &box);
    for (int d = 1; d < map.rank && ++index[d] == count[d]; ++d) index[d] = 0;
  }
  return box;
}

Box make_row_box(const TensorMap& map, const std::array<int32_t, 5>& start, uint32_t shared) {
  Box box;
  box.footprint = row_box_footprint(map);
  const uint32_t pitch = row_pitch(map);
  for (uint32_t i = 0; i < 4; ++i) {
    const int64_t row = start[1 + i];
    const bool inside = row >= 0 && row < static_cast<int64_t>(map.dims[1]);
    const uint64_t address = map.address + static_cast<uint64_t>(row) * map.strides[1];
    add_row(map, inside, address, start[0], shared + i * pitch, &box);
  }
  return box;
}

uint32_t row_box_footprint(const TensorMap& map) { return 4 * row_pitch(map); }

uint32_t box_footprint(const TensorMap& map) {
  return static_cast<uint32_t>(unbounded_box_footprint(map));
}

uint64_t unbounded_box_footprint(const TensorMap& map) {
  uint64_t bytes = row_pitch(map);
  for (int d = 1; d < map.rank; ++d) bytes *= box_count(map, d);
  return bytes;
}

}  // namespace bwgemm::emulator
