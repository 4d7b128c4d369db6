// The emulated devices. Ordinals are handed out on demand, one per (compute capability, SM count),
// so that code which caches what it asked about a device stays right when the configuration
// changes.
#pragma once

#include <optional>

namespace bwgemm::emulator {

struct Device {
  int major = 0, minor = 0;  // compute capability
  int sm_count = 0;
};

inline constexpr int kMaxDevices = 64;

// Throws std::runtime_error after kMaxDevices different devices.
int DeviceOrdinal(const Device& device);
std::optional<Device> FindDevice(int ordinal);
int DeviceCount();

}  // namespace bwgemm::emulator
