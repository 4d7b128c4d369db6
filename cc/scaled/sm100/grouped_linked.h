// The parameters of grouped scaled SM100 kernels that an epilogue is linked into.
#pragma once

#include "core/epilogue_arguments.h"

namespace bwgemm::scaled::sm100 {

template <class Plain>
struct WithEpilogue : Plain {
  EpilogueArguments epilogue;
};

}  // namespace bwgemm::scaled::sm100
