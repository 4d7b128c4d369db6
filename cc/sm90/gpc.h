// Which clusters of a launch share a GPC (graphics processing cluster).
//
// The multiprocessors of a GPC reach L2 through a unit that merges requests for the same lines when
// they come close together. So clusters of one GPC should compute neighbouring tiles: it took 256 x
// 512 x 65536 from 38 to 33 us on an H200, and 1 to 2 % off products of thousands. CUDA does not
// tell which clusters these are: what shares a GPC is probed, how a launch deals out its clusters
// is assumed. Where that is wrong it costs time; results do not depend on it.
#pragma once

#include <cstdint>

#include "core/status.h"

namespace bwgemm::sm90 {

constexpr int kMaxPlacedClusters = 144;

// Launches small kernels and waits for them, the first time on each device, which must be current.
// May run while a stream is captured.
Status ProbeGpcs(int device);

// slots[i]: which of `clusters` tiles, in bands `height` tiles high, cluster i of a launch should
// take, so that clusters of a GPC have neighbours along the band. Always a permutation; false if
// nothing is known of the device.
bool PlaceClusters(int device, int cluster_ctas, int clusters, int height, uint8_t* slots);

}  // namespace bwgemm::sm90
