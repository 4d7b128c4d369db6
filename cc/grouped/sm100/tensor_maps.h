// Tensor maps, made on the host.
//
// A *bounded* map reads and writes `valid` rows that may end anywhere, where an ordinary map knows
// only the end of the tensor: a group's last box brings zeros instead of the next group's rows, and
// a store leaves these alone. It describes the rows twice,
//
//   (columns, window, rows + 1, matrices)   with the row pitch as stride of both middle dimensions
//
// and starts `window` rows ahead of the tensor. The box is `window` rows high. Coordinates
//
//   (column, window - valid, row + valid, matrix)
//
// then address row -window + (window - valid) + (row + valid) = row, and whatever follows the
// `valid` rows lies outside of the second dimension. No access is ever ahead of the tensor: row and
// valid are not negative. So one map serves every group, and group sizes stay on the device.
#pragma once

#include <cstdint>
#include <string>

#include "core/tensor_map.h"

namespace bwgemm::grouped::sm100 {

struct Matrices {
  const void* data;
  DType dtype;
  int64_t columns, rows, count;  // columns are contiguous
};

struct Box {
  int columns, rows;
  CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_128B;
};

inline Status Encode(const Matrices& t, const Box& box, bool bounded, CUtensorMap* map) {
  TensorMapEncoder encode;
  BWGEMM_RETURN_IF_ERROR(FindTensorMapEncoder(&encode));
  const cuuint64_t columns = t.columns, rows = t.rows, count = t.count;
  const cuuint64_t pitch = columns * SizeOf(t.dtype);
  const auto box_columns = static_cast<cuuint32_t>(box.columns);
  const auto box_rows = static_cast<cuuint32_t>(box.rows);
  const cuuint32_t steps[4] = {1, 1, 1, 1};
  const cuuint64_t extents3[3] = {columns, rows, count};
  const cuuint64_t extents4[4] = {columns, box_rows, rows + 1, count};
  const cuuint64_t pitches3[2] = {pitch, pitch * rows};
  const cuuint64_t pitches4[3] = {pitch, pitch, pitch * rows};
  const cuuint32_t box3[3] = {box_columns, box_rows, 1};
  const cuuint32_t box4[4] = {box_columns, box_rows, 1, 1};
  const uintptr_t base =
      reinterpret_cast<uintptr_t>(t.data) - (bounded ? pitch * box_rows : cuuint64_t{0});
  const CUresult result =
      encode(map, TensorMapType(t.dtype), bounded ? 4 : 3, reinterpret_cast<void*>(base),
             bounded ? extents4 : extents3, bounded ? pitches4 : pitches3, bounded ? box4 : box3,
             steps, CU_TENSOR_MAP_INTERLEAVE_NONE, box.swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result == CUDA_SUCCESS) return Status::Ok();
  return Status::Internal("cuTensorMapEncodeTiled refused " + std::to_string(t.count) +
                          " matrices of [" + std::to_string(t.rows) + ", " +
                          std::to_string(t.columns) + "] " + Name(t.dtype) + " elements: error " +
                          std::to_string(result));
}

}  // namespace bwgemm::grouped::sm100
