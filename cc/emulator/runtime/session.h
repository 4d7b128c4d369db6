// Process-wide state of the emulated runtime: settings, the launch in progress, and the last
// launch.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "emulator/machine/config.h"
#include "emulator/machine/machine.h"
#include "emulator/runtime/trace_recorder.h"

namespace bwgemm::emulator {

struct Settings {
  LaunchConfig launch;         // `trace` and `progress` are set per launch
  bool poison_outputs = true;  // fill results with NaN bit patterns before the kernel runs
  bool trace = false;
  uint64_t trace_limit = uint64_t{1} << 21;  // events
};

// What a finished launch leaves behind.
struct LaunchRecord {
  std::string kernel;
  Dim3 grid, block, cluster;
  uint64_t dynamic_shared = 0;
  uint64_t seed = 0;
  int sm_count = 0;
  double seconds = 0;
  LaunchResult result;
  std::shared_ptr<const TraceRecorder> trace;  // null when tracing was off
  Module* compiled_in = nullptr;               // the kernel's module if it was a compiled kernel
};

struct LaunchShape {
  Dim3 grid, block, cluster;
  size_t dynamic_shared = 0;
  bool cooperative = false;
  bool programmatic = false;  // it may start before the launch before it on its stream is over
  const void* stream = nullptr;
};

// The last launch, as long as nothing makes the next one wait for its end.
struct GridBefore {
  std::shared_ptr<Races> history;  // LaunchConfig::history
  const void* stream = nullptr;
};

class Session {
 public:
  static Session& Get();

  Settings settings();
  void set_settings(const Settings& settings);

  // Runs the kernel and records it. One launch runs at a time; others wait. `keep_going` (may be
  // null) is called now and then and stops the launch by returning false. `before`: of the same
  // caller; run_mutex() guards it.
  std::shared_ptr<const LaunchRecord> Run(GlobalMemory& memory, Module& module,
                                          const std::string& kernel,
                                          const std::vector<uint8_t>& params,
                                          const LaunchShape& shape, const Settings& settings,
                                          const std::function<bool()>& keep_going,
                                          GridBefore* before, Module* compiled_in = nullptr);

  std::shared_ptr<const LaunchRecord> last_launch();  // null before the first
  GridBefore& before_of_modules() { return before_of_modules_; }
  uint64_t launches() const { return launches_; }

  // Launches of compiled kernels that `module` has run its text instead; null: the compiled text.
  void set_substitute(std::shared_ptr<Module> module);
  std::shared_ptr<Module> SubstituteFor(const std::string& kernel);

  // Of the launch in progress: clusters finished and in its grid. 0 of 0 when none runs.
  struct Progress {
    uint64_t done = 0, total = 0;
  };
  Progress progress() const { return {done_, total_}; }

  // Guards modules (kernels are decoded on first use) and launches.
  std::mutex& run_mutex() { return run_mutex_; }
  // Locks it. Throws an Error in the thread of the launch in progress, as a signal handler of
  // Python is that runs while the launch asks for signals.
  std::unique_lock<std::mutex> LockRuns();

 private:
  std::mutex run_mutex_;
  std::atomic<std::thread::id> runner_{};  // the thread of the launch in progress
  std::mutex state_mutex_;
  Settings settings_;
  std::shared_ptr<const LaunchRecord> last_;
  GridBefore before_of_modules_;
  std::shared_ptr<Module> substitute_;
  std::atomic<uint64_t> launches_{0}, done_{0}, total_{0};
};

}  // namespace bwgemm::emulator
