// Which lane shfl.sync reads (PTX ISA 9.7.9.6).
#pragma once

#include <cstdint>

namespace bwgemm::emulator {

enum class Shuffle : uint8_t { kUp, kDown, kBfly, kIdx };

struct ShuffleSource {
  int lane;
  bool in_range;  // else it reads itself
};

// `c`: the clamp in bits 0-4, the segment mask in bits 8-12.
inline ShuffleSource shuffle_source(Shuffle mode, int lane, uint32_t b, uint32_t c) {
  const int amount = static_cast<int>(b & 31);
  const int clamp = static_cast<int>(c & 31), segment = static_cast<int>(c >> 8 & 31);
  const int lowest = lane & segment, highest = lowest | (clamp & ~segment);
  int from = lane;
  switch (mode) {
    case Shuffle::kUp:
      from = lane - amount;
      break;
    case Shuffle::kDown:
      from = lane + amount;
      break;
    case Shuffle::kBfly:
      from = lane ^ amount;
      break;
    case Shuffle::kIdx:
      from = lowest | (amount & ~segment);
      break;
  }
  const bool in_range = mode == Shuffle::kUp ? from >= highest : from <= highest;
  return {in_range ? from & 31 : lane, in_range};
}

}  // namespace bwgemm::emulator
