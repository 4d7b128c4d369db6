#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <vector>

#include "core/capture_scope.h"
#include "core/cuda_status.h"
#include "core/launch.h"
#include "sm90/gpc.h"
#include "sm90/gpc_order.h"
#include "sm90/gpc_probe.h"

namespace bwgemm::sm90 {
namespace {

constexpr int kMaxSms = kMaxPlacedClusters;
constexpr int kLaunches = 18;
constexpr int kProbeShared = 200 * 1024;  // more than half: one CTA a multiprocessor

// Multiprocessor of each CTA of each launch.
__device__ int probed[kLaunches][kMaxSms];

// Stays long enough for every CTA to start, so that no two are on the same multiprocessor.
__global__ void ProbeKernel(int launch) {
  constexpr int kCycles = 20000;
  int sm;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
  probed[launch][blockIdx.x] = sm;
  const long long start = clock64();
  while (clock64() - start < kCycles) {
  }
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

struct Stream {
  cudaStream_t handle = nullptr;
  ~Stream() {
    if (handle) (void)cudaStreamDestroy(handle);
  }
};

}  // namespace

// The CTAs of a cluster run in one GPC. So multiprocessors that have had CTAs of one cluster share
// a GPC, whatever else the GPU computes meanwhile.
Status ProbeMultiprocessors(int device, std::vector<int>* gpc_of_sm) {
  gpc_of_sm->clear();
  int count = 0;
  BWGEMM_RETURN_IF_CUDA_ERROR(
      cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
  if (count > kMaxSms) return Status::Ok();
  const CaptureScope scope;
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
    const LaunchShape shape{dim3(count / size * size), dim3(size), dim3(1), kProbeShared};
    BWGEMM_RETURN_IF_ERROR(LaunchClusters(kernel, i, shape, stream.handle));
  }
  static int sm_of[kLaunches][kMaxSms];  // one thread at a time
  BWGEMM_RETURN_IF_CUDA_ERROR(cudaMemcpyFromSymbolAsync(sm_of, probed, sizeof(sm_of), 0,
                                                        cudaMemcpyDeviceToHost, stream.handle));
  BWGEMM_RETURN_IF_CUDA_ERROR(cudaStreamSynchronize(stream.handle));

  Gpcs gpcs;
  for (int i = 0; i < kLaunches; ++i) {
    const int size = sizes[i % 3];
    for (int cta = 0; cta < count / size * size; ++cta) {
      if (sm_of[i][cta] < 0 || sm_of[i][cta] >= count) return Status::Ok();
      gpcs.Join(sm_of[i][cta], sm_of[i][cta / size * size]);
    }
  }
  for (int sm = 0; sm + 1 < count; sm += 2) gpcs.Join(sm, sm + 1);  // a TPC is two
  for (int sm = 0; sm < count; ++sm) gpc_of_sm->push_back(gpcs.Of(sm));
  return Status::Ok();
}

}  // namespace bwgemm::sm90
