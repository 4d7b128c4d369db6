// The device of a program: its properties, and how many CTAs it holds.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <string>

#include "emulator/machine/machine.h"
#include "emulator/runtime/call_error.h"
#include "emulator/runtime/devices.h"
#include "emulator/runtime/program/program.h"
#include "emulator/runtime/registry.h"

namespace emu = bwgemm::emulator;
using emu::Fail;
using emu::StandingError;

namespace {

emu::Dim3 ToDim3(dim3 d) { return {d.x, d.y, d.z}; }

// Decodes the kernel behind a host function; null, with the error set, if there is none.
const emu::Kernel* FindKernel(const void* function, cudaError_t* error,
                              emu::RegisteredKernel** registered = nullptr) {
  *error = StandingError();
  if (*error != cudaSuccess) return nullptr;
  emu::RegisteredKernel* kernel = emu::Registry::Get().Find(function);
  if (registered != nullptr) *registered = kernel;
  if (kernel == nullptr) {
    *error = Fail(cudaErrorInvalidDeviceFunction, "the function is no kernel");
    return nullptr;
  }
  try {
    emu::Module& module = kernel->fat->module();
    std::lock_guard lock(emu::Session::Get().run_mutex());
    return &module.kernel(kernel->name);
  } catch (const std::exception& e) {
    *error = Fail(cudaErrorInvalidKernelImage, std::string("emulator: ") + e.what());
    return nullptr;
  }
}

dim3 ClusterOf(const cudaLaunchConfig_t& config) {
  for (unsigned i = 0; i < config.numAttrs; ++i) {
    if (config.attrs[i].id != cudaLaunchAttributeClusterDimension) continue;
    const auto& d = config.attrs[i].val.clusterDim;
    return dim3(d.x, d.y, d.z);
  }
  return dim3(1, 1, 1);
}

template <typename T>
void Get(T* field, cudaDeviceAttr attribute) {
  int value = 0;
  if (cudaDeviceGetAttribute(&value, attribute, 0) == cudaSuccess) *field = static_cast<T>(value);
}

}  // namespace

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  emu::Program::Get();  // makes it
  *count = 1;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  emu::Program::Get();
  const auto found = emu::FindDevice(device);
  if (!found) {
    return Fail(cudaErrorInvalidDevice, "no emulated device " + std::to_string(device));
  }
  cudaDeviceProp& p = *properties;
  p = {};
  std::snprintf(p.name, sizeof p.name, "jax_bwgemm emulator, compute capability %d.%d",
                found->major, found->minor);
  size_t free = 0;
  cudaMemGetInfo(&free, &p.totalGlobalMem);
  Get(&p.sharedMemPerBlock, cudaDevAttrMaxSharedMemoryPerBlock);
  Get(&p.sharedMemPerBlockOptin, cudaDevAttrMaxSharedMemoryPerBlockOptin);
  Get(&p.sharedMemPerMultiprocessor, cudaDevAttrMaxSharedMemoryPerMultiprocessor);
  Get(&p.reservedSharedMemPerBlock, cudaDevAttrReservedSharedMemoryPerBlock);
  Get(&p.totalConstMem, cudaDevAttrTotalConstantMemory);
  Get(&p.regsPerBlock, cudaDevAttrMaxRegistersPerBlock);
  Get(&p.regsPerMultiprocessor, cudaDevAttrMaxRegistersPerMultiprocessor);
  Get(&p.warpSize, cudaDevAttrWarpSize);
  Get(&p.maxThreadsPerBlock, cudaDevAttrMaxThreadsPerBlock);
  Get(&p.maxThreadsDim[0], cudaDevAttrMaxBlockDimX);
  Get(&p.maxThreadsDim[1], cudaDevAttrMaxBlockDimY);
  Get(&p.maxThreadsDim[2], cudaDevAttrMaxBlockDimZ);
  Get(&p.maxGridSize[0], cudaDevAttrMaxGridDimX);
  Get(&p.maxGridSize[1], cudaDevAttrMaxGridDimY);
  Get(&p.maxGridSize[2], cudaDevAttrMaxGridDimZ);
  Get(&p.major, cudaDevAttrComputeCapabilityMajor);
  Get(&p.minor, cudaDevAttrComputeCapabilityMinor);
  Get(&p.multiProcessorCount, cudaDevAttrMultiProcessorCount);
  Get(&p.maxThreadsPerMultiProcessor, cudaDevAttrMaxThreadsPerMultiProcessor);
  Get(&p.maxBlocksPerMultiProcessor, cudaDevAttrMaxBlocksPerMultiprocessor);
  Get(&p.l2CacheSize, cudaDevAttrL2CacheSize);
  Get(&p.unifiedAddressing, cudaDevAttrUnifiedAddressing);
  Get(&p.managedMemory, cudaDevAttrManagedMemory);
  Get(&p.cooperativeLaunch, cudaDevAttrCooperativeLaunch);
  Get(&p.clusterLaunch, cudaDevAttrClusterLaunch);
  p.memPitch = 0x7FFFFFFF;
  p.canMapHostMemory = 1;
  p.hostRegisterSupported = 1;
  p.streamPrioritiesSupported = 1;
  return cudaSuccess;
}

