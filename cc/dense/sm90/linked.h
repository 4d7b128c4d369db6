// The parameters of kernels that an epilogue is linked into.
#pragma once

#include "dense/linked.h"
#include "dense/sm90/config.h"

namespace bwgemm::dense::sm90 {

struct LinkedParams : Params {
  CUtensorMap staged, stored;
  EpilogueArguments epilogue;
};

// Of kernels without scales. The second matrix comes last: code that was linked before there was
// one has these parameters without it.
struct TwoMatrixParams : LinkedParams {
  CUtensorMap staged_too;
};

}  // namespace bwgemm::dense::sm90
