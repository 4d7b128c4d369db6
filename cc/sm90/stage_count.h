// How much of the pipeline to use.
#pragma once

#include <algorithm>

namespace bwgemm::sm90 {

// Stages for a CTA that streams `streamed_bytes` of each stage from memory (0: all are in L2). More
// loads in flight than hide the latency of memory only wait for each other. Both constants are
// fitted: docs/decisions.md.
inline int StagesFor(int streamed_bytes, int ctas, int most) {
  constexpr int kPerCta = 100 << 10, kOfAllCtas = 8400 << 10, kFewest = 4;
  if (streamed_bytes == 0) return most;
  const int in_flight = std::max(kPerCta, kOfAllCtas / ctas);
  return std::min(std::max((in_flight + streamed_bytes / 2) / streamed_bytes, kFewest), most);
}

}  // namespace bwgemm::sm90
