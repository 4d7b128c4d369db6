#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <optional>
#include <system_error>
#include <thread>
#include <vector>

#include "emulator/machine/kernel_builder.h"
#include "emulator/machine/launch.h"
#include "emulator/machine/machine.h"

namespace bwgemm::emulator {
namespace {

// Of all variables of a module: a short text may declare many.
constexpr uint64_t kMaxModuleBytes = uint64_t{4} << 30;

bool IsStored(const ptx::Variable& v) { return v.space != ptx::Space::kShared && !v.is_extern; }

uint64_t AlignmentOf(const ptx::Variable& v) { return std::max<uint64_t>(v.align, 16); }

// Ahead of allocating any of them.
void CheckBytes(const std::vector<ptx::Variable>& variables) {
  uint64_t total = 0;
  for (const ptx::Variable& v : variables) {
    if (!IsStored(v)) continue;
    total += v.bytes + AlignmentOf(v);
    if (total > kMaxModuleBytes) {
      throw Error(ErrorKind::kUnsupported, v.line,
                  format("line %d: the variables of a module take more than %llu bytes", v.line,
                         static_cast<unsigned long long>(kMaxModuleBytes)));
    }
  }
}

}  // namespace

std::unique_ptr<Module> Module::load(std::string text) {
  std::unique_ptr<Module> module(new Module);
  module->ast_ = ptx::parse(std::move(text));
  CheckBytes(module->ast_->variables);
  for (const ptx::Variable& v : module->ast_->variables) {
    if (!IsStored(v)) continue;
    Storage& storage = module->variables_[v.name];
    const uint64_t align = AlignmentOf(v);
    storage.size = v.bytes;
    storage.writable = v.space != ptx::Space::kConst;
    storage.bytes.assign(v.bytes + align, 0);
    const uintptr_t raw = reinterpret_cast<uintptr_t>(storage.bytes.data());
    storage.data = storage.bytes.data() + ((align - raw % align) % align);
    std::copy(v.init.begin(), v.init.end(), storage.data);
  }
  for (const ptx::Variable& v : module->ast_->variables) {
    for (const auto& fixup : v.fixups) {
      Storage& storage = module->variables_[v.name];
      uint64_t value = static_cast<uint64_t>(fixup.addend);
      if (const auto target = module->variables_.find(fixup.symbol);
          target != module->variables_.end()) {
        value += reinterpret_cast<uintptr_t>(target->second.data);
      } else if (const auto function = module->ast_->function_index.find(fixup.symbol);
                 function != module->ast_->function_index.end()) {
        value += function_address(*function->second);
      } else if (module->ast_->variable_index.count(fixup.symbol) != 0) {
        value = kFunctionWindow;  // declared but not defined: whoever follows it is told so
      } else {
        throw Error(ErrorKind::kUnsupported, v.line,
                    format("line %d: initialiser of '%s' refers to '%s', which is neither a "
                           "global variable nor a function",
                           v.line, std::string(v.name).c_str(), std::string(fixup.symbol).c_str()));
      }
      size_t bytes = 8;
      if (fixup.mask_byte >= 0) {
        value >>= 8 * fixup.mask_byte;
        bytes = 1;
      }
      if (fixup.offset + bytes <= storage.size)
        std::memcpy(storage.data + fixup.offset, &value, bytes);
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

void check_same_params(const Kernel& text, const Kernel& compiled) {
  const auto same = [](const KernelParam& a, const KernelParam& b) {
    return a.size == b.size && a.offset == b.offset;
  };
  if (std::equal(text.params.begin(), text.params.end(), compiled.params.begin(),
                 compiled.params.end(), same)) {
    return;
  }
  throw Error(ErrorKind::kLaunch, 0,
              format("kernel '%s' of the text has %zu parameters of %u bytes, the compiled one %zu "
                     "of %u: they must have the same sizes",
                     text.name.c_str(), text.params.size(), text.param_bytes,
                     compiled.params.size(), compiled.param_bytes));
}

std::vector<uint8_t> pack_params(const Kernel& kernel, const void* const* args) {
  std::vector<uint8_t> bytes(kernel.param_bytes, 0);
  for (size_t i = 0; i < kernel.params.size(); ++i) {
    if (kernel.params[i].size > 0)
      std::memcpy(bytes.data() + kernel.params[i].offset, args[i], kernel.params[i].size);
  }
  return bytes;
}

namespace {

uint32_t workers_of(const LaunchConfig& config, Dim3 grid, Dim3 cluster) {
  const uint64_t size = cluster.count();
  if (config.threads <= 1 || config.trace != nullptr || size == 0 || config.sm_count < 1) return 1;
  const uint64_t room = static_cast<uint64_t>(config.sm_count) / size;
  return static_cast<uint32_t>(std::max<uint64_t>(
      1, std::min({static_cast<uint64_t>(config.threads), room, grid.count() / size})));
}

void add(Stats& sum, const Stats& s) {
  sum.instructions += s.instructions;
  sum.thread_instructions += s.thread_instructions;
  sum.ticks = std::max(sum.ticks, s.ticks);
  sum.ctas += s.ctas;
  sum.clusters_cancelled += s.clusters_cancelled;
  sum.mma_instructions += s.mma_instructions;
  sum.mma_flops += s.mma_flops;
  sum.tma_loads += s.tma_loads;
  sum.tma_load_bytes += s.tma_load_bytes;
  sum.tma_store_bytes += s.tma_store_bytes;
  sum.global_load_bytes += s.global_load_bytes;
  sum.global_store_bytes += s.global_store_bytes;
  sum.async_operations += s.async_operations;
  if (sum.warps.size() < s.warps.size()) sum.warps.resize(s.warps.size());
  for (size_t i = 0; i < s.warps.size(); ++i) {
    sum.warps[i].instructions += s.warps[i].instructions;
    sum.warps[i].waits += s.warps[i].waits;
    sum.warps[i].wait_ticks += s.warps[i].wait_ticks;
    sum.warps[i].mma += s.warps[i].mma;
    sum.warps[i].tma += s.warps[i].tma;
  }
}

void add(std::vector<Warning>& all, std::vector<Warning>&& more) {
  for (Warning& warning : more) {
    const auto known = std::find_if(all.begin(), all.end(), [&](const Warning& w) {
      return w.rule == warning.rule && w.line == warning.line;
    });
    if (known == all.end()) {
      all.push_back(std::move(warning));
    } else {
      known->count += warning.count;
    }
  }
}

// As cooperative groups expect it: its size, then the grid's barrier.
struct alignas(16) GridWorkspace {
  uint32_t bytes = sizeof(GridWorkspace);
  uint32_t barrier[3] = {0, 0, 0};
};

// One worker's part of a launch. Its memory is a copy of the list of ranges, which remembers the
// last one found.
struct Part {
  GlobalMemory memory;
  std::unique_ptr<Launch> launch;
  std::optional<Error> error;
  std::exception_ptr other;  // from a callback

  // Nothing that `body` throws leaves.
  template <class Body>
  void guard(Grid& grid, const Body& body) {
    try {
      body();
    } catch (const Error& e) {
      error = e;
    } catch (const Stopped&) {
    } catch (const std::bad_alloc&) {
      error = Error(ErrorKind::kLaunch, 0, "not enough memory for this launch");
    } catch (const std::system_error& e) {
      error = Error(ErrorKind::kLaunch, 0, format("no thread for this launch: %s", e.what()));
    } catch (...) {
      other = std::current_exception();
    }
    if (error || other) grid.stopped = true;
  }
};

}  // namespace

LaunchResult launch(GlobalMemory& memory, Module& module, std::string_view kernel,
                    const std::vector<uint8_t>& params, Dim3 grid, Dim3 block, Dim3 cluster,
                    size_t dynamic_shared, const LaunchConfig& config) {
  LaunchResult result;
  Grid clusters(workers_of(config, grid, cluster));
  GridWorkspace workspace;
  std::vector<Part> parts(clusters.workers);
  bool registered = false;
  const bool keeps_history = config.history != nullptr && config.races && clusters.workers == 1;
  std::shared_ptr<Races> before;
  if (config.history != nullptr) before = std::move(*config.history);
  if (!keeps_history) before.reset();
  parts[0].guard(clusters, [&] {
    const Kernel& decoded = module.kernel(kernel);
    registered = module.register_variables(memory);
    if (config.cooperative)
      memory.add(&workspace, sizeof workspace, /*writable=*/true, "workspace of the grid");
    for (Part& part : parts) part.memory = memory;
    const auto work = [&](uint32_t i) {
      parts[i].guard(clusters, [&] {
        LaunchConfig own = config;
        own.threads = static_cast<int>(clusters.workers);
        if (config.cooperative) own.grid_workspace = reinterpret_cast<uintptr_t>(&workspace);
        if (i > 0) own.progress = nullptr;  // the caller's thread alone calls it
        parts[i].launch = std::make_unique<Launch>(parts[i].memory, decoded, own, clusters, i);
        if (before) parts[i].launch->races().follow(std::move(*before));
        parts[i].launch->run(grid, block, cluster, dynamic_shared, params);
      });
      --clusters.running;
    };
    // They begin with the rounding and denormal modes of this one.
    std::vector<std::thread> threads;
    parts[0].guard(clusters, [&] {
      for (uint32_t i = 1; i < clusters.workers; ++i) threads.emplace_back(work, i);
    });
    work(0);
    parts[0].guard(clusters, [&] {
      while (clusters.running > clusters.workers - 1 - threads.size()) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        if (clusters.stopped || !config.progress) continue;
        if (!config.progress(clusters.finished_clusters, grid.count() / cluster.count()))
          throw Error(ErrorKind::kLaunch, 0, "launch stopped by its progress callback");
      }
    });
    for (std::thread& thread : threads) thread.join();
  });
  if (registered) module.unregister_variables(memory);
  if (memory.holds(&workspace)) memory.remove(&workspace);
  for (Part& part : parts) {
    if (part.other) std::rethrow_exception(part.other);
    if (part.error && result.ok) {
      result.ok = false;
      result.kind = part.error->kind;
      result.error = part.error->what();
      result.line = part.error->line;
      result.rule = part.error->rule;
    }
    if (!part.launch) continue;
    add(result.stats, part.launch->stats());
    add(result.warnings, std::move(part.launch->warnings()));
  }
  if (keeps_history && result.ok)
    *config.history = std::make_shared<Races>(std::move(parts[0].launch->races()));
  return result;
}

}  // namespace bwgemm::emulator
