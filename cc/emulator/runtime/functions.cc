// What the emulated CUDA runtime says of a kernel, and what it lets a caller set.
#include <cuda_runtime_api.h>

#include <exception>
#include <string>

#include "emulator/machine/machine.h"
#include "emulator/runtime/call_error.h"
#include "emulator/runtime/registry.h"
#include "emulator/runtime/session.h"

using bwgemm::emulator::Fail;
using bwgemm::emulator::RegisteredKernel;
using bwgemm::emulator::Registry;

extern "C" {

cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value) {
  RegisteredKernel* kernel = Registry::Get().Find(function);
  if (!kernel) return Fail(cudaErrorInvalidDeviceFunction, "the function is no kernel");
  switch (attribute) {
    case cudaFuncAttributeMaxDynamicSharedMemorySize: {
      const size_t limit = bwgemm::emulator::LaunchConfig().shared_per_cta;
      if (value < 0 || static_cast<size_t>(value) > limit) {
        return Fail(cudaErrorInvalidValue, std::to_string(value) +
                                               " bytes of dynamic shared memory are not in [0, " +
                                               std::to_string(limit) + "]");
      }
      kernel->max_dynamic_shared = value;
      return cudaSuccess;
    }
    case cudaFuncAttributeNonPortableClusterSizeAllowed:
      return cudaSuccess;  // every cluster size that fits is allowed
    case cudaFuncAttributePreferredSharedMemoryCarveout:
      return cudaSuccess;  // how many CTAs a multiprocessor holds does not change results
    default:
      return Fail(cudaErrorNotSupported, "emulator: function attribute " +
                                             std::to_string(attribute) + " is not implemented");
  }
}

// Decodes the kernel on first use.
cudaError_t cudaFuncGetParamInfo(const void* function, size_t index, size_t* offset,
                                 size_t* bytes) {
  RegisteredKernel* kernel = Registry::Get().Find(function);
  if (!kernel) return Fail(cudaErrorInvalidDeviceFunction, "the function is no kernel");
  try {
    const auto lock = bwgemm::emulator::Session::Get().LockRuns();
    const auto& params = kernel->fat->module().kernel(kernel->name).params;
    if (index >= params.size()) {
      return Fail(cudaErrorInvalidValue, "kernel '" + kernel->name + "' has " +
                                             std::to_string(params.size()) + " parameters");
    }
    *offset = params[index].offset;
    if (bytes) *bytes = params[index].size;
  } catch (const std::exception& e) {
    return Fail(cudaErrorInvalidKernelImage, std::string("emulator: ") + e.what());
  }
  return cudaSuccess;
}

}  // extern "C"
