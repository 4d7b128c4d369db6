// The kernels that the objects linked into this library registered: host function -> PTX module and
// kernel name.
#pragma once

#include <atomic>
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

  // The highest architecture of the PTX in a fat binary, e.g. 90; 0 for a library. Throws like
  // module().
  int arch();

 private:
  const void* wrapper_;  // null: the text is ptx_
  std::string ptx_;
  std::mutex mutex_;
  std::unique_ptr<Module> module_;
};

// A variable of a module, as its host code names it.
struct RegisteredVariable {
  std::string name;  // mangled, as in the PTX
  FatModule* fat = nullptr;
};

struct RegisteredKernel {
  std::string name;  // mangled, as in the PTX
  FatModule* fat = nullptr;
  std::atomic<int> max_dynamic_shared{48 * 1024};  // raised by cudaFuncSetAttribute
};

class Registry {
 public:
  static Registry& Get();

  FatModule* AddFatBinary(const void* wrapper);
  void AddKernel(FatModule* fat, const void* host_function, const char* name);
  void AddVariable(FatModule* fat, const void* host_variable, const char* name);

  // A library of PTX, and one of its kernels. Removing a library removes its kernels.
  FatModule* AddLibrary(std::string ptx);
  bool RemoveLibrary(const FatModule* library);
  RegisteredKernel* AddLibraryKernel(FatModule* library, const std::string& name);

  // Takes a host function or a kernel handle (a RegisteredKernel*); null if it is neither.
  RegisteredKernel* Find(const void* function_or_handle);

  // Null if the host variable stands for none.
  const RegisteredVariable* FindVariable(const void* host_variable);

  std::vector<std::string> KernelNames();

  // The highest architecture of all fat binaries, 0 if there are none. Throws like
  // FatModule::module().
  int HighestArch();

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<FatModule>> fats_;
  std::unordered_map<const void*, std::unique_ptr<RegisteredKernel>> by_host_function_;
  std::unordered_map<const void*, RegisteredVariable> variables_;
};

}  // namespace bwgemm::emulator
