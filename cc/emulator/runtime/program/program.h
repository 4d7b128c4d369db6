// The process of a whole program that was linked against the emulated CUDA runtime: its device, its
// memory, its settings from the environment, and what is printed for its user.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "emulator/runtime/host_call.h"

namespace bwgemm::emulator {

class Program final : public HostCall {
 public:
  static Program& Get();

  // Warnings of a launch go to standard error, a few of each rule and kernel; errors always. Errors
  // other than wrong arguments of a launch are also appended to the file that
  // BWGEMM_EMULATOR_FAULTS names.
  void Finished(const LaunchRecord& record) override;
  // Says what the emulator lacks, each once. A kernel that does not run for it is a fault.
  void Failed(const std::string& text, bool launch) override;
  bool faults_stand() const override { return true; }

  // --- Memory. A device sees what cudaMalloc and its kin gave out, and registered host memory.
  enum class Kind : uint8_t { kDevice, kManaged, kHost, kRegistered };
  struct Allocation {
    uint64_t bytes = 0;
    Kind kind = Kind::kDevice;
  };
  static uint64_t TotalBytes();  // of this machine
  // Aligned as cudaMalloc aligns, filled with NaN bit patterns; null if there is no memory left.
  void* Allocate(uint64_t bytes, Kind kind);
  // False if no allocation of that kind (kDevice: managed too) starts there.
  bool Free(void* pointer, Kind kind);
  // Makes host memory visible; false if a part of it is.
  bool Register(void* pointer, uint64_t bytes);
  // The allocation around an address; null if there is none.
  const Allocation* Find(const void* pointer, const void** base = nullptr);
  // Whether all of [pointer, pointer + bytes) is the device's, variables of modules included.
  bool Visible(const void* pointer, uint64_t bytes);
  std::string Describe(const void* pointer);
  // Makes the variables of a module visible for good.
  void ShowVariables(Module& module);

 private:
  Program();
  explicit Program(const Settings& settings);

  GlobalMemory memory_;
  std::map<uint64_t, Allocation> allocations_;  // by address; Session::run_mutex() guards both
  uint64_t allocated_ = 0;                      // allocations so far
  std::map<std::pair<std::string, Rule>, std::set<int>> warned_;  // lines
  std::mutex failed_mutex_;
  std::set<std::string> failed_;  // texts that have been printed
};

// Settings as the environment variable BWGEMM_EMULATOR_SETTINGS has them: "name=value" with commas
// in between; rules as "rule:NAME=SEVERITY". Throws std::invalid_argument.
Settings ParseSettings(const std::string& text);

}  // namespace bwgemm::emulator
