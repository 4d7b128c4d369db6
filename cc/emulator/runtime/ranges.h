// Registers the buffers of a call with the emulated device's memory.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "emulator/machine/memory.h"

namespace bwgemm::emulator {

struct Buffer {
  const void* data = nullptr;
  uint64_t bytes = 0;
  bool writable = false;
  std::string name;
};

// Overlapping buffers (the same array passed twice, views of one array) become one range; it is
// writable if one of them is. Empty buffers are left out.
inline void RegisterBuffers(GlobalMemory& memory, std::vector<Buffer> buffers) {
  std::sort(buffers.begin(), buffers.end(), [](const Buffer& x, const Buffer& y) {
    return reinterpret_cast<uint64_t>(x.data) < reinterpret_cast<uint64_t>(y.data);
  });
  Buffer merged;
  uint64_t end = 0;
  const auto flush = [&] {
    if (merged.bytes > 0) memory.add(merged.data, merged.bytes, merged.writable, merged.name);
  };
  for (const Buffer& b : buffers) {
    if (b.bytes == 0) continue;
    const uint64_t begin = reinterpret_cast<uint64_t>(b.data);
    if (merged.bytes > 0 && begin < end) {
      end = std::max(end, begin + b.bytes);
      merged.bytes = end - reinterpret_cast<uint64_t>(merged.data);
      merged.writable |= b.writable;
      merged.name += "/" + b.name;
      continue;
    }
    flush();
    merged = b;
    end = begin + b.bytes;
  }
  flush();
}

}  // namespace bwgemm::emulator
