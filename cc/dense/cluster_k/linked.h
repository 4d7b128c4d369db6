// The parameters of cluster-K kernels that an epilogue is linked into.
#pragma once

#include "core/epilogue_arguments.h"
#include "dense/cluster_k/config.h"

namespace bwgemm::dense::cluster_k {

struct LinkedParams : Params {
  EpilogueArguments epilogue;
};

}  // namespace bwgemm::dense::cluster_k
