#include "emulator/runtime/registry.h"

#include <algorithm>
#include <iterator>
#include <stdexcept>
#include <utility>

#include "emulator/runtime/fatbin.h"

namespace bwgemm::emulator {

namespace {

std::string OnlyPtx(const void* wrapper) {
  std::vector<PtxImage> images = ReadFatBinaryWrapper(wrapper);
  if (images.size() != 1) {
    throw std::runtime_error("the fat binary holds " + std::to_string(images.size()) +
                             " PTX images, the emulator needs exactly one: compile one "
                             "architecture per object, with its PTX (code=compute_...)");
  }
  return std::move(images[0].text);
}

}  // namespace

Module& FatModule::module() {
  {
    std::lock_guard lock(mutex_);
    if (module_) return *module_;
  }
  // Not under the lock: Python unpacks the PTX, and whoever has Python's lock may wait for ours.
  std::string fat_ptx = wrapper_ ? OnlyPtx(wrapper_) : std::string();
  std::lock_guard lock(mutex_);
  if (!module_) module_ = Module::load(wrapper_ ? std::move(fat_ptx) : ptx_);
  return *module_;
}

int FatModule::arch() {
  if (!wrapper_) return 0;
  int highest = 0;
  for (const PtxImage& image : ReadFatBinaryWrapper(wrapper_))
    highest = std::max(highest, image.arch);
  return highest;
}

Registry& Registry::Get() {
  // Never destroyed: the objects unregister from static destructors, in no order we control.
  static Registry* registry = new Registry;
  return *registry;
}

FatModule* Registry::AddFatBinary(const void* wrapper) {
  std::lock_guard lock(mutex_);
  fats_.push_back(std::make_unique<FatModule>(wrapper));
  return fats_.back().get();
}

void Registry::AddKernel(FatModule* fat, const void* host_function, const char* name) {
  auto kernel = std::make_unique<RegisteredKernel>();
  kernel->name = name;
  kernel->fat = fat;
  std::lock_guard lock(mutex_);
  by_host_function_[host_function] = std::move(kernel);
}

void Registry::AddVariable(FatModule* fat, const void* host_variable, const char* name) {
  std::lock_guard lock(mutex_);
  variables_[host_variable] = {name, fat};
}

const RegisteredVariable* Registry::FindVariable(const void* host_variable) {
  std::lock_guard lock(mutex_);
  const auto it = variables_.find(host_variable);
  return it == variables_.end() ? nullptr : &it->second;
}

int Registry::HighestArch() {
  std::vector<FatModule*> fats;
  {
    std::lock_guard lock(mutex_);
    for (const auto& fat : fats_) fats.push_back(fat.get());
  }
  int highest = 0;  // not under the lock, as in FatModule::module
  for (FatModule* fat : fats) highest = std::max(highest, fat->arch());
  return highest;
}

FatModule* Registry::AddLibrary(std::string ptx) {
  std::lock_guard lock(mutex_);
  fats_.push_back(std::make_unique<FatModule>(std::move(ptx)));
  return fats_.back().get();
}

bool Registry::RemoveLibrary(const FatModule* library) {
  std::lock_guard lock(mutex_);
  const auto found = std::find_if(fats_.begin(), fats_.end(),
                                  [&](const auto& fat) { return fat.get() == library; });
  if (found == fats_.end()) return false;
  for (auto it = by_host_function_.begin(); it != by_host_function_.end();) {
    it = it->second->fat == library ? by_host_function_.erase(it) : std::next(it);
  }
  fats_.erase(found);
  return true;
}

RegisteredKernel* Registry::AddLibraryKernel(FatModule* library, const std::string& name) {
  auto kernel = std::make_unique<RegisteredKernel>();
  kernel->name = name;
  kernel->fat = library;
  std::lock_guard lock(mutex_);
  RegisteredKernel* const handle = kernel.get();
  by_host_function_[handle] = std::move(kernel);  // its handle is all that is launched
  return handle;
}

RegisteredKernel* Registry::Find(const void* function_or_handle) {
  std::lock_guard lock(mutex_);
  if (auto it = by_host_function_.find(function_or_handle); it != by_host_function_.end()) {
    return it->second.get();
  }
  for (const auto& [host, kernel] : by_host_function_) {
    if (kernel.get() == function_or_handle) return kernel.get();
  }
  return nullptr;
}

std::vector<std::string> Registry::KernelNames() {
  std::lock_guard lock(mutex_);
  std::vector<std::string> names;
  for (const auto& [host, kernel] : by_host_function_) names.push_back(kernel->name);
  return names;
}

}  // namespace bwgemm::emulator
