#pragma once

#include <cstdint>

namespace bwgemm {

// value / by, rounded up, of a value that is not negative. Host code: kernels divide 32-bit
// numbers.
constexpr int64_t CeilDiv(int64_t value, int64_t by) { return value / by + (value % by != 0); }

}  // namespace bwgemm
