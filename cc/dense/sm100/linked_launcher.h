// KernelOps of an SM100 kernel that an epilogue may be linked into.
#pragma once

#include "dense/launcher.h"
#include "dense/sm100/linked_result.h"

namespace bwgemm::dense::sm100 {

template <class Spec>
struct LinkedLauncher {
  using L = Launcher<LinkedGemm<Spec>>;

  static Status Prepare(const void* function, int) {
    return SetSharedMemoryLimit(function, L::Kernel::SharedStorageSize);
  }

  // The kernel has no workspace: it neither splits K nor shares tiles.
  static Status Launch(const GemmProblem& p, const void* function, const void* arguments, void*,
                       cudaStream_t stream) {
    typename L::Arguments args = L::MakeArguments(p);
    args.epilogue.thread = *static_cast<const EpilogueArguments*>(arguments);
    return L::Launch(args, nullptr, stream, function);
  }
};

template <class Spec>
KernelEntry MakeLinkedEntry(const char* name, const char* f32_twin) {
  static_assert(!Spec::kStreamK);
  KernelEntry entry = MakeEntry<GemmKernel<Spec>>(name, f32_twin);
  entry.ops.prepare_linked = &LinkedLauncher<Spec>::Prepare;
  entry.ops.launch_linked = &LinkedLauncher<Spec>::Launch;
  return entry;
}

}  // namespace bwgemm::dense::sm100
