// Kernels that launchers start beside their own: they clear counters, add parts of K, split
// operands.
#pragma once

#include <initializer_list>
#include <vector>

#include "core/launch.h"

namespace bwgemm {

// Every translation unit that has helper kernels lists them in a constant of this type.
class HelperKernels {
 public:
  HelperKernels(std::initializer_list<const void*> kernels) {
    All().insert(All().end(), kernels.begin(), kernels.end());
  }

  // Loads all of them on the current device, which is `device`, but those of other architectures.
  // Cheap when repeated.
  static void Load(int device) {
    static OncePerDevice once;
    (void)once.Run(device, [] {
      for (const void* kernel : All()) (void)LoadKernel(kernel);
      (void)cudaGetLastError();
      return Status::Ok();
    });
  }

 private:
  static std::vector<const void*>& All() {
    static std::vector<const void*> all;
    return all;
  }
};

}  // namespace bwgemm
