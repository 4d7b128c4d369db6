// The CUDA runtime as the emulator implements it: the symbols that the kernel objects and our host
// code use, and no others, so that a new dependency shows as an undefined symbol when the module is
// linked. Everything is synchronous: a launch returns when the kernel has finished. All symbols
// stay hidden in the emulator's own module; the real runtime may live in the same process.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <string>
#include <utility>

#include "emulator/machine/machine.h"
#include "emulator/runtime/call_error.h"
#include "emulator/runtime/devices.h"
#include "emulator/runtime/driver_functions.h"
#include "emulator/runtime/host_call.h"
#include "emulator/runtime/registry.h"

using bwgemm::emulator::Fail;
using bwgemm::emulator::HostCall;
using bwgemm::emulator::RegisteredKernel;
using bwgemm::emulator::Registry;

namespace {

// The launch that `kernel<<<...>>>` pushes before it calls the kernel's stub.
struct CallConfiguration {
  dim3 grid, block;
  size_t shared = 0;
  cudaStream_t stream = nullptr;
};
thread_local CallConfiguration pushed;

// What compute capability 9.0 and 10.0 have in common.
constexpr std::pair<cudaDeviceAttr, int> kLimits[] = {
    {cudaDevAttrMaxThreadsPerBlock, 1024},
    {cudaDevAttrMaxBlockDimX, 1024},
    {cudaDevAttrMaxBlockDimY, 1024},
    {cudaDevAttrMaxBlockDimZ, 64},
    {cudaDevAttrMaxGridDimX, 0x7FFFFFFF},
    {cudaDevAttrMaxGridDimY, 65535},
    {cudaDevAttrMaxGridDimZ, 65535},
    {cudaDevAttrMaxSharedMemoryPerBlock, 48 * 1024},
    {cudaDevAttrReservedSharedMemoryPerBlock, 1024},
    {cudaDevAttrTotalConstantMemory, 64 * 1024},
    {cudaDevAttrMaxRegistersPerBlock, 65536},
    {cudaDevAttrMaxRegistersPerMultiprocessor, 65536},
    {cudaDevAttrWarpSize, 32},
    {cudaDevAttrMaxThreadsPerMultiProcessor, 2048},
    {cudaDevAttrMaxBlocksPerMultiprocessor, 32},
    {cudaDevAttrL2CacheSize, 50 << 20},
    {cudaDevAttrUnifiedAddressing, 1},
    {cudaDevAttrManagedMemory, 1},
    {cudaDevAttrCooperativeLaunch, 1},
    {cudaDevAttrClusterLaunch, 1},
};

bwgemm::emulator::Dim3 ToDim3(dim3 d) { return {d.x, d.y, d.z}; }

// What the attributes of a launch ask for.
struct LaunchOptions {
  dim3 cluster{0, 0, 0};    // 0: not named
  dim3 preferred{0, 0, 0};  // cluster that the machine may take instead
  bool cooperative = false;
  bool programmatic = false;  // may start before the kernel ahead of it on the stream is over
  cudaStream_t stream = nullptr;
};

bool divides(dim3 cluster, dim3 grid) {
  return grid.x % cluster.x == 0 && grid.y % cluster.y == 0 && grid.z % cluster.z == 0;
}

// The cluster of a launch. The machine may use the preferred one or not: odd seeds do, where the
// whole grid can have it.
bwgemm::emulator::Dim3 ClusterOf(const LaunchOptions& options, dim3 grid,
                                 const bwgemm::emulator::Kernel& kernel,
                                 const bwgemm::emulator::LaunchConfig& config) {
  const bwgemm::emulator::Dim3 preferred = ToDim3(options.preferred);
  if (preferred.count() > 0 && config.seed % 2 == 1 && divides(options.preferred, grid) &&
      preferred.count() <= static_cast<uint64_t>(config.sm_count)) {
    return preferred;
  }
  if (options.cluster.x > 0) return ToDim3(options.cluster);
  if (kernel.required_cluster[0] > 0) {
    return {static_cast<uint32_t>(kernel.required_cluster[0]),
            static_cast<uint32_t>(kernel.required_cluster[1]),
            static_cast<uint32_t>(kernel.required_cluster[2])};
  }
  return {1, 1, 1};
}

// A kernel that cannot be read.
std::string Refused(const std::string& kernel, const std::exception& why) {
  return "emulator: kernel '" + kernel + "' cannot be run: " + why.what();
}

cudaError_t Launch(const void* function, dim3 grid, dim3 block, const LaunchOptions& options,
                   size_t shared, void** args) {
  namespace emu = bwgemm::emulator;
  HostCall* call = HostCall::Current();
  if (!call) {
    return Fail(cudaErrorNotPermitted, "a kernel was launched outside of an emulated call");
  }
  if (const cudaError_t standing = emu::StandingError(); standing != cudaSuccess) return standing;
  RegisteredKernel* kernel = Registry::Get().Find(function);
  if (!kernel) return Fail(cudaErrorInvalidDeviceFunction, "the launched function is no kernel");
  if (shared > static_cast<size_t>(kernel->max_dynamic_shared)) {
    return Fail(cudaErrorInvalidValue, "the launch asks for " + std::to_string(shared) +
                                           " bytes of dynamic shared memory, the kernel's limit "
                                           "(cudaFuncAttributeMaxDynamicSharedMemorySize) is " +
                                           std::to_string(kernel->max_dynamic_shared));
  }
  try {
    emu::Session& session = emu::Session::Get();
    emu::Module& compiled = kernel->fat->module();
    const std::shared_ptr<emu::Module> substitute = session.SubstituteFor(kernel->name);
    emu::Module& module = substitute ? *substitute : compiled;
    const emu::LaunchConfig& config = call->settings().launch;
    emu::LaunchShape shape{ToDim3(grid),        ToDim3(block),        {1, 1, 1},     shared,
                           options.cooperative, options.programmatic, options.stream};
    std::vector<uint8_t> params;
    {
      const auto lock = session.LockRuns();  // decodes the kernel on first use
      const emu::Kernel& decoded = module.kernel(kernel->name);
      // The host passes what the compiled kernel takes.
      if (substitute) emu::check_same_params(decoded, compiled.kernel(kernel->name));
      params = emu::pack_params(decoded, args);
      shape.cluster = ClusterOf(options, grid, decoded, config);
      const uint64_t room = uint64_t{emu::ctas_per_sm(config, decoded, shape.block, shared)} *
                            static_cast<uint64_t>(config.sm_count);
      if (options.cooperative && shape.grid.count() > room) {
        return Fail(cudaErrorCooperativeLaunchTooLarge,
                    "a cooperative launch of " + std::to_string(shape.grid.count()) +
                        " CTAs, the device holds " + std::to_string(room) + " at a time");
      }
    }
    const auto record = session.Run(call->memory(), module, kernel->name, params, shape,
                                    call->settings(), nullptr, &call->before(), &compiled);
    call->Finished(*record);
    if (record->result.ok) return cudaSuccess;
    const std::string text = "emulator: " + record->result.error;
    switch (record->result.kind) {
      case emu::ErrorKind::kUnsupported:
        return emu::FailReported(cudaErrorNotSupported, text);
      case emu::ErrorKind::kLaunch:
        return emu::FailReported(cudaErrorInvalidConfiguration, text);
      default:
        return call->faults_stand() ? emu::FailForGood(cudaErrorLaunchFailure, text)
                                    : emu::FailReported(cudaErrorLaunchFailure, text);
    }
  } catch (const emu::Error& e) {
    return emu::FailLaunch(cudaErrorInvalidPtx, Refused(kernel->name, e));
  } catch (const std::exception& e) {
    return emu::FailLaunch(cudaErrorInvalidKernelImage, Refused(kernel->name, e));
  }
}

}  // namespace

