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
constexpr int kSizes[] = {1, 2};  // CTAs of the clusters whose launch order is learnt
// Launches: clusters of several sizes up to the largest, which show what lies in one GPC, then some
// of each of kSizes, of which kVotes have to agree: others ran beside something else.
constexpr int kGroupLaunches = 18, kOrderLaunches = 9, kVotes = 4;
constexpr int kAttempts = 8;
constexpr int kLaunches = kGroupLaunches + kOrderLaunches * 2;
constexpr int kProbeShared = 200 * 1024;  // more than half: one CTA a multiprocessor
constexpr int kGpcCtas = 16;  // multiprocessors of most GPCs, CTAs of the largest clusters

struct Launched {
  int size, ctas;
};

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

// The clusters of a launch that fills the GPU, those of a GPC one after the other. Empty: unknown.
using Order = std::vector<uint8_t>;
struct Orders {
  Order of_size[2];
};
std::array<std::atomic<const Orders*>, kMaxDevices> known{};

Status Launch(int launch, const Launched& shape, cudaStream_t stream) {
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {static_cast<unsigned>(shape.size), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(shape.ctas);
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

// Whole runs of as many clusters as most GPCs have first, so that bands divide evenly among them.
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

// All launches so far.
struct Learnt {
  int sms = 0;
  int attempts = 0;
  Gpcs gpcs;
  std::map<std::vector<int>, int> votes[2];  // first multiprocessor of each cluster -> launches
};

Status Probe(int device, Learnt* learnt) {
  int sms = 0;
  BWGEMM_RETURN_IF_CUDA_ERROR(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device));
  if (sms > kMaxSms) return Status::Ok();
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
  largest = std::min(largest, kGpcCtas);
  Stream stream;
  BWGEMM_RETURN_IF_CUDA_ERROR(cudaStreamCreateWithFlags(&stream.handle, cudaStreamNonBlocking));
  std::vector<Launched> launches;
  for (int i = 0; i < kGroupLaunches; ++i) {
    const int sizes[] = {largest, std::max(largest / 2, 1), std::min(largest, 6)};
    launches.push_back({sizes[i % 3], 0});
  }
  for (int size : kSizes) launches.insert(launches.end(), kOrderLaunches, {size, 0});
  for (size_t i = 0; i < launches.size(); ++i) {
    launches[i].ctas = sms / launches[i].size * launches[i].size;
    BWGEMM_RETURN_IF_ERROR(Launch(static_cast<int>(i), launches[i], stream.handle));
  }
  static int sm_of[kLaunches][kMaxSms];  // ProbeGpcs lets one thread in
  BWGEMM_RETURN_IF_CUDA_ERROR(cudaMemcpyFromSymbolAsync(sm_of, probed, sizeof(sm_of), 0,
                                                        cudaMemcpyDeviceToHost, stream.handle));
  BWGEMM_RETURN_IF_CUDA_ERROR(cudaStreamSynchronize(stream.handle));

  for (size_t i = 0; i < launches.size(); ++i) {
    for (int cta = 0; cta < launches[i].ctas; ++cta) {
      if (sm_of[i][cta] < 0 || sm_of[i][cta] >= sms) return Status::Ok();
    }
  }
  learnt->sms = sms;
  for (size_t i = 0; i < launches.size(); ++i) {
    for (int cta = 0; cta < launches[i].ctas; ++cta) {
      learnt->gpcs.Join(sm_of[i][cta], sm_of[i][cta / launches[i].size * launches[i].size]);
    }
  }
  for (int s = 0; s < 2; ++s) {
    for (int i = 0; i < kOrderLaunches; ++i) {
      const int launch = kGroupLaunches + s * kOrderLaunches + i;
      std::vector<int> first_sms;
      for (int cta = 0; cta < launches[launch].ctas; cta += kSizes[s]) {
        first_sms.push_back(sm_of[launch][cta]);
      }
      ++learnt->votes[s][first_sms];
    }
  }
  return Status::Ok();
}

// The launch order that has the votes, as GPCs; empty if none has.
std::vector<int> Voted(const Learnt& learnt, int s) {
  std::map<std::vector<int>, int> votes;  // launches may differ in the multiprocessors of a GPC
  for (const auto& [first_sms, count] : learnt.votes[s]) {
    std::vector<int> gpc_of_cluster;
    for (int sm : first_sms) gpc_of_cluster.push_back(learnt.gpcs.Of(sm));
    if ((votes[gpc_of_cluster] += count) >= kVotes) return gpc_of_cluster;
  }
  return {};
}

// What to expect on a GPU too busy to tell: on the H200 that this was seen on, a cluster for each
// GPC in turn, first those of two multiprocessors, as long as there is room.
std::vector<int> Expected(const Learnt& learnt, int size) {
  std::vector<std::pair<int, int>> room;  // GPC, clusters that it can take
  for (const bool pairs : {true, false}) {
    std::map<int, int> sms_of;
    for (int sm = 0; sm < learnt.sms; ++sm) ++sms_of[learnt.gpcs.Of(sm)];
    for (int sm = 0; sm < learnt.sms; ++sm) {
      const auto gpc = sms_of.find(learnt.gpcs.Of(sm));
      if (gpc == sms_of.end() || (gpc->second <= 2) != pairs) continue;
      room.emplace_back(gpc->first, gpc->second / size);
      sms_of.erase(gpc);
    }
  }
  std::vector<int> gpc_of_cluster;
  for (bool any = true; any;) {
    any = false;
    for (auto& [gpc, left] : room) {
      if (left == 0) continue;
      gpc_of_cluster.push_back(gpc);
      any = --left > 0 || any;
    }
  }
  return gpc_of_cluster;
}

}  // namespace

