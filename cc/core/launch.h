// What every launcher does: raise the kernel's shared-memory limit once, launch a grid of clusters.
#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <cstdint>

#include "core/cuda_status.h"
#include "core/device.h"

namespace bwgemm {

// Runs `set` the first time on each device. Every launch prepares its kernel, so after the first
// time this is one atomic load. Two threads may both run `set`, which must do no harm.
class OncePerDevice {
 public:
  template <class Set>
  Status Run(int device, Set set) {
    const uint64_t bit = uint64_t{1} << (device % kMaxDevices);
    if (done_.load(std::memory_order_acquire) & bit) return Status::Ok();
    BWGEMM_RETURN_IF_ERROR(set());
    done_.fetch_or(bit, std::memory_order_release);
    return Status::Ok();
  }

 private:
  static_assert(kMaxDevices == 64, "a bit for each");
  std::atomic<uint64_t> done_{0};
};

inline Status SetSharedMemoryLimit(const void* kernel, int bytes) {
  return BWGEMM_CUDA_STATUS(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
}

// Loads a kernel without dynamic shared memory on the current device. Otherwise its first launch
// does.
inline Status LoadKernel(const void* kernel) { return SetSharedMemoryLimit(kernel, 0); }

// As SetSharedMemoryLimit, the first time on each device. kKernel: returns the kernel.
template <const void* (*kKernel)(), int kBytes>
Status SetSharedMemoryLimitOnce(int device) {
  static OncePerDevice once;
  return once.Run(device, [] { return SetSharedMemoryLimit(kKernel(), kBytes); });
}

struct LaunchShape {
  dim3 grid, cluster, block;  // grid in CTAs: a multiple of cluster
  size_t shared_bytes;
};

// Launches a kernel of one parameter.
template <class Params>
Status LaunchClusters(const void* kernel, const Params& params, const LaunchShape& shape,
                      cudaStream_t stream) {
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = shape.cluster.x;
  cluster.val.clusterDim.y = shape.cluster.y;
  cluster.val.clusterDim.z = shape.cluster.z;
  cudaLaunchConfig_t config{};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = 1;
  void* args[] = {const_cast<Params*>(&params)};
  return BWGEMM_CUDA_STATUS(cudaLaunchKernelExC(&config, kernel, args));
}

}  // namespace bwgemm
