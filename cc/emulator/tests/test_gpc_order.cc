// Where the SM90 kernels place clusters of a GPC: neighbours, and every tile taken once.
#include <algorithm>
#include <numeric>

#include "emulator/tests/tensor_check.h"
#include "sm90/gpc_order.h"

namespace bwgemm::sm90 {
namespace {

// Multiprocessors in GPCs of such sizes, dealt out in turn, as their numbers are on an H200.
std::vector<int> Gpcs(std::vector<int> sizes) {
  std::vector<int> gpc_of_sm;
  for (bool more = true; more;) {
    more = false;
    for (size_t gpc = 0; gpc < sizes.size(); ++gpc) {
      if (sizes[gpc] == 0) continue;
      gpc_of_sm.push_back(static_cast<int>(gpc) + 100);
      more = --sizes[gpc] > 0 || more;
    }
  }
  return gpc_of_sm;
}

const std::vector<int> kLayouts[] = {Gpcs({16, 16, 16, 16, 16, 16, 18, 18}),
                                     Gpcs({2, 16, 18, 16, 16, 16, 16, 16, 16}), Gpcs({7, 7, 3}),
                                     Gpcs({1}), Gpcs({144})};

TEST(every_tile_is_taken_once) {
  for (const std::vector<int>& layout : kLayouts) {
    for (const int size : {1, 2}) {
      const std::vector<uint8_t> order = ClustersByGpc(layout, size);
      std::vector<uint8_t> sorted = order;
      std::sort(sorted.begin(), sorted.end());
      for (size_t i = 0; i < sorted.size(); ++i) CHECK_EQ(int{sorted[i]}, static_cast<int>(i));
      const int most = static_cast<int>(order.size());
      for (int clusters = 1; clusters <= most; ++clusters) {
        for (const int height : {1, 2, 4, 8, 16}) {
          std::vector<uint8_t> slots(clusters, 255);
          PlaceAlongBands(order, clusters, height, slots.data());
          std::sort(slots.begin(), slots.end());
          for (int i = 0; i < clusters; ++i) CHECK_EQ(int{slots[i]}, i);
        }
      }
    }
  }
}

TEST(all_clusters_that_fit_are_placed) {
  CHECK_EQ(ClustersByGpc(kLayouts[0], 1).size(), size_t{132});
  CHECK_EQ(ClustersByGpc(kLayouts[0], 2).size(), size_t{66});
  CHECK_EQ(ClustersByGpc(kLayouts[2], 2).size(), size_t{7});  // a GPC of odd size leaves one idle
}

// 8 GPCs of 16 and bands 8 high: every GPC gets a line along the band of its own.
TEST(clusters_of_a_gpc_are_neighbours_along_the_band) {
  const std::vector<int> layout = Gpcs(std::vector<int>(8, 16));
  std::vector<uint8_t> slots(128);
  PlaceAlongBands(ClustersByGpc(layout, 1), 128, 8, slots.data());
  for (int cta = 0; cta < 128; ++cta) {
    CHECK_EQ(slots[cta] % 8, slots[cta % 8] % 8);  // CTAs 8 apart are of one GPC
    if (cta >= 8) CHECK_EQ(slots[cta] / 8, slots[cta - 8] / 8 + 1);
  }
}

// GPCs of 18: their last two multiprocessors come after the whole runs of 16.
TEST(what_does_not_fill_a_run_comes_last) {
  const std::vector<uint8_t> order = ClustersByGpc(Gpcs({18, 16}), 1);
  CHECK_EQ(order.size(), size_t{34});
  CHECK_EQ(int{order[0]}, 0);
  CHECK_EQ(int{order[16]}, 1);   // the other GPC's first
  CHECK_EQ(int{order[32]}, 32);  // the larger one's 17th and 18th
  CHECK_EQ(int{order[33]}, 33);
}

}  // namespace
}  // namespace bwgemm::sm90

int main(int argc, char** argv) { return bwgemm::emulator::testing::run_all(argc, argv); }
