#include "core/active_devices.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>

#include "core/device.h"

namespace bwgemm {
namespace {

using StateOfContext = decltype(&cuDevicePrimaryCtxGetState);

// Through the runtime, so that nothing links against the driver library.
StateOfContext FindStateOfContext() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found;
  const cudaError_t error = cudaGetDriverEntryPointByVersion(
      "cuDevicePrimaryCtxGetState", &function, 12000, cudaEnableDefault, &found);
  const bool known = error == cudaSuccess && found == cudaDriverEntryPointSuccess;
  return known ? reinterpret_cast<StateOfContext>(function) : nullptr;
}

}  // namespace

std::vector<int> ActiveDevices() {
  static const StateOfContext state_of = FindStateOfContext();
  std::vector<int> active;
  int count = 0;
  if (!state_of || cudaGetDeviceCount(&count) != cudaSuccess) return active;
  for (int device = 0; device < std::min(count, kMaxDevices); ++device) {
    unsigned flags = 0;
    int is_active = 0;
    // A CUdevice is an ordinal.
    if (state_of(device, &flags, &is_active) == CUDA_SUCCESS && is_active) active.push_back(device);
  }
  return active;
}

}  // namespace bwgemm
