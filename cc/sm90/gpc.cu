#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <mutex>
#include <numeric>
#include <utility>
#include <vector>

#include "common/cuda_status.h"
#include "common/launch.h"
#include "sm90/gpc.h"

namespace bwgemm::sm90 {
namespace {

constexpr int kMaxDevices = 64, kMaxSms = kMaxPlacedClusters;
constexpr int kLaunches = 18;
constexpr int kProbeShared = 200 * 1024;  // more than half: one CTA a multiprocessor
constexpr int kGpcCtas = 16;      // multiprocessors of most GPCs, CTAs of the largest clusters
constexpr int kSizes[] = {1, 2};  // CTAs of the clusters that are placed

// Multiprocessor of each CTA of each launch.
__device__ int probed[kLaunches][kMaxSms];

// Stays until every CTA has come: no two on the same multiprocessor.
__global__ void ProbeKernel(int launch) {
  constexpr int kCycles = 20000;
  int sm;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
  probed[launch][blockIdx.x] = sm;
  const long long start = clock64();
  while (clock64() - start < kCycles) {
  }
}

Status Launch(int launch, int ctas, int cluster_ctas, cudaStream_t stream) {
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {static_cast<unsigned>(cluster_ctas), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(ctas);
  config.blockDim = dim3(1);
  config.dynamicSmemBytes = kProbeShared;
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = 1;
  return BWGEMM_CUDA_STATUS(cudaLaunchKernelEx(&config, ProbeKernel, launch));
}

// GPCs as sets of multiprocessors: each is named by one of its members.
class Gpcs {
 public:
  Gpcs() { std::iota(parent_.begin(), parent_.end(), 0); }
  int Of(int sm) const {
    while (parent_[sm] != sm) sm = parent_[sm];
    return sm;
  }
  void Join(int a, int b) { parent_[Of(a)] = Of(b); }

 private:
  std::array<int, kMaxSms> parent_;
};

// Lets other threads capture streams meanwhile, and this one if it does.
class CaptureScope {
 public:
  CaptureScope() { (void)cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~CaptureScope() { (void)cudaThreadExchangeStreamCaptureMode(&mode_); }

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

struct Stream {
  cudaStream_t handle = nullptr;
  ~Stream() {
    if (handle) (void)cudaStreamDestroy(handle);
  }
};

// Which multiprocessors share a GPC: those that clusters share, whatever else the GPU does.
// `sms`: how many there are, 0 if that cannot be told.
Status Probe(int device, Gpcs* gpcs, int* sms) {
  int count = 0;
  BWGEMM_RETURN_IF_CUDA_ERROR(
      cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
  *sms = 0;
  if (count > kMaxSms) return Status::Ok();
  CaptureScope scope;
  const void* kernel = reinterpret_cast<const void*>(&ProbeKernel);
  BWGEMM_RETURN_IF_ERROR(SetSharedMemoryLimit(kernel, kProbeShared));
  BWGEMM_RETURN_IF_CUDA_ERROR(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
  int largest = 0;  // a slice of a GPU may have smaller GPCs
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(kGpcCtas);
  config.blockDim = dim3(1);
  config.dynamicSmemBytes = kProbeShared;
  BWGEMM_RETURN_IF_CUDA_ERROR(cudaOccupancyMaxPotentialClusterSize(&largest, kernel, &config));
  largest = std::clamp(largest, 1, kGpcCtas);
  const int sizes[] = {largest, std::max(largest / 2, 1), std::min(largest, 6)};
  Stream stream;
  BWGEMM_RETURN_IF_CUDA_ERROR(cudaStreamCreateWithFlags(&stream.handle, cudaStreamNonBlocking));
  for (int i = 0; i < kLaunches; ++i) {
    const int size = sizes[i % 3];
    BWGEMM_RETURN_IF_ERROR(Launch(i, count / size * size, size, stream.handle));
  }
  static int sm_of[kLaunches][kMaxSms];  // ProbeGpcs lets one thread in
  BWGEMM_RETURN_IF_CUDA_ERROR(cudaMemcpyFromSymbolAsync(sm_of, probed, sizeof(sm_of), 0,
                                                        cudaMemcpyDeviceToHost, stream.handle));
  BWGEMM_RETURN_IF_CUDA_ERROR(cudaStreamSynchronize(stream.handle));

  for (int i = 0; i < kLaunches; ++i) {
    const int size = sizes[i % 3];
    for (int cta = 0; cta < count / size * size; ++cta) {
      if (sm_of[i][cta] < 0 || sm_of[i][cta] >= count) return Status::Ok();
      gpcs->Join(sm_of[i][cta], sm_of[i][cta / size * size]);
    }
  }
  for (int sm = 0; sm + 1 < count; sm += 2) gpcs->Join(sm, sm + 1);  // a TPC is two
  *sms = count;
  return Status::Ok();
}

// The GPC of each cluster of a launch that fills the GPU. Seen on an H200: GPCs take one each in
// turn, first those of two multiprocessors, as long as there is room. The turn may begin elsewhere,
// which leaves most of those together that are.
std::vector<int> LaunchOrder(const Gpcs& gpcs, int sms, int cluster_ctas) {
  std::map<int, int> sms_of;
  for (int sm = 0; sm < sms; ++sm) ++sms_of[gpcs.Of(sm)];
  std::vector<std::pair<int, int>> room;  // GPC, clusters that it can take
  for (const bool pairs : {true, false}) {
    std::vector<bool> listed(sms);
    for (int sm = 0; sm < sms; ++sm) {
      const int gpc = gpcs.Of(sm);
      if (listed[gpc] || (sms_of[gpc] <= 2) != pairs) continue;
      listed[gpc] = true;
      room.emplace_back(gpc, sms_of[gpc] / cluster_ctas);
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

// Clusters of a GPC one after the other. Whole runs of as many as most GPCs have come first, so
// that bands divide evenly among them.
using Order = std::vector<uint8_t>;
Order ByGpc(const std::vector<int>& gpc_of_cluster, int run) {
  Order order, rest;
  std::vector<int> gpcs = gpc_of_cluster;
  std::sort(gpcs.begin(), gpcs.end());
  gpcs.erase(std::unique(gpcs.begin(), gpcs.end()), gpcs.end());
  for (int gpc : gpcs) {
    Order mine;
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

struct Orders {
  Order of_size[2];
};
std::array<std::atomic<const Orders*>, kMaxDevices> known{};

}  // namespace

Status ProbeGpcs(int device) {
  static std::mutex mutex;
  if (device < 0 || device >= kMaxDevices || known[device].load(std::memory_order_acquire)) {
    return Status::Ok();
  }
  const std::lock_guard<std::mutex> lock(mutex);
  if (known[device].load(std::memory_order_relaxed)) return Status::Ok();
  Gpcs gpcs;
  int sms;
  BWGEMM_RETURN_IF_ERROR(Probe(device, &gpcs, &sms));
  auto* orders = new Orders;  // never deleted: launches of any thread read it
  for (int s = 0; s < 2; ++s) {
    orders->of_size[s] = ByGpc(LaunchOrder(gpcs, sms, kSizes[s]), kGpcCtas / kSizes[s]);
  }
  known[device].store(orders, std::memory_order_release);
  return Status::Ok();
}

bool PlaceClusters(int device, int cluster_ctas, int clusters, int height, uint8_t* slots) {
  const auto* size = std::find(std::begin(kSizes), std::end(kSizes), cluster_ctas);
  if (size == std::end(kSizes) || device < 0 || device >= kMaxDevices) return false;
  const Orders* orders = known[device].load(std::memory_order_acquire);
  if (!orders) return false;
  const Order& order = orders->of_size[size - kSizes];
  if (clusters > static_cast<int>(order.size())) return false;
  // Along the band, then the next line of it; what is left over as it comes. No divisions: this is
  // done on every launch.
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
  return true;
}

}  // namespace bwgemm::sm90
