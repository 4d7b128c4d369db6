// Which clusters of a launch share a GPC (graphics processing cluster).
//
// The multiprocessors of a GPC reach L2 through a unit that merges requests for the same lines when
// they come close together. So clusters of one GPC should compute neighbouring tiles. CUDA does not
// say which multiprocessors share a GPC: that is probed. How a launch assigns its clusters to
// multiprocessors is assumed. Where either is wrong it costs time; results do not depend on it.
#pragma once

#include <cstdint>

namespace bwgemm::sm90 {

constexpr int kMaxPlacedClusters = 144;

// Launches small kernels and waits for them, the first time on each device, which must be current.
// May run while a stream is captured. Returns no status: a placement only saves time, so a probe
// that fails must not fail the product.
void ProbeGpcs(int device);

// slots[i]: which of `clusters` tiles, in bands `height` tiles high, cluster i of a launch should
// take, so that clusters of a GPC have neighbours along the band. Always a permutation; false if
// nothing is known of the device.
bool PlaceClusters(int device, int cluster_ctas, int clusters, int height, uint8_t* slots);

}  // namespace bwgemm::sm90
