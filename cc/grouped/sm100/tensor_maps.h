// Tensor maps, made on the host.
//
// A *bounded* map reads and writes `valid` rows that may end anywhere, where an ordinary map knows
// only the end of the tensor: a group's last box brings zeros instead of the next group's rows, and
// a store leaves these alone. Its dimensions
//
//   (columns, 2^30, rows + 1, 2^30 + 1, matrices)
//
// describe the rows twice: the second and the third have the row pitch as stride, the fourth
// 2^34 - pitch. Coordinates
//
//   (column, 2^30 - valid, row + valid, 2^30, matrix)
//
// then address row (2^30 - valid) + (row + valid) - 2^30 = row, because 2^30 * 2^34 is 0 in 64
// bits, and whatever follows the `valid` rows lies outside of the second dimension. So one map
// serves every group, and group sizes stay on the device.
//
// The map begins where the tensor does, because TMA reads there when it loads a box that lies
// outside of the tensor as a whole.
#pragma once

#include <cstdint>
#include <string>

#include "core/tensor_map.h"
#include "grouped/sm100/config.h"

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
  const cuuint32_t steps[5] = {1, 1, 1, 1, 1};
  const cuuint64_t extents3[3] = {columns, rows, count};
  const cuuint64_t extents5[5] = {columns, kBound, rows + 1, kBound + 1, count};
  const cuuint64_t pitches3[2] = {pitch, pitch * rows};
  const cuuint64_t pitches5[4] = {pitch, pitch, (cuuint64_t{1} << 34) - pitch, pitch * rows};
  const cuuint32_t box3[3] = {box_columns, box_rows, 1};
  const cuuint32_t box5[5] = {box_columns, box_rows, 1, 1, 1};
  const CUresult result =
      encode(map, TensorMapType(t.dtype), bounded ? 5 : 3, const_cast<void*>(t.data),
             bounded ? extents5 : extents3, bounded ? pitches5 : pitches3, bounded ? box5 : box3,
             steps, CU_TENSOR_MAP_INTERLEAVE_NONE, box.swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result == CUDA_SUCCESS) return Status::Ok();
  return Status::Internal("cuTensorMapEncodeTiled refused " + std::to_string(t.count) +
                          " matrices of [" + std::to_string(t.rows) + ", " +
                          std::to_string(t.columns) + "] " + Name(t.dtype) + " elements: error " +
                          std::to_string(result));
}

}  // namespace bwgemm::grouped::sm100