extern "C" {

// --- Registration, called by static constructors of the kernel objects

void** __cudaRegisterFatBinary(void* wrapper) {
  return reinterpret_cast<void**>(Registry::Get().AddFatBinary(wrapper));
}

void __cudaRegisterFatBinaryEnd(void**) {}

void __cudaUnregisterFatBinary(void**) {}

char __cudaInitModule(void**) { return 1; }

void __cudaRegisterFunction(void** handle, const char* host_function, char*, const char* name, int,
                            uint3*, uint3*, dim3*, dim3*, int*) {
  Registry::Get().AddKernel(reinterpret_cast<bwgemm::emulator::FatModule*>(handle), host_function,
                            name);
}

// Device variables keep the storage that the PTX module gives them.
void __cudaRegisterVar(void** handle, char* host_variable, char*, const char* name, int, size_t,
                       int, int) {
  Registry::Get().AddVariable(reinterpret_cast<bwgemm::emulator::FatModule*>(handle), host_variable,
                              name);
}

// --- Launches

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared,
                                     struct CUstream_st* stream) {
  pushed = {grid, block, shared, stream};
  return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
  *grid = pushed.grid;
  *block = pushed.block;
  *shared = pushed.shared;
  *static_cast<cudaStream_t*>(stream) = pushed.stream;
  return cudaSuccess;
}

