// The public face of the emulator: load a PTX text, register host memory, launch kernels.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "emulator/machine/config.h"
#include "emulator/machine/kernel.h"
#include "emulator/machine/memory.h"
#include "emulator/ptx/ast.h"

namespace bwgemm::emulator {

// A PTX text, its .global/.const variables (host memory, initialised), and its kernels, decoded on
// first use.
class Module {
 public:
  // Throws Error{kParse} on text that is not PTX. Instructions are checked when their kernel is
  // decoded.
  static std::unique_ptr<Module> load(std::string text);
  ~Module();

  std::vector<std::string> kernels() const;
  // Decodes on first use. Throws Error{kLaunch} for an unknown name, kParse/kUnsupported for what
  // is inside.
  const Kernel& kernel(std::string_view name);
  const ptx::Module& ast() const { return *ast_; }

  // Storage of a .global or .const variable; nullptr if there is none of that name.
  uint8_t* variable(std::string_view name, size_t* bytes = nullptr);
  // Makes the module's variables visible to kernels: launch() does, for as long as it runs, where
  // they are not visible already. True if they were not.
  bool register_variables(GlobalMemory& memory);
  void unregister_variables(GlobalMemory& memory);

 private:
  friend class KernelBuilder;
  Module() = default;
  struct Storage {
    std::vector<uint8_t> bytes;  // over-allocated for alignment
    uint8_t* data = nullptr;
    size_t size = 0;
    bool writable = true;
  };
  std::unique_ptr<ptx::Module> ast_;
  std::unordered_map<std::string_view, Storage> variables_;
  std::unordered_map<std::string_view, std::unique_ptr<Kernel>> kernels_;
};

// Runs the kernel to its end. `params`: the kernel's parameter block laid out as PTX says (each at
// its own alignment), exactly Kernel::param_bytes long. Never throws for what the kernel does or
// how it was launched: see LaunchResult.
LaunchResult launch(GlobalMemory& memory, Module& module, std::string_view kernel,
                    const std::vector<uint8_t>& params, Dim3 grid, Dim3 block, Dim3 cluster,
                    size_t dynamic_shared, const LaunchConfig& config);

// CTAs of this many threads and this much dynamic shared memory that one SM holds; 0 if it has no
// room for one.
uint32_t ctas_per_sm(const LaunchConfig& config, const Kernel& kernel, Dim3 block,
                     size_t dynamic_shared);

// The parameter block from separately passed arguments (cudaLaunchKernel's void**): copies each
// parameter from args[i].
// Throws an Error unless both take parameters of the same sizes: `text` is to run in the place of
// `compiled`.
void check_same_params(const Kernel& text, const Kernel& compiled);
std::vector<uint8_t> pack_params(const Kernel& kernel, const void* const* args);

}  // namespace bwgemm::emulator
