// One kernel of a build: what it is (KernelInfo) and how it is used (KernelOps). Dense, grouped and
// scaled kernels share the record; their problems differ.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "core/status.h"
#include "core/types.h"

namespace bwgemm {

// Every fact is a field: nobody reads it out of the name. The Python record with the same fields is
// jax_bwgemm.product.kernels.Kernel.
struct KernelInfo {
  const char* name;
  Arch arch;
  Contraction contraction;
  DType a_dtype, b_dtype, out_dtype;
  AMajor a_major;
  BMajor b_major;
  int tile_m, tile_n, tile_k;  // per CTA pair for a 2-CTA MMA, per CTA otherwise
  int cluster_m, cluster_n;    // CTAs
  Schedule schedule;
  bool swap_ab;         // the MMA computes transpose(D): tile_m is along N, tile_n along M
  bool stream_k;        // CTAs may share tiles along K, in a fixed order
  int stages;           // depth of the shared-memory pipeline
  int alignment_bytes;  // of base addresses and of contiguous extents
  int terms;            // that an f32 operand is split into; 1: none is split
  DType term_dtype;     // their type
  bool uneven_parts;    // parts of K may differ in length by one block
  ScaleUse scales;      // of kernels of scaled operands, grouped ones too
  // The same kernel with f32 results, which computes parts of K; empty if the build has none.
  const char* f32_twin;
};

// The record of a kernel of `Spec`, a line of a .def file as a type: what all families have.
template <class Spec>
constexpr KernelInfo InfoOf(const char* name, Arch arch, int stages, int alignment_bytes) {
  KernelInfo info{};
  info.name = name;
  info.arch = arch;
  info.contraction = Spec::kContraction;
  info.a_dtype = Spec::kA;
  info.b_dtype = Spec::kB;
  info.out_dtype = Spec::kOut;
  info.a_major = Spec::kAMajor;
  info.b_major = Spec::kBMajor;
  info.tile_m = Spec::kTileM;
  info.tile_n = Spec::kTileN;
  info.tile_k = Spec::kTileK;
  info.cluster_m = Spec::kClusterM;
  info.cluster_n = Spec::kClusterN;
  info.schedule = Spec::kSchedule;
  info.swap_ab = Spec::kSwapAb;
  info.stages = stages;
  info.alignment_bytes = alignment_bytes;
  info.terms = Spec::kTerms;
  info.term_dtype = DType::kBF16;
  info.f32_twin = "";
  return info;
}

// `supports` and `workspace_bytes` read no pointer of the problem: these may be null.
template <class Problem>
struct KernelOps {
  Status (*supports)(const Problem&);
  size_t (*workspace_bytes)(const Problem&);
  Status (*prepare)(int device);  // before the first launch on a device; cheap when repeated
  Status (*launch)(const Problem&, void* workspace, cudaStream_t);
  // The same of this kernel with an epilogue linked in, `function`; null: it can have none.
  Status (*prepare_linked)(const void* function, int device) = nullptr;
  Status (*launch_linked)(const Problem&, const void* function, const void* arguments,
                          void* workspace, cudaStream_t) = nullptr;
};

template <class Problem>
struct KernelEntry {
  KernelInfo info;
  KernelOps<Problem> ops;
};

}  // namespace bwgemm