cudaError_t cudaDeviceReset() { return StandingError(); }
cudaError_t cudaSetDeviceFlags(unsigned) { return StandingError(); }
cudaError_t cudaDeviceSetLimit(cudaLimit, size_t) { return StandingError(); }
cudaError_t cudaCtxResetPersistingL2Cache() { return StandingError(); }
cudaError_t cudaProfilerStart() { return StandingError(); }
cudaError_t cudaProfilerStop() { return StandingError(); }

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

// --- Functions

// PTX says nothing of hardware registers: numRegs stays 0.
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* function) {
  cudaError_t error = cudaSuccess;
  emu::RegisteredKernel* registered = nullptr;
  const emu::Kernel* kernel = FindKernel(function, &error, &registered);
  if (kernel == nullptr) return error;
  *attributes = {};
  attributes->sharedSizeBytes = kernel->static_shared_bytes - emu::kSharedReserved;
  attributes->localSizeBytes = kernel->local_bytes;
  attributes->maxThreadsPerBlock = kernel->max_threads > 0 ? kernel->max_threads : 1024;
  attributes->maxDynamicSharedSizeBytes = registered->max_dynamic_shared;
  const auto device = emu::FindDevice(emu::Program::Get().device());
  attributes->ptxVersion = attributes->binaryVersion = device->major * 10 + device->minor;
  attributes->clusterDimMustBeSet = kernel->required_cluster[0] > 0;
  attributes->requiredClusterWidth = kernel->required_cluster[0];
  attributes->requiredClusterHeight = kernel->required_cluster[1];
  attributes->requiredClusterDepth = kernel->required_cluster[2];
  return cudaSuccess;
}

cudaError_t cudaFuncSetCacheConfig(const void* function, cudaFuncCache) {
  if (emu::Registry::Get().Find(function) != nullptr) return StandingError();
  return Fail(cudaErrorInvalidDeviceFunction, "the function is no kernel");
}

// --- Occupancy: shared memory and threads decide, registers are not known

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    int* blocks, const void* function, int block_size, size_t dynamic_shared, unsigned) {
  cudaError_t error = cudaSuccess;
  const emu::Kernel* kernel = FindKernel(function, &error);
  if (kernel == nullptr) return error;
  if (block_size < 1) return Fail(cudaErrorInvalidValue, "a block needs threads");
  *blocks =
      static_cast<int>(emu::ctas_per_sm(emu::Program::Get().settings().launch, *kernel,
                                        {static_cast<uint32_t>(block_size), 1, 1}, dynamic_shared));
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* function,
                                                          int block_size, size_t dynamic_shared) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, block_size,
                                                                dynamic_shared, 0);
}

// CTAs of a cluster lie on different multiprocessors.
cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, const void* function,
                                           const cudaLaunchConfig_t* config) {
  cudaError_t error = cudaSuccess;
  const emu::Kernel* kernel = FindKernel(function, &error);
  if (kernel == nullptr) return error;
  const emu::LaunchConfig& machine = emu::Program::Get().settings().launch;
  const uint64_t size = ToDim3(ClusterOf(*config)).count();
  if (size == 0) return Fail(cudaErrorInvalidValue, "a cluster needs CTAs");
  *clusters = static_cast<int>(
      machine.sm_count / static_cast<int>(size) *
      emu::ctas_per_sm(machine, *kernel, ToDim3(config->blockDim), config->dynamicSmemBytes));
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxPotentialClusterSize(int* size, const void* function,
                                                 const cudaLaunchConfig_t* config) {
  cudaError_t error = cudaSuccess;
  const emu::Kernel* kernel = FindKernel(function, &error);
  if (kernel == nullptr) return error;
  const emu::LaunchConfig& machine = emu::Program::Get().settings().launch;
  const bool fits =
      emu::ctas_per_sm(machine, *kernel, ToDim3(config->blockDim), config->dynamicSmemBytes) > 0;
  *size = fits ? std::min(8, machine.sm_count) : 0;
  return cudaSuccess;
}

}  // extern "C"
