// What programs use of the CUDA driver, by name (cudaGetDriverEntryPoint) or linked.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstring>

#include "emulator/runtime/call_error.h"
#include "emulator/runtime/driver_functions.h"
#include "emulator/runtime/program/program.h"
#include "emulator/tensor/tensor_map.h"

namespace emu = bwgemm::emulator;

extern "C" {

CUresult cuTensorMapEncodeTiled(CUtensorMap* out, CUtensorMapDataType type, cuuint32_t rank,
                                void* address, const cuuint64_t* dims, const cuuint64_t* strides,
                                const cuuint32_t* box, const cuuint32_t* element_strides,
                                CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion l2, CUtensorMapFloatOOBfill fill) {
  return emu::EncodeTiledMap(out, type, rank, address, dims, strides, box, element_strides,
                             interleave, swizzle, l2, fill);
}

CUresult cuTensorMapEncodeIm2col(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*,
                                 const cuuint64_t*, const cuuint64_t*, const int*, const int*,
                                 cuuint32_t, cuuint32_t, const cuuint32_t*, CUtensorMapInterleave,
                                 CUtensorMapSwizzle, CUtensorMapL2promotion,
                                 CUtensorMapFloatOOBfill) {
  std::fprintf(stderr, "emulator: im2col tensor maps are not implemented\n");
  return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuTensorMapReplaceAddress(CUtensorMap* map, void* address) {
  emu::TensorMap fields;
  const auto refuse = [](const std::string& reason) {
    return emu::FailDriver(CUDA_ERROR_INVALID_VALUE, "cuTensorMapReplaceAddress: " + reason);
  };
  if (map == nullptr || !emu::decode(reinterpret_cast<const uint8_t*>(map), &fields))
    return refuse("no tensor map");
  fields.address = reinterpret_cast<uint64_t>(address);
  if (const std::string problem = emu::validate(fields); !problem.empty()) return refuse(problem);
  emu::encode(fields, reinterpret_cast<uint8_t*>(map));
  return CUDA_SUCCESS;
}

CUresult cuInit(unsigned) {
  emu::Program::Get();
  return CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int* version) {
  cudaDriverGetVersion(version);
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int* count) {
  cudaGetDeviceCount(count);
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  *device = ordinal;
  return ordinal == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

// The attributes of the driver have the numbers of the runtime's.
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  const cudaError_t error =
      cudaDeviceGetAttribute(value, static_cast<cudaDeviceAttr>(attribute), device);
  return static_cast<CUresult>(error);
}

CUresult cuGetErrorName(CUresult error, const char** name) {
  *name = cudaGetErrorName(static_cast<cudaError_t>(error));
  return CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult error, const char** text) {
  *text = cudaGetErrorString(static_cast<cudaError_t>(error));
  return CUDA_SUCCESS;
}

}  // extern "C"

namespace bwgemm::emulator {

void* FindDriverFunction(const char* name) {
#define BWGEMM_FUNCTION(function)                 \
  {                                               \
    #function, reinterpret_cast<void*>(&function) \
  }
  static const struct {
    const char* name;
    void* function;
  } kFunctions[] = {
      BWGEMM_FUNCTION(cuTensorMapEncodeTiled),
      BWGEMM_FUNCTION(cuTensorMapEncodeIm2col),
      BWGEMM_FUNCTION(cuTensorMapReplaceAddress),
      BWGEMM_FUNCTION(cuInit),
      BWGEMM_FUNCTION(cuDriverGetVersion),
      BWGEMM_FUNCTION(cuDeviceGetCount),
      BWGEMM_FUNCTION(cuDeviceGet),
      BWGEMM_FUNCTION(cuDeviceGetAttribute),
      BWGEMM_FUNCTION(cuGetErrorName),
      BWGEMM_FUNCTION(cuGetErrorString),
  };
#undef BWGEMM_FUNCTION
  for (const auto& known : kFunctions) {
    if (std::strcmp(name, known.name) == 0) return known.function;
  }
  return nullptr;
}

}  // namespace bwgemm::emulator

extern "C" cudaError_t cudaGetDriverEntryPoint(const char* symbol, void** function,
                                               unsigned long long flags,
                                               cudaDriverEntryPointQueryResult* status) {
  return cudaGetDriverEntryPointByVersion(symbol, function, CUDART_VERSION, flags, status);
}
