// TMA descriptors made on the host (PTX ISA "Tensor maps"; CUDA driver API cuTensorMapEncodeTiled).
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>

#include "core/cuda_status.h"
#include "core/status.h"
#include "core/types.h"

namespace bwgemm {

inline CUtensorMapDataType TensorMapType(DType dtype) {
  return dtype == DType::kBF16  ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
         : dtype == DType::kF16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
         : SizeOf(dtype) == 1   ? CU_TENSOR_MAP_DATA_TYPE_UINT8
                                : CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
}

using TensorMapEncoder = decltype(&cuTensorMapEncodeTiled);

// Through the runtime, so that nothing links against the driver library.
inline Status FindTensorMapEncoder(TensorMapEncoder* out) {
  static const TensorMapEncoder encode = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found;
    const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function,
                                                               12000, cudaEnableDefault, &found);
    return error == cudaSuccess && found == cudaDriverEntryPointSuccess
               ? reinterpret_cast<TensorMapEncoder>(function)
               : nullptr;
  }();
  if (!encode) return Status::Internal("the CUDA driver has no cuTensorMapEncodeTiled (CUDA 12.0)");
  *out = encode;
  return Status::Ok();
}

// A tensor of rank 3, innermost extent first, cut into boxes of box0 x box1 x 1 elements. Elements
// outside of it read as zero and are not written. Pitches are counted in elements.
struct TensorMapSpec {
  const void* data = nullptr;
  DType dtype = DType::kBF16;
  int64_t extent0 = 1, extent1 = 1, extent2 = 1;
  int box0 = 1, box1 = 1;
  int64_t pitch1 = 0, pitch2 = 0;  // from row to row, matrix to matrix; 0: without gaps
  CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_128B;
};

// L2 promotion to 128 bytes: with 256, half of what is fetched belongs to the neighbouring CTA, and
// under an evict-first hint it is gone before that CTA reads it.
inline Status EncodeTensorMap(const TensorMapSpec& t, CUtensorMap* map) {
  TensorMapEncoder encode;
  BWGEMM_RETURN_IF_ERROR(FindTensorMapEncoder(&encode));
  const cuuint64_t extents[3] = {static_cast<cuuint64_t>(t.extent0),
                                 static_cast<cuuint64_t>(t.extent1),
                                 static_cast<cuuint64_t>(t.extent2)};
  const cuuint64_t row = t.pitch1 ? static_cast<cuuint64_t>(t.pitch1) : extents[0];
  const cuuint64_t matrix = t.pitch2 ? static_cast<cuuint64_t>(t.pitch2) : row * extents[1];
  const cuuint64_t element = SizeOf(t.dtype);
  const cuuint64_t pitches[2] = {row * element, matrix * element};
  const cuuint32_t box[3] = {static_cast<cuuint32_t>(t.box0), static_cast<cuuint32_t>(t.box1), 1};
  const cuuint32_t strides[3] = {1, 1, 1};
  const CUresult result =
      encode(map, TensorMapType(t.dtype), 3, const_cast<void*>(t.data), extents, pitches, box,
             strides, CU_TENSOR_MAP_INTERLEAVE_NONE, t.swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result == CUDA_SUCCESS) return Status::Ok();
  return Status::Internal("cuTensorMapEncodeTiled refused the tensor [" +
                          std::to_string(t.extent2) + ", " + std::to_string(t.extent1) + ", " +
                          std::to_string(t.extent0) + "] of " + Name(t.dtype) +
                          " elements: error " + std::to_string(result));
}

}  // namespace bwgemm
