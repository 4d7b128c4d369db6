// Kernels with an epilogue linked in: loaded from the call that carries them.
#pragma once

#include "call/product_call.h"
#include "core/epilogue_arguments.h"

namespace bwgemm::call {

// InvalidArgument unless epilogues of the form can be linked into the kernel.
Status CheckLinkable(const Kernel& kernel, std::string_view form);

// The function to launch, loaded and prepared on the current device. A process loads a piece of
// code once; later calls find it by its digest.
Status FindLinked(const Kernel& kernel, const LinkedEpilogue& epilogue, int device,
                  const void** function);

// The same of a kernel that is in no table: by its name.
Status FindLinked(std::string_view kernel, const LinkedEpilogue& epilogue, int device,
                  const void** function);

// Unimplemented unless the code was linked for this version of the library.
Status CheckEpilogueVersion(const LinkedEpilogue& epilogue);

// Sizes of the product that an epilogue follows. matrices: of a grouped product, its experts, which
// share the m rows of one result; of any other, the batch, whose elements have m rows each.
struct EpilogueSizes {
  int32_t m, n, matrices;
};

// The buffers of an epilogue, after checking that its code was written for such sizes.
Status ReadEpilogue(const ProductCall& call, const KernelInfo& kernel, const EpilogueSizes& sizes,
                    EpilogueArguments* arguments);

}  // namespace bwgemm::call
