// The parameters of SM100's grouped kernels that an epilogue is linked into.
#pragma once

#include "core/epilogue_arguments.h"
#include "grouped/sm100/config.h"

namespace bwgemm::grouped::sm100 {

struct LinkedParams : Params {
  EpilogueArguments epilogue;
};

}  // namespace bwgemm::grouped::sm100
