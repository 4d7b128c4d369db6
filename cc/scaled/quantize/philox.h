// Random numbers that depend on a key and a counter only: Philox-4x32 with 10 rounds (Salmon et
// al., "Parallel random numbers: as easy as 1, 2, 3"). jax_bwgemm/scaled/random_bits.py is the same
// function.
#pragma once

#include <cstdint>

namespace bwgemm::scaled {

__device__ inline uint4 Philox(uint4 counter, uint2 key) {
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint32_t high0 = __umulhi(0xD2511F53u, counter.x), low0 = 0xD2511F53u * counter.x;
    const uint32_t high1 = __umulhi(0xCD9E8D57u, counter.z), low1 = 0xCD9E8D57u * counter.z;
    counter = {high1 ^ counter.y ^ key.x, low1, high0 ^ counter.w ^ key.y, low0};
    key.x += 0x9E3779B9u;
    key.y += 0xBB67AE85u;
  }
  return counter;
}

}  // namespace bwgemm::scaled