cudaError_t __cudaGetKernel(cudaKernel_t* handle, const void* host_function) {
  RegisteredKernel* kernel = Registry::Get().Find(host_function);
  if (!kernel) return Fail(cudaErrorInvalidDeviceFunction, "the function is no kernel");
  *handle = reinterpret_cast<cudaKernel_t>(kernel);
  return cudaSuccess;
}

// --- Libraries: PTX, of which one kernel is taken

cudaError_t cudaLibraryLoadData(cudaLibrary_t* library, const void* code, cudaJitOption*, void**,
                                unsigned, cudaLibraryOption*, void**, unsigned) {
  *library =
      reinterpret_cast<cudaLibrary_t>(Registry::Get().AddLibrary(static_cast<const char*>(code)));
  return cudaSuccess;
}

cudaError_t cudaLibraryUnload(cudaLibrary_t library) {
  const auto* fat = reinterpret_cast<const bwgemm::emulator::FatModule*>(library);
  return Registry::Get().RemoveLibrary(fat)
             ? cudaSuccess
             : Fail(cudaErrorInvalidResourceHandle, "emulator: cudaLibraryUnload: no such library");
}

cudaError_t cudaLibraryGetKernel(cudaKernel_t* handle, cudaLibrary_t library, const char* name) {
  auto* fat = reinterpret_cast<bwgemm::emulator::FatModule*>(library);
  try {
    const std::vector<std::string> names = fat->module().kernels();
    if (std::find(names.begin(), names.end(), name) == names.end()) {
      return Fail(cudaErrorSymbolNotFound,
                  std::string("emulator: the PTX has no kernel '") + name + "'");
    }
  } catch (const std::exception& e) {
    return bwgemm::emulator::FailLaunch(cudaErrorInvalidPtx, std::string("emulator: ") + e.what());
  }
  *handle = reinterpret_cast<cudaKernel_t>(Registry::Get().AddLibraryKernel(fat, name));
  return cudaSuccess;
}

