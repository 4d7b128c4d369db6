// Launches by the functions that programs call themselves.
#include <cuda_runtime_api.h>

#include "emulator/runtime/call_error.h"

extern "C" {

cudaError_t cudaLaunchKernel(const void* function, dim3 grid, dim3 block, void** args,
                             size_t shared, cudaStream_t stream) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  return cudaLaunchKernelExC(&config, function, args);
}

cudaError_t cudaLaunchCooperativeKernel(const void* function, dim3 grid, dim3 block, void** args,
                                        size_t shared, cudaStream_t stream) {
  cudaLaunchAttribute cooperative{};
  cooperative.id = cudaLaunchAttributeCooperative;
  cooperative.val.cooperative = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  config.attrs = &cooperative;
  config.numAttrs = 1;
  return cudaLaunchKernelExC(&config, function, args);
}

// --- Names of errors: those that the emulated runtime returns

const char* cudaGetErrorName(cudaError_t error) {
#define BWGEMM_ERROR_NAME(code) \
  case code:                    \
    return #code
  switch (error) {
    BWGEMM_ERROR_NAME(cudaSuccess);
    BWGEMM_ERROR_NAME(cudaErrorInvalidValue);
    BWGEMM_ERROR_NAME(cudaErrorMemoryAllocation);
    BWGEMM_ERROR_NAME(cudaErrorInvalidConfiguration);
    BWGEMM_ERROR_NAME(cudaErrorInvalidPitchValue);
    BWGEMM_ERROR_NAME(cudaErrorInvalidSymbol);
    BWGEMM_ERROR_NAME(cudaErrorInvalidDeviceFunction);
    BWGEMM_ERROR_NAME(cudaErrorInvalidDevice);
    BWGEMM_ERROR_NAME(cudaErrorInvalidKernelImage);
    BWGEMM_ERROR_NAME(cudaErrorInvalidPtx);
    BWGEMM_ERROR_NAME(cudaErrorInvalidResourceHandle);
    BWGEMM_ERROR_NAME(cudaErrorSymbolNotFound);
    BWGEMM_ERROR_NAME(cudaErrorHostMemoryAlreadyRegistered);
    BWGEMM_ERROR_NAME(cudaErrorHostMemoryNotRegistered);
    BWGEMM_ERROR_NAME(cudaErrorLaunchFailure);
    BWGEMM_ERROR_NAME(cudaErrorCooperativeLaunchTooLarge);
    BWGEMM_ERROR_NAME(cudaErrorNotPermitted);
    BWGEMM_ERROR_NAME(cudaErrorNotSupported);
    BWGEMM_ERROR_NAME(cudaErrorUnknown);
    default:
      return "unrecognized error code";
  }
#undef BWGEMM_ERROR_NAME
}

}  // extern "C"
