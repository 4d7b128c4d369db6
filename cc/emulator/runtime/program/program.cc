#include "emulator/runtime/program/program.h"

#include <cxxabi.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>

#include "emulator/runtime/devices.h"
#include "emulator/runtime/registry.h"

namespace bwgemm::emulator {
namespace {

constexpr uint64_t kAlignment = 512;
constexpr size_t kWarnedLines = 3;  // shown of one rule and kernel
constexpr int kDefaultArch = 100;   // of a program without kernels

Settings EnvironmentSettings() {
  const char* text = std::getenv("BWGEMM_EMULATOR_SETTINGS");
  try {
    return ParseSettings(text == nullptr ? "" : text);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "emulator: BWGEMM_EMULATOR_SETTINGS: %s\n", e.what());
    std::exit(2);
  }
}

// The device is what the program was compiled for. A fat binary that cannot be read is reported
// when one of its kernels is launched.
int ProgramDevice(const Settings& settings) {
  int arch = 0;
  try {
    arch = Registry::Get().HighestArch();
  } catch (const std::exception&) {
  }
  if (arch == 0) arch = kDefaultArch;
  return DeviceOrdinal({arch / 10, arch % 10, settings.launch.sm_count});
}

// A kernel's name as its source has it, the start of it where templates make it long.
std::string SourceName(const std::string& mangled) {
  constexpr size_t kLongest = 100;
  char* const plain = abi::__cxa_demangle(mangled.c_str(), nullptr, nullptr, nullptr);
  std::string name = plain != nullptr ? plain : mangled;
  std::free(plain);
  if (name.size() > kLongest) name = name.substr(0, kLongest) + "...";
  return name;
}

// For the command line, which turns an exit code of 0 into 1.
void WriteFault(const std::string& text) {
  const char* path = std::getenv("BWGEMM_EMULATOR_FAULTS");
  std::FILE* file = path != nullptr ? std::fopen(path, "a") : nullptr;
  if (file == nullptr) return;
  std::fprintf(file, "%s\n", text.c_str());
  std::fclose(file);
}

HostCall* ProgramCall() { return &Program::Get(); }

[[gnu::constructor]] void MakeDefault() { HostCall::SetDefault(&ProgramCall); }

}  // namespace

Program& Program::Get() {
  // Never destroyed: static destructors of the program may free memory.
  static Program* const program = new Program;
  return *program;
}

Program::Program() : Program(EnvironmentSettings()) {}

Program::Program(const Settings& settings)
    : HostCall(Default(), memory_, settings, ProgramDevice(settings)) {
  Session::Get().set_settings(settings);
}

void Program::Finished(const LaunchRecord& record) {
  std::fflush(stdout);
  std::lock_guard lock(Session::Get().run_mutex());
  for (const Warning& w : record.result.warnings) {
    std::set<int>& lines = warned_[{record.kernel, w.rule}];
    if (!lines.insert(w.line).second || lines.size() > kWarnedLines) continue;
    std::fprintf(stderr, "emulator: warning: %s: %s%s\n", SourceName(record.kernel).c_str(),
                 w.text.c_str(),
                 lines.size() == kWarnedLines ? " (other lines of this kernel are not shown)" : "");
  }
  if (record.result.ok) return;
  const std::string text = SourceName(record.kernel) + ": " + record.result.error;
  std::fprintf(stderr, "emulator: %s\n", text.c_str());
  // A refused launch is for the program to handle.
  if (record.result.kind != ErrorKind::kLaunch) WriteFault(text);
}

void Program::Failed(const std::string& text, bool launch) {
  static constexpr char kOwn[] = "emulator: ";  // others are the program's to handle
  if (text.rfind(kOwn, 0) != 0) return;
  std::lock_guard lock(failed_mutex_);
  if (!failed_.insert(text).second) return;
  std::fflush(stdout);
  std::fprintf(stderr, "%s\n", text.c_str());
  if (launch) WriteFault(text.substr(sizeof kOwn - 1));
}

uint64_t Program::TotalBytes() {
  return static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) *
         static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

void* Program::Allocate(uint64_t bytes, Kind kind) {
  if (bytes > TotalBytes()) return nullptr;
  const uint64_t rounded = std::max((bytes + kAlignment - 1) / kAlignment, uint64_t{1});
  void* pointer = std::aligned_alloc(kAlignment, rounded * kAlignment);
  if (pointer == nullptr) return nullptr;
  std::memset(pointer, 0xFF, bytes);
  std::lock_guard lock(Session::Get().run_mutex());
  const std::string name =
      "allocation " + std::to_string(++allocated_) + " of " + std::to_string(bytes) + " bytes";
  memory_.add(pointer, bytes, /*writable=*/true, name);
  allocations_[reinterpret_cast<uint64_t>(pointer)] = {bytes, kind};
  return pointer;
}

bool Program::Free(void* pointer, Kind kind) {
  {
    std::lock_guard lock(Session::Get().run_mutex());
    const auto at = allocations_.find(reinterpret_cast<uint64_t>(pointer));
    if (at == allocations_.end()) return false;
    const Kind found = at->second.kind == Kind::kManaged ? Kind::kDevice : at->second.kind;
    if (found != kind) return false;
    memory_.remove(pointer);
    allocations_.erase(at);
  }
  if (kind != Kind::kRegistered) std::free(pointer);
  return true;
}

bool Program::Register(void* pointer, uint64_t bytes) {
  std::lock_guard lock(Session::Get().run_mutex());
  try {
    memory_.add(pointer, bytes, /*writable=*/true, "registered host memory");
  } catch (const Error&) {
    return false;  // overlaps
  }
  allocations_[reinterpret_cast<uint64_t>(pointer)] = {bytes, Kind::kRegistered};
  return true;
}

const Program::Allocation* Program::Find(const void* pointer, const void** base) {
  std::lock_guard lock(Session::Get().run_mutex());
  const uint64_t address = reinterpret_cast<uint64_t>(pointer);
  auto at = allocations_.upper_bound(address);
  if (at == allocations_.begin()) return nullptr;
  --at;
  if (address - at->first >= at->second.bytes) return nullptr;
  if (base != nullptr) *base = reinterpret_cast<const void*>(at->first);
  return &at->second;
}

bool Program::Visible(const void* pointer, uint64_t bytes) {
  std::lock_guard lock(Session::Get().run_mutex());
  return memory_.find(reinterpret_cast<uint64_t>(pointer), bytes, /*write=*/false) != nullptr;
}

std::string Program::Describe(const void* pointer) {
  std::lock_guard lock(Session::Get().run_mutex());
  return memory_.describe(reinterpret_cast<uint64_t>(pointer));
}

void Program::ShowVariables(Module& module) {
  std::lock_guard lock(Session::Get().run_mutex());
  module.register_variables(memory_);
}

}  // namespace bwgemm::emulator
