#include "emulator/runtime/call_error.h"
#include "emulator/runtime/driver_functions.h"
#include "emulator/tensor/tensor_map.h"

namespace bwgemm::emulator {
namespace {

CUresult Refuse(const std::string& reason) {
  return FailDriver(CUDA_ERROR_INVALID_VALUE, "cuTensorMapEncodeTiled: " + reason);
}

}  // namespace

CUresult EncodeTiledMap(CUtensorMap* out, CUtensorMapDataType type, cuuint32_t rank, void* address,
                        const cuuint64_t* dims, const cuuint64_t* strides, const cuuint32_t* box,
                        const cuuint32_t* element_strides, CUtensorMapInterleave interleave,
                        CUtensorMapSwizzle swizzle, CUtensorMapL2promotion l2,
                        CUtensorMapFloatOOBfill fill) {
  if (rank < 1 || rank > 5) return Refuse("tensorRank must be 1 to 5, got " + std::to_string(rank));
  if (!out || !dims || !box || !element_strides || (rank > 1 && !strides) || type < 0 ||
      type > 15) {
    return Refuse("a null pointer, or no data type");
  }
  TensorMap map;
  map.type = static_cast<TensorMapType>(type);
  map.rank = static_cast<int>(rank);
  map.address = reinterpret_cast<uint64_t>(address);
  map.interleave = static_cast<TensorMapInterleave>(interleave);
  map.swizzle = static_cast<TensorMapSwizzle>(swizzle);
  map.l2 = static_cast<TensorMapL2>(l2);
  map.fill = static_cast<TensorMapFill>(fill);
  map.strides[0] = static_cast<uint64_t>(element_bits(map.type)) / 8;
  for (cuuint32_t i = 0; i < rank; ++i) {
    map.dims[i] = dims[i];
    map.box[i] = box[i];
    map.element_strides[i] = element_strides[i];
    if (i > 0) map.strides[i] = strides[i - 1];
  }
  if (const std::string problem = validate(map); !problem.empty()) return Refuse(problem);
  encode(map, reinterpret_cast<uint8_t*>(out));
  return CUDA_SUCCESS;
}

}  // namespace bwgemm::emulator
