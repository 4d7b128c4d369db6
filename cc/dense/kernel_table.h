// The kernel table: what each compiled kernel is (KernelInfo) and how to use it (KernelOps).
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <string_view>
#include <vector>

#include "core/status.h"
#include "dense/problem.h"

namespace bwgemm {

struct KernelInfo {
  const char* name;
  Arch arch;
  DType in_dtype;
  DType out_dtype;
  LhsMajor lhs_major;
  RhsMajor rhs_major;
  int tile_m, tile_n, tile_k;  // per CTA pair for k2Sm, per CTA otherwise
  int cluster_m, cluster_n;    // CTAs
  Schedule schedule;
  bool swap_ab;   // the MMA computes transpose(D): tile_m is along N, tile_n along M
  bool stream_k;  // CTAs may share tiles along K, in a fixed order: see Decomposition
  int stages;     // depth of the shared-memory pipeline
};

// Four plain functions over a problem; pointers in it may be null for the first two.
struct KernelOps {
  Status (*supports)(const GemmProblem&);
  size_t (*workspace_bytes)(const GemmProblem&);
  Status (*prepare)(int device);  // once per (kernel, device); idempotent, then free
  Status (*launch)(const GemmProblem&, void* workspace, cudaStream_t);
};

struct KernelEntry {
  KernelInfo info;
  KernelOps ops;
};

// All kernels of this build, in kernels.def order.
const std::vector<KernelEntry>& AllKernels();

// The kernel of that name, or null.
const KernelEntry* FindKernel(std::string_view name);

}  // namespace bwgemm
