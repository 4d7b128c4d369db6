// What comes of probing a device's GPCs: a failure fails no product, and no device is asked twice.
#include <algorithm>
#include <vector>

#include "emulator/tests/tensor_check.h"
#include "sm90/gpc.h"
#include "sm90/gpc_probe.h"

namespace bwgemm::sm90 {

namespace {
constexpr int kBroken = 3, kUnknown = 4, kKnown = 5;
std::vector<int> probed;
}  // namespace

// In the place of gpc_probe.cu.
Status ProbeMultiprocessors(int device, std::vector<int>* gpc_of_sm) {
  probed.push_back(device);
  if (device == kUnknown) return Status::Ok();
  gpc_of_sm->assign(132, 0);
  for (int sm = 0; sm < 132; ++sm) (*gpc_of_sm)[sm] = sm / 16;
  return device == kBroken ? Status::Internal("out of memory") : Status::Ok();
}

namespace {

TEST(an_error_of_the_probe_only_means_that_nothing_is_known) {
  uint8_t slots[kMaxPlacedClusters];
  for (const int device : {kBroken, kUnknown}) {
    probed.clear();
    ProbeGpcs(device);
    ProbeGpcs(device);
    CHECK_EQ(probed.size(), size_t{1});
    for (const int ctas : {1, 2}) CHECK(!PlaceClusters(device, ctas, 1, 1, slots));
  }
}

TEST(clusters_are_placed_where_the_probe_succeeded) {
  std::vector<uint8_t> slots(66, 255);
  CHECK(!PlaceClusters(kKnown, 2, 66, 8, slots.data()));  // not yet
  ProbeGpcs(kKnown);
  CHECK(PlaceClusters(kKnown, 2, 66, 8, slots.data()));
  std::sort(slots.begin(), slots.end());
  for (int i = 0; i < 66; ++i) CHECK_EQ(int{slots[i]}, i);
  CHECK(!PlaceClusters(kKnown, 2, 67, 8, slots.data()));  // more than run at once
  CHECK(!PlaceClusters(kKnown, 4, 1, 8, slots.data()));   // a size that is not placed
}

TEST(numbers_that_are_no_device) {
  uint8_t slots[1];
  probed.clear();
  for (const int device : {-1, 64}) {
    ProbeGpcs(device);
    CHECK(!PlaceClusters(device, 1, 1, 1, slots));
  }
  CHECK(probed.empty());
}

}  // namespace
}  // namespace bwgemm::sm90

int main(int argc, char** argv) { return bwgemm::emulator::testing::run_all(argc, argv); }
