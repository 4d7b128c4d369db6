#include "core/device.h"

#include <array>
#include <atomic>
#include <cstdint>
#include <string>

#include "core/cuda_status.h"

namespace bwgemm {

// Packed into one atomic per device, so that a call costs a load: sm_count << 16 | major << 8 |
// minor.
Status QueryDevice(int device, DeviceProperties* out) {
  static std::array<std::atomic<uint32_t>, kMaxDevices> cache{};
  if (device < 0 || device >= kMaxDevices) {
    return Status::InvalidArgument("device ordinal " + std::to_string(device) + " is outside [0, " +
                                   std::to_string(kMaxDevices) + ")");
  }
  uint32_t packed = cache[device].load(std::memory_order_relaxed);
  if (packed == 0) {
    int sms = 0, major = 0, minor = 0;
    BWGEMM_RETURN_IF_CUDA_ERROR(
        cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device));
    BWGEMM_RETURN_IF_CUDA_ERROR(
        cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    BWGEMM_RETURN_IF_CUDA_ERROR(
        cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
    packed = static_cast<uint32_t>(sms << 16 | major << 8 | minor);
    cache[device].store(packed, std::memory_order_relaxed);
  }
  *out = {static_cast<int>(packed >> 16), static_cast<int>(packed >> 8 & 0xff),
          static_cast<int>(packed & 0xff)};
  return Status::Ok();
}

Status CheckArch(std::string_view kernel, Arch arch, int device, const DeviceProperties& props) {
  const bool runs = arch == Arch::kSm90 ? props.major == 9 && props.minor == 0 : props.major == 10;
  if (runs) return Status::Ok();
  return Status::Unimplemented("kernel '" + std::string(kernel) + "' needs compute capability " +
                               (arch == Arch::kSm90 ? "9.0" : "10.x") + ", device " +
                               std::to_string(device) + " has " + std::to_string(props.major) +
                               "." + std::to_string(props.minor));
}

Status CheckCluster(int ctas, int sm_count) {
  if (ctas <= sm_count) return Status::Ok();
  return Status::InvalidArgument("a cluster of " + std::to_string(ctas) +
                                 " CTAs does not fit on a GPU of " + std::to_string(sm_count) +
                                 " multiprocessors");
}

Status DeviceScope::Enter(int device) {
  BWGEMM_RETURN_IF_CUDA_ERROR(cudaGetDevice(&previous_));
  if (previous_ == device) return Status::Ok();
  BWGEMM_RETURN_IF_CUDA_ERROR(cudaSetDevice(device));
  restore_ = true;
  return Status::Ok();
}

DeviceScope::~DeviceScope() {
  if (restore_) (void)cudaSetDevice(previous_);
}

}  // namespace bwgemm
