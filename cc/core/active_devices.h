// The GPUs that this process uses.
#pragma once

#include <vector>

namespace bwgemm {

// Ordinals of the devices that have a context. A framework makes one on each of its GPUs when it
// starts. Empty where there is no GPU or no driver.
std::vector<int> ActiveDevices();

}  // namespace bwgemm