Status ProbeGpcs(int device) {
  static std::mutex mutex;
  static std::array<Learnt, kMaxDevices> all;
  static std::array<std::atomic<bool>, kMaxDevices> done{};
  if (device < 0 || device >= kMaxDevices || done[device].load(std::memory_order_acquire)) {
    return Status::Ok();
  }
  const std::lock_guard<std::mutex> lock(mutex);
  Learnt& learnt = all[device];
  if (done[device].load(std::memory_order_relaxed)) return Status::Ok();
  BWGEMM_RETURN_IF_ERROR(Probe(device, &learnt));
  auto* orders = new Orders;  // never deleted: launches of any thread read it
  bool voted = true;
  for (int s = 0; s < 2 && learnt.sms > 0; ++s) {
    std::vector<int> gpc_of_cluster = Voted(learnt, s);
    voted = voted && !gpc_of_cluster.empty();
    if (gpc_of_cluster.empty()) gpc_of_cluster = Expected(learnt, kSizes[s]);
    orders->of_size[s] = ByGpc(gpc_of_cluster, kGpcCtas / kSizes[s]);
  }
  known[device].store(orders, std::memory_order_release);
  done[device].store(voted || ++learnt.attempts == kAttempts, std::memory_order_release);
  return Status::Ok();
}

bool PlaceClusters(int device, int cluster_ctas, int clusters, int height, uint8_t* slots) {
  const auto* size = std::find(std::begin(kSizes), std::end(kSizes), cluster_ctas);
  if (size == std::end(kSizes) || device < 0 || device >= kMaxDevices) return false;
  const Orders* orders = known[device].load(std::memory_order_acquire);
  if (!orders) return false;
  const Order& order = orders->of_size[size - kSizes];
  if (clusters > static_cast<int>(order.size())) return false;
  const int along = clusters / height;  // of a launch's tiles
  int k = 0;
  for (int cluster : order) {
    if (cluster >= clusters) continue;
    slots[cluster] = static_cast<uint8_t>(k < height * along ? k / along + k % along * height : k);
    ++k;
  }
  return true;
}

}  // namespace bwgemm::sm90
