#pragma once

#include <cstdint>

namespace bwgemm::call {

// value / by, rounded up, of a value that is not negative.
constexpr int64_t CeilDiv(int64_t value, int64_t by) { return value / by + (value % by != 0); }

}  // namespace bwgemm::call
