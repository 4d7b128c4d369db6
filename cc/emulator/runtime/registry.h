// The kernels that the objects linked into this library registered: host function -> PTX module and
// kernel name.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "emulator/machine/machine.h"

namespace bwgemm::emulator {

// One registered fat binary, or PTX that was loaded as a library. It is found and parsed when one
// of its kernels is first used, because registration runs in static constructors, where an error
// could not be reported.
class FatModule {
 public:
  explicit FatModule(const void* wrapper) : wrapper_(wrapper) {}
  explicit FatModule(std::string ptx) : wrapper_(nullptr), ptx_(std::move(ptx)) {}

  // Throws std::runtime_error (fat binary) or Error (PTX).
  Module& module();

 private:
  const void* wrapper_;  // null: the text is ptx_
  std::string ptx_;
  std::mutex mutex_;
  std::unique_ptr<Module> module_;
};

struct RegisteredKernel {
  std::string name;  // mangled, as in the PTX
  FatModule* fat = nullptr;
  int max_dynamic_shared = 48 * 1024;  // raised by cudaFuncSetAttribute
};

class Registry {
 public:
  static Registry& Get();

  FatModule* AddFatBinary(const void* wrapper);
  void AddKernel(FatModule* fat, const void* host_function, const char* name);

  // A library of PTX, and one of its kernels.
  FatModule* AddLibrary(std::string ptx);
  RegisteredKernel* AddLibraryKernel(FatModule* library, const std::string& name);

  // Takes a host function or a kernel handle (a RegisteredKernel*); null if it is neither.
  RegisteredKernel* Find(const void* function_or_handle);

  std::vector<std::string> KernelNames();

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<FatModule>> fats_;
  std::unordered_map<const void*, std::unique_ptr<RegisteredKernel>> by_host_function_;
};

}  // namespace bwgemm::emulator
