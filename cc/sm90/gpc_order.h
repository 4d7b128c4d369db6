// Which tile each cluster of a launch takes, given which multiprocessors share a GPC: see gpc.h.
#pragma once

#include <cstdint>
#include <vector>

namespace bwgemm::sm90 {

constexpr int kGpcCtas = 16;  // multiprocessors of most GPCs, CTAs of the largest clusters

// The clusters of a launch that fills the GPU, those of a GPC one after the other. gpc_of_sm: names
// of the multiprocessors' GPCs, any numbers.
std::vector<uint8_t> ClustersByGpc(const std::vector<int>& gpc_of_sm, int cluster_ctas);

// slots[i]: which of `clusters` tiles, in bands `height` tiles high, cluster i takes. Those that
// are neighbours in `order`, which has all of them, are neighbours along the band.
void PlaceAlongBands(const std::vector<uint8_t>& order, int clusters, int height, uint8_t* slots);

}  // namespace bwgemm::sm90
