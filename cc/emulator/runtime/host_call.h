// The scope in which host code (CUTLASS, our launcher) runs against the emulated CUDA runtime.
#pragma once

#include <string>

#include "emulator/machine/memory.h"
#include "emulator/runtime/session.h"

namespace bwgemm::emulator {

// While one lives, kernels launched by this thread run on the emulator over `memory`. Without one,
// a launch is an error.
class HostCall {
 public:
  HostCall(GlobalMemory& memory, const Settings& settings, int device);
  ~HostCall();
  HostCall(const HostCall&) = delete;
  HostCall& operator=(const HostCall&) = delete;

  static HostCall* Current();

  GlobalMemory& memory() { return memory_; }
  const Settings& settings() const { return settings_; }
  int device() const { return device_; }
  void set_device(int device) { device_ = device; }

 private:
  GlobalMemory& memory_;
  Settings settings_;
  int device_;
  HostCall* previous_;
};

}  // namespace bwgemm::emulator
