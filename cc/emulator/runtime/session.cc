#include "emulator/runtime/session.h"

#include <algorithm>
#include <chrono>

#include "emulator/runtime/float_mode.h"

namespace bwgemm::emulator {

Session& Session::Get() {
  static Session session;
  return session;
}

Settings Session::settings() {
  std::lock_guard lock(state_mutex_);
  return settings_;
}

void Session::set_settings(const Settings& settings) {
  std::lock_guard lock(state_mutex_);
  settings_ = settings;
}

std::shared_ptr<const LaunchRecord> Session::last_launch() {
  std::lock_guard lock(state_mutex_);
  return last_;
}

void Session::set_substitute(std::shared_ptr<Module> module) {
  std::lock_guard lock(state_mutex_);
  substitute_ = std::move(module);
}

std::shared_ptr<Module> Session::SubstituteFor(const std::string& kernel) {
  std::lock_guard lock(state_mutex_);
  if (!substitute_) return nullptr;
  const std::vector<std::string> names = substitute_->kernels();
  return std::find(names.begin(), names.end(), kernel) == names.end() ? nullptr : substitute_;
}

std::unique_lock<std::mutex> Session::LockRuns() {
  if (runner_.load() == std::this_thread::get_id()) {
    throw Error(ErrorKind::kLaunch, 0,
                "the emulator runs a launch in this thread: a signal handler cannot use it");
  }
  return std::unique_lock(run_mutex_);
}

namespace {

// Notes the thread that runs a launch.
class Running {
 public:
  explicit Running(std::atomic<std::thread::id>* runner) : runner_(runner) {
    runner_->store(std::this_thread::get_id());
  }
  ~Running() { runner_->store({}); }

 private:
  std::atomic<std::thread::id>* runner_;
};

}  // namespace

std::shared_ptr<const LaunchRecord> Session::Run(GlobalMemory& memory, Module& module,
                                                 const std::string& kernel,
                                                 const std::vector<uint8_t>& params,
                                                 const LaunchShape& shape, const Settings& settings,
                                                 const std::function<bool()>& keep_going,
                                                 GridBefore* before, Module* compiled_in) {
  const FloatMode ieee;
  auto record = std::make_shared<LaunchRecord>();
  record->kernel = kernel;
  record->grid = shape.grid;
  record->block = shape.block;
  record->cluster = shape.cluster;
  record->dynamic_shared = shape.dynamic_shared;
  record->seed = settings.launch.seed;
  record->sm_count = settings.launch.sm_count;
  record->compiled_in = compiled_in;

  LaunchConfig config = settings.launch;
  config.cooperative = shape.cooperative;
  std::shared_ptr<TraceRecorder> trace;
  if (settings.trace) {
    trace = std::make_shared<TraceRecorder>(settings.trace_limit);
    config.trace = trace.get();
  }
  config.progress = [&](uint64_t done, uint64_t total) {
    done_ = done;
    total_ = total;
    return !keep_going || keep_going();
  };
  {
    const auto lock = LockRuns();
    const Running running(&runner_);
    if (!shape.programmatic || shape.stream != before->stream) before->history.reset();
    before->stream = shape.stream;
    config.history = &before->history;
    const auto start = std::chrono::steady_clock::now();
    record->result = launch(memory, module, kernel, params, shape.grid, shape.block, shape.cluster,
                            shape.dynamic_shared, config);
    record->seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    done_ = total_ = 0;
    ++launches_;
  }
  record->trace = std::move(trace);
  std::lock_guard lock(state_mutex_);
  last_ = record;
  return record;
}

}  // namespace bwgemm::emulator
