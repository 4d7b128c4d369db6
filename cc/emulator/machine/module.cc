#include <algorithm>
#include <cstring>

#include "emulator/machine/kernel_builder.h"
#include "emulator/machine/launch.h"
#include "emulator/machine/machine.h"

namespace bwgemm::emulator {

std::unique_ptr<Module> Module::load(std::string text) {
  std::unique_ptr<Module> module(new Module);
  module->ast_ = ptx::parse(std::move(text));
  for (const ptx::Variable& v : module->ast_->variables) {
    if (v.space == ptx::Space::kShared || v.is_extern) continue;
    Storage& storage = module->variables_[v.name];
    const uint64_t align = std::max<uint64_t>(v.align, 16);
    storage.size = v.bytes;
    storage.writable = v.space != ptx::Space::kConst;
    storage.bytes.assign(v.bytes + align, 0);
    const uintptr_t raw = reinterpret_cast<uintptr_t>(storage.bytes.data());
    storage.data = storage.bytes.data() + ((align - raw % align) % align);
    std::copy(v.init.begin(), v.init.end(), storage.data);
  }
  for (const ptx::Variable& v : module->ast_->variables) {
    for (const auto& fixup : v.fixups) {
      const auto target = module->variables_.find(fixup.symbol);
      if (target == module->variables_.end()) {
        throw Error(
            ErrorKind::kUnsupported, v.line,
            format("line %d: initialiser of '%s' refers to '%s', which is not a global variable",
                   v.line, std::string(v.name).c_str(), std::string(fixup.symbol).c_str()));
      }
      const uint64_t value =
          reinterpret_cast<uintptr_t>(target->second.data) + static_cast<uint64_t>(fixup.addend);
      Storage& storage = module->variables_[v.name];
      if (fixup.offset + 8 <= storage.size) std::memcpy(storage.data + fixup.offset, &value, 8);
    }
  }
  return module;
}

Module::~Module() = default;

std::vector<std::string> Module::kernels() const {
  std::vector<std::string> names;
  for (const auto& f : ast_->functions) {
    if (f->is_entry) names.emplace_back(f->name);
  }
  return names;
}

const Kernel& Module::kernel(std::string_view name) {
  if (const auto it = kernels_.find(name); it != kernels_.end()) return *it->second;
  const auto it = ast_->function_index.find(name);
  if (it == ast_->function_index.end() || !it->second->is_entry) {
    throw Error(ErrorKind::kLaunch, 0, "the module has no kernel '" + std::string(name) + "'");
  }
  auto kernel = std::make_unique<Kernel>();
  KernelBuilder(*this, *kernel).build(*it->second);
  return *(kernels_[it->second->name] = std::move(kernel));
}

uint8_t* Module::variable(std::string_view name, size_t* bytes) {
  const auto it = variables_.find(name);
  if (it == variables_.end()) return nullptr;
  if (bytes != nullptr) *bytes = it->second.size;
  return it->second.data;
}

bool Module::register_variables(GlobalMemory& memory) {
  bool added = false;
  for (auto& [name, storage] : variables_) {
    if (storage.size == 0 || memory.holds(storage.data)) continue;
    memory.add(storage.data, storage.size, storage.writable, std::string(name));
    added = true;
  }
  return added;
}

void Module::unregister_variables(GlobalMemory& memory) {
  for (auto& [name, storage] : variables_) {
    if (storage.size > 0) memory.remove(storage.data);
  }
}

std::vector<uint8_t> pack_params(const Kernel& kernel, const void* const* args) {
  std::vector<uint8_t> bytes(kernel.param_bytes, 0);
  for (size_t i = 0; i < kernel.params.size(); ++i) {
    if (kernel.params[i].size > 0)
      std::memcpy(bytes.data() + kernel.params[i].offset, args[i], kernel.params[i].size);
  }
  return bytes;
}

LaunchResult launch(GlobalMemory& memory, Module& module, std::string_view kernel,
                    const std::vector<uint8_t>& params, Dim3 grid, Dim3 block, Dim3 cluster,
                    size_t dynamic_shared, const LaunchConfig& config) {
  LaunchResult result;
  bool registered = false;
  std::unique_ptr<Launch> run;
  try {
    const Kernel& decoded = module.kernel(kernel);
    registered = module.register_variables(memory);
    run = std::make_unique<Launch>(memory, decoded, config);
    run->run(grid, block, cluster, dynamic_shared, params);
  } catch (const Error& error) {
    result.ok = false;
    result.kind = error.kind;
    result.error = error.what();
    result.line = error.line;
    result.rule = error.rule;
  } catch (const std::bad_alloc&) {
    result.ok = false;
    result.kind = ErrorKind::kLaunch;
    result.error = "not enough memory for this launch";
  }
  if (run) {
    result.stats = std::move(run->stats());
    result.warnings = std::move(run->warnings());
  }
  if (registered) module.unregister_variables(memory);
  return result;
}

}  // namespace bwgemm::emulator
