#include "sm90/gpc_order.h"

#include <algorithm>
#include <map>
#include <utility>

namespace bwgemm::sm90 {
namespace {

// The GPC of each cluster of a launch that fills the GPU. Assumed, as seen on an H200: GPCs take
// one cluster each in turn, as long as they have room, GPCs of two multiprocessors first. If the
// turn begins with another GPC, most clusters that are placed together here still share one.
std::vector<int> LaunchOrder(const std::vector<int>& gpc_of_sm, int cluster_ctas) {
  std::map<int, int> sms_of;
  for (int gpc : gpc_of_sm) ++sms_of[gpc];
  std::vector<std::pair<int, int>> room;  // GPC, clusters that it can take
  for (const bool pairs : {true, false}) {
    for (int gpc : gpc_of_sm) {  // by the first multiprocessor of each
      if (sms_of[gpc] == 0 || (sms_of[gpc] <= 2) != pairs) continue;
      room.emplace_back(gpc, sms_of[gpc] / cluster_ctas);
      sms_of[gpc] = 0;
    }
  }
  std::vector<int> gpc_of_cluster;
  for (bool more = true; more;) {
    more = false;
    for (auto& [gpc, left] : room) {
      if (left == 0) continue;
      gpc_of_cluster.push_back(gpc);
      more = --left > 0 || more;
    }
  }
  return gpc_of_cluster;
}

}  // namespace

// Whole runs of as many clusters as most GPCs have come first, so that bands divide evenly among
// them.
std::vector<uint8_t> ClustersByGpc(const std::vector<int>& gpc_of_sm, int cluster_ctas) {
  const std::vector<int> gpc_of_cluster = LaunchOrder(gpc_of_sm, cluster_ctas);
  const int run = kGpcCtas / cluster_ctas;
  std::vector<uint8_t> order, rest;
  std::vector<int> gpcs = gpc_of_cluster;
  std::sort(gpcs.begin(), gpcs.end());
  gpcs.erase(std::unique(gpcs.begin(), gpcs.end()), gpcs.end());
  for (int gpc : gpcs) {
    std::vector<uint8_t> mine;
    for (size_t i = 0; i < gpc_of_cluster.size(); ++i) {
      if (gpc_of_cluster[i] == gpc) mine.push_back(static_cast<uint8_t>(i));
    }
    const auto end = mine.begin() + mine.size() / run * run;
    order.insert(order.end(), mine.begin(), end);
    rest.insert(rest.end(), end, mine.end());
  }
  order.insert(order.end(), rest.begin(), rest.end());
  return order;
}

// Along the band, then its next line; the rest in the order it has. No divisions, since this runs
// on every launch.
void PlaceAlongBands(const std::vector<uint8_t>& order, int clusters, int height, uint8_t* slots) {
  const int length = clusters / height;  // of the band, as far as one launch fills it
  int across = 0, along = 0, left_over = height * length;
  for (int cluster : order) {
    if (cluster >= clusters) continue;
    if (length == 0 || across == height) {
      slots[cluster] = static_cast<uint8_t>(left_over++);
      continue;
    }
    slots[cluster] = static_cast<uint8_t>(across + along * height);
    if (++along == length) {
      along = 0;
      ++across;
    }
  }
}

}  // namespace bwgemm::sm90
