// Places in a ring of slots that full and empty barriers guard: device code of every pipeline here.
#pragma once

#include <cstdint>

namespace bwgemm {

// A barrier completes once per round, so its parity tells this round from the last.
struct RingPosition {
  uint32_t index = 0;
  uint32_t phase = 0;

  __device__ __forceinline__ void Advance(uint32_t slots) {
    if (++index == slots) {
      index = 0;
      phase ^= 1;
    }
  }

  // Moves past slots that another consumer uses.
  __device__ __forceinline__ void Skip(uint32_t count, uint32_t slots) {
    index += count;
    phase ^= index / slots & 1;
    index %= slots;
  }
};

// The same where the number of slots is known to the compiler.
template <int kSlots>
struct RingState : RingPosition {
  __device__ __forceinline__ void Advance() { RingPosition::Advance(kSlots); }
  __device__ __forceinline__ void Skip(uint32_t count) { RingPosition::Skip(count, kSlots); }
};

// The same where a launch decides.
struct LaunchRing : RingPosition {
  uint32_t slots;

  __device__ __forceinline__ explicit LaunchRing(uint32_t slots) : slots(slots) {}
  __device__ __forceinline__ void Advance() { RingPosition::Advance(slots); }
  __device__ __forceinline__ void Skip(uint32_t count) { RingPosition::Skip(count, slots); }
};

}  // namespace bwgemm
