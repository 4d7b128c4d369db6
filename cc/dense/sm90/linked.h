// The parameters of kernels that an epilogue is linked into.
#pragma once

#include "dense/linked.h"
#include "dense/sm90/config.h"

namespace bwgemm::dense::sm90 {

struct LinkedParams : Params {
  CUtensorMap staged, stored;
  EpilogueArguments epilogue;
};

}  // namespace bwgemm::dense::sm90
