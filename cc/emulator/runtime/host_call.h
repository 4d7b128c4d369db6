// The scope in which host code (CUTLASS, our launcher) runs against the emulated CUDA runtime.
#pragma once

#include <string>

#include "emulator/machine/memory.h"
#include "emulator/runtime/session.h"

namespace bwgemm::emulator {

// While one lives, kernels launched by this thread run on the emulator over `memory`. Without one,
// a launch is an error, except where a default is set (program/program.h).
class HostCall {
 public:
  HostCall(GlobalMemory& memory, const Settings& settings, int device);
  virtual ~HostCall();
  HostCall(const HostCall&) = delete;
  HostCall& operator=(const HostCall&) = delete;

  static HostCall* Current();
  // What Current() is on threads without a call of their own; called whenever it is needed.
  static void SetDefault(HostCall* (*call)());

  // Told of each launch that has ended, good or bad.
  virtual void Finished(const LaunchRecord&) {}
  // Told of each call of the runtime that fails; `launch`: a kernel does not run because of it.
  virtual void Failed(const std::string& text, bool launch) {
    static_cast<void>(text), static_cast<void>(launch);
  }
  // Whether a fault of a kernel is the error of every later call, as a program sees it.
  virtual bool faults_stand() const { return false; }

  // The last launch: Session::run_mutex() guards it.
  GridBefore& before() { return before_; }
  // Work between launches, or a wait of the host: the next launch starts when all before are over.
  static void EndLaunches();

  GlobalMemory& memory() { return memory_; }
  const Settings& settings() const { return settings_; }
  int device() const { return device_; }
  void set_device(int device) { device_ = device; }

 protected:
  // Of no thread: for the default.
  struct Default {};
  HostCall(Default, GlobalMemory& memory, const Settings& settings, int device);

 private:
  GlobalMemory& memory_;
  Settings settings_;
  int device_;
  bool scoped_;
  HostCall* previous_;
  GridBefore before_;
};

}  // namespace bwgemm::emulator
