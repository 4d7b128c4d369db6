// What calls need to know of a device, queried once.
#pragma once

#include <cuda_runtime_api.h>

#include <string_view>

#include "core/status.h"
#include "core/types.h"

namespace bwgemm {

inline constexpr int kMaxDevices = 64;  // of a process, by ordinal

struct DeviceProperties {
  int sm_count;
  int major;
  int minor;
};

// After the first time for a device, one atomic load.
Status QueryDevice(int device, DeviceProperties* out);

// Unimplemented unless kernels of that architecture run on the device.
Status CheckArch(std::string_view kernel, Arch arch, int device, const DeviceProperties& props);

// InvalidArgument unless a cluster of so many CTAs has a multiprocessor for each.
Status CheckCluster(int ctas, int sm_count);

// Makes `device` current for the scope, and restores what was.
class DeviceScope {
 public:
  Status Enter(int device);
  ~DeviceScope();

 private:
  int previous_ = 0;
  bool restore_ = false;
};

}  // namespace bwgemm
