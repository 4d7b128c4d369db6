// Where a thread stands in a ring of shared-memory stages guarded by full and empty barriers.
#pragma once

#include <cstdint>

namespace bwgemm::grouped::sm90 {

template <int kStages>
struct PipelineState {
  uint32_t index = 0;
  uint32_t phase = 0;

  __device__ __forceinline__ void Advance() {
    if (++index == kStages) {
      index = 0;
      phase ^= 1;
    }
  }

  // Past stages that somebody else uses.
  __device__ __forceinline__ void Skip(uint32_t count) {
    index += count;
    phase ^= index / kStages & 1;
    index %= kStages;
  }
};

}  // namespace bwgemm::grouped::sm90
