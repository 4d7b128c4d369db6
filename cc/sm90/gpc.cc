#include "sm90/gpc.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <vector>

#include "core/device.h"
#include "sm90/gpc_order.h"
#include "sm90/gpc_probe.h"

namespace bwgemm::sm90 {
namespace {

constexpr int kSizes[] = {1, 2};  // CTAs of the clusters that are placed

struct Orders {
  std::vector<uint8_t> of_size[2];
};
std::array<std::atomic<const Orders*>, kMaxDevices> known{};

}  // namespace

void ProbeGpcs(int device) {
  static std::mutex mutex;
  if (device < 0 || device >= kMaxDevices || known[device].load(std::memory_order_acquire)) return;
  const std::lock_guard<std::mutex> lock(mutex);
  if (known[device].load(std::memory_order_relaxed)) return;
  std::vector<int> gpc_of_sm;
  // An error means that nothing is known of this device, and is not asked about again.
  if (!ProbeMultiprocessors(device, &gpc_of_sm).ok()) gpc_of_sm.clear();
  auto* orders = new Orders;  // never deleted: launches of any thread read it
  for (int s = 0; s < 2; ++s) orders->of_size[s] = ClustersByGpc(gpc_of_sm, kSizes[s]);
  known[device].store(orders, std::memory_order_release);
}

bool PlaceClusters(int device, int cluster_ctas, int clusters, int height, uint8_t* slots) {
  const auto* size = std::find(std::begin(kSizes), std::end(kSizes), cluster_ctas);
  if (size == std::end(kSizes) || device < 0 || device >= kMaxDevices) return false;
  const Orders* orders = known[device].load(std::memory_order_acquire);
  if (!orders) return false;
  const std::vector<uint8_t>& order = orders->of_size[size - kSizes];
  if (clusters > static_cast<int>(order.size())) return false;
  PlaceAlongBands(order, clusters, height, slots);
  return true;
}

}  // namespace bwgemm::sm90
