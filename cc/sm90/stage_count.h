// How much of the pipeline to use.
#pragma once

#include <algorithm>

namespace bwgemm::sm90 {

// Stages for a CTA that streams so many bytes of each from memory, 0 if L2 has them anyway. More on
// their way than it takes to hide the latency only wait on each other. Weights of 4096 x 6144 for
// 16 rows, 96 CTAs of 64 x 16 tiles, took 13.5 us on an H200 with 6 or 7 stages of 16 KiB, 14.0
// with 8 and 14.3 with 10; those of 4096 x 4096, 64 CTAs, 10.8 with 6, 10.1 with 8, 10.5 with 10.
inline int StagesFor(int streamed_bytes, int ctas, int most) {
  constexpr int kPerCta = 100 << 10, kOfAllCtas = 8400 << 10, kFewest = 4;
  if (streamed_bytes == 0) return most;
  const int in_flight = std::max(kPerCta, kOfAllCtas / ctas);
  return std::min(std::max((in_flight + streamed_bytes / 2) / streamed_bytes, kFewest), most);
}

}  // namespace bwgemm::sm90
