// How a call of each contraction is run: dense_call.cc, grouped_call.cc, scaled_call.cc.
#pragma once

#include "call/product_call.h"
#include "core/device.h"

namespace bwgemm::call {

// Where a call runs. The device is current, and Run has checked the types of a, b and d, and the
// roles, against the kernel's contraction.
struct Launch {
  int device;
  DeviceProperties properties;
  cudaStream_t stream;
};

Status RunDense(const Kernel& kernel, const ProductCall& call, const Launch& launch);
Status DenseWorkspaceBytes(const Kernel& kernel, const ProductSizes& sizes, const Options& options,
                           int sm_count, size_t* bytes);

// Grouped products with scales included.
Status RunGrouped(const Kernel& kernel, const ProductCall& call, const Launch& launch);
Status GroupedWorkspaceBytes(const Kernel& kernel, const ProductSizes& sizes,
                             const Options& options, int sm_count, size_t* bytes);

Status RunScaled(const Kernel& kernel, const ProductCall& call, const Launch& launch);
Status ScaledWorkspaceBytes(const Kernel& kernel, const ProductSizes& sizes, const Options& options,
                            int sm_count, size_t* bytes);

}  // namespace bwgemm::call
