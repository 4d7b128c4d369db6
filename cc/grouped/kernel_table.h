// The grouped kernels of this build: what each one is (KernelInfo) and how to use it (KernelOps).
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <string_view>
#include <vector>

#include "core/status.h"
#include "grouped/problem.h"

namespace bwgemm::grouped {

struct KernelInfo {
  const char* name;
  Arch arch;
  Kind kind;
  DType in_dtype, out_dtype;
  RhsMajor rhs_major;          // contract: kN
  int tile_m, tile_n, tile_k;  // per CTA pair for a 2-CTA MMA, per CTA otherwise
  int cluster_m, cluster_n;    // CTAs
  bool swap_ab;  // the MMA computes transpose(D): tile_m is along N, tile_n along the ragged rows
  Schedule schedule;
  int stages;  // depth of the shared-memory pipeline
};

struct KernelOps {
  size_t (*workspace_bytes)(const GroupedProblem&);
  Status (*prepare)(int device);  // once per (kernel, device); idempotent, then free
  Status (*launch)(const GroupedProblem&, void* workspace, cudaStream_t);
};

struct KernelEntry {
  KernelInfo info;
  KernelOps ops;
};

// All of this build, in grouped.def order.
const std::vector<KernelEntry>& AllKernels();

// The kernel of that name, or null.
const KernelEntry* FindKernel(std::string_view name);

}  // namespace bwgemm::grouped
