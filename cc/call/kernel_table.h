// The kernels of this build: dense, grouped, scaled, and scaled grouped.
#pragma once

#include <string_view>
#include <vector>

#include "dense/problem.h"
#include "grouped/problem.h"
#include "scaled/problem.h"

namespace bwgemm::call {

// One of the four tables of functions is there, by the kernel's contraction and whether it applies
// scales.
struct Kernel {
  KernelInfo info;
  const dense::KernelOps* dense = nullptr;
  const grouped::KernelOps* grouped = nullptr;
  const scaled::KernelOps* scaled = nullptr;
  const scaled::GroupedKernelOps* scaled_grouped = nullptr;
};

// In the order of kernels.def, then of grouped.def, scaled.def and scaled_grouped.def.
const std::vector<Kernel>& AllKernels();

// The kernel of that name, or null.
const Kernel* FindKernel(std::string_view name);

}  // namespace bwgemm::call
