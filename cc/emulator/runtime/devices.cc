#include "emulator/runtime/devices.h"

#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

namespace bwgemm::emulator {
namespace {

std::mutex mutex;

std::vector<Device>& Devices() {
  static std::vector<Device> devices;
  return devices;
}

}  // namespace

int DeviceOrdinal(const Device& device) {
  std::lock_guard lock(mutex);
  std::vector<Device>& devices = Devices();
  for (size_t i = 0; i < devices.size(); ++i) {
    const Device& d = devices[i];
    if (d.major == device.major && d.minor == device.minor && d.sm_count == device.sm_count) {
      return static_cast<int>(i);
    }
  }
  if (devices.size() == kMaxDevices) {
    throw std::runtime_error("one process can emulate " + std::to_string(kMaxDevices) +
                             " different devices (architecture and SM count), this is one more");
  }
  devices.push_back(device);
  return static_cast<int>(devices.size()) - 1;
}

std::optional<Device> FindDevice(int ordinal) {
  std::lock_guard lock(mutex);
  const std::vector<Device>& devices = Devices();
  if (ordinal < 0 || ordinal >= static_cast<int>(devices.size())) return std::nullopt;
  return devices[ordinal];
}

int DeviceCount() {
  std::lock_guard lock(mutex);
  return static_cast<int>(Devices().size());
}

}  // namespace bwgemm::emulator