// --- Launches of compiled kernels

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** args,
                               size_t shared, cudaStream_t stream) {
  LaunchOptions options;
  options.stream = stream;
  return Launch(kernel, grid, block, options, shared, args);
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function,
                                void** args) {
  LaunchOptions options;
  options.stream = config->stream;
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    const cudaLaunchAttribute& attribute = config->attrs[i];
    switch (attribute.id) {
      case cudaLaunchAttributeClusterDimension: {
        const auto& d = attribute.val.clusterDim;
        options.cluster = dim3(d.x, d.y, d.z);
        break;
      }
      case cudaLaunchAttributePreferredClusterDimension: {
        const auto& d = attribute.val.preferredClusterDim;
        options.preferred = dim3(d.x, d.y, d.z);
        break;
      }
      case cudaLaunchAttributeCooperative:
        options.cooperative = attribute.val.cooperative != 0;
        break;
      case cudaLaunchAttributeProgrammaticStreamSerialization:
        options.programmatic = attribute.val.programmaticStreamSerializationAllowed != 0;
        break;
      // Kernels run one after another here, and caches are not modelled, so these change nothing.
      case cudaLaunchAttributeIgnore:
      case cudaLaunchAttributeAccessPolicyWindow:
      case cudaLaunchAttributeClusterSchedulingPolicyPreference:
      case cudaLaunchAttributePriority:
      case cudaLaunchAttributeMemSyncDomainMap:
      case cudaLaunchAttributeMemSyncDomain:
      case cudaLaunchAttributePreferredSharedMemoryCarveout:
      case cudaLaunchAttributeNvlinkUtilCentricScheduling:
        break;
      default:
        return bwgemm::emulator::FailLaunch(
            cudaErrorNotSupported,
            "emulator: launch attribute " + std::to_string(attribute.id) + " is not implemented");
    }
  }
  return Launch(function, config->gridDim, config->blockDim, options, config->dynamicSmemBytes,
                args);
}

// --- Devices

cudaError_t cudaGetDevice(int* device) {
  HostCall* call = HostCall::Current();
  *device = call ? call->device() : 0;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  HostCall* call = HostCall::Current();
  if (!bwgemm::emulator::FindDevice(device)) {
    return Fail(cudaErrorInvalidDevice, "no emulated device " + std::to_string(device));
  }
  if (call) call->set_device(device);
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int ordinal) {
  HostCall::Current();  // makes a program's device
  const auto device = bwgemm::emulator::FindDevice(ordinal);
  if (!device) {
    return Fail(cudaErrorInvalidDevice, "no emulated device " + std::to_string(ordinal));
  }
  const bwgemm::emulator::LaunchConfig machine;
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
      *value = device->sm_count;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
      *value = device->major;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
      *value = device->minor;
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = static_cast<int>(machine.shared_per_cta);
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      *value = static_cast<int>(machine.shared_per_sm);
      return cudaSuccess;
    default:
      break;
  }
  for (const auto& [known, limit] : kLimits) {
    if (known != attribute) continue;
    *value = limit;
    return cudaSuccess;
  }
  return Fail(cudaErrorNotSupported,
              "emulator: device attribute " + std::to_string(attribute) + " is not implemented");
}

// --- Memory, errors, driver entry points

cudaError_t cudaMemsetAsync(void* pointer, int value, size_t bytes, cudaStream_t) {
  HostCall* call = HostCall::Current();
  if (!call) return Fail(cudaErrorNotPermitted, "cudaMemsetAsync outside of an emulated call");
  HostCall::EndLaunches();
  if (bytes == 0) return cudaSuccess;
  uint8_t* data = call->memory().find(reinterpret_cast<uint64_t>(pointer), bytes, /*write=*/true);
  if (!data) {
    return Fail(cudaErrorInvalidValue,
                "cudaMemsetAsync of " + std::to_string(bytes) + " bytes " +
                    call->memory().describe(reinterpret_cast<uint64_t>(pointer)));
  }
  std::memset(data, value, bytes);
  return cudaSuccess;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned int,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* status) {
  *function = bwgemm::emulator::FindDriverFunction(symbol);
  const bool known = *function != nullptr;
  if (status) {
    *status = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  }
  if (known) return cudaSuccess;
  return Fail(cudaErrorSymbolNotFound,
              std::string("emulator: driver function ") + symbol + " is not implemented");
}

}  // extern "C"
