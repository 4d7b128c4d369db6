// The kernels of this build: dense, grouped and scaled.
#pragma once

#include <string_view>
#include <vector>

#include "dense/problem.h"
#include "grouped/problem.h"
#include "scaled/problem.h"

namespace bwgemm::call {

// One of the three tables of functions is there, by the kernel's contraction.
struct Kernel {
  KernelInfo info;
  const dense::KernelOps* dense = nullptr;
  const grouped::KernelOps* grouped = nullptr;
  const scaled::KernelOps* scaled = nullptr;
};

// In the order of kernels.def, then of grouped.def, then of scaled.def.
const std::vector<Kernel>& AllKernels();

// The kernel of that name, or null.
const Kernel* FindKernel(std::string_view name);

}  // namespace bwgemm::call
