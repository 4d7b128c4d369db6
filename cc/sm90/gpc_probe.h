// Finds out which multiprocessors of a GPU share a GPC: see gpc.h.
#pragma once

#include <vector>

#include "core/status.h"

namespace bwgemm::sm90 {

// Runs small kernels on the device, which must be current, and waits for them. One thread at a
// time. gpc_of_sm: names of the multiprocessors' GPCs; none where that cannot be told.
Status ProbeMultiprocessors(int device, std::vector<int>* gpc_of_sm);

}  // namespace bwgemm::sm90
