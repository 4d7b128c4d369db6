// Reader of the fat binaries that nvcc embeds into host objects: finds the PTX texts in them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace bwgemm::emulator {

// One PTX text of a fat binary.
struct PtxImage {
  std::string text;
  int arch = 0;  // 100 for compute_100, compute_100a and compute_100f
};

// Returns the text of a zlib stream; throws std::runtime_error when it is damaged.
using Inflate = std::string (*)(std::string_view stream);

// What unpacks the PTX that cmake/split_fatbin.py has compressed. Without one it is refused.
// Set before the first kernel runs.
void SetInflate(Inflate inflate);

// Returns the PTX images of the fat binary `data[0, size)`. Throws std::runtime_error, saying what
// is wrong, when the container is truncated, has an unknown layout, or holds PTX that was
// compressed by nvcc or is damaged.
std::vector<PtxImage> ReadFatBinary(const void* data, std::size_t size);

// The same for a registered `__fatBinC_Wrapper_t` (the argument of __cudaRegisterFatBinary), whose
// container says its own size.
std::vector<PtxImage> ReadFatBinaryWrapper(const void* wrapper);

}  // namespace bwgemm::emulator
