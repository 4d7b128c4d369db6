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

#include "emulator/machine/machine.h"
#include "emulator/runtime/devices.h"
#include "emulator/runtime/host_call.h"
#include "emulator/runtime/registry.h"
#include "emulator/tensor/tensor_map.h"

using bwgemm::emulator::HostCall;
using bwgemm::emulator::RegisteredKernel;
using bwgemm::emulator::Registry;

namespace {

struct ErrorState {
  cudaError_t last = cudaSuccess;       // what cudaGetLastError returns
  cudaError_t described = cudaSuccess;  // the code that `text` explains
  std::string text;
};
thread_local ErrorState error_state;

cudaError_t Fail(cudaError_t code, std::string text) {
  error_state = {code, code, std::move(text)};
  return code;
}

// The launch that `kernel<<<...>>>` pushes before it calls the kernel's stub.
struct CallConfiguration {
  dim3 grid, block;
  size_t shared = 0;
  cudaStream_t stream = nullptr;
};
thread_local CallConfiguration pushed;

bwgemm::emulator::Dim3 ToDim3(dim3 d) { return {d.x, d.y, d.z}; }

cudaError_t Launch(const void* function, dim3 grid, dim3 block, dim3 cluster, size_t shared,
                   void** args) {
  namespace emu = bwgemm::emulator;
  HostCall* call = HostCall::Current();
  if (!call) {
    return Fail(cudaErrorNotPermitted, "a kernel was launched outside of an emulated call");
  }
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
    std::vector<uint8_t> params;
    {
      std::lock_guard lock(session.run_mutex());  // decodes the kernel on first use
      params = emu::pack_params(module.kernel(kernel->name), args);
    }
    const emu::LaunchShape shape{ToDim3(grid), ToDim3(block), ToDim3(cluster), shared};
    const auto record = session.Run(call->memory(), module, kernel->name, params, shape,
                                    call->settings(), nullptr, &compiled);
    if (!record->result.ok) {
      const cudaError_t code = record->result.kind == emu::ErrorKind::kUnsupported
                                   ? cudaErrorNotSupported
                                   : cudaErrorLaunchFailure;
      return Fail(code, "emulator: " + record->result.error);
    }
    return cudaSuccess;
  } catch (const emu::Error& e) {
    return Fail(cudaErrorInvalidPtx, std::string("emulator: ") + e.what());
  } catch (const std::exception& e) {
    return Fail(cudaErrorInvalidKernelImage, std::string("emulator: ") + e.what());
  }
}

CUresult EncodeTiled(CUtensorMap* out, CUtensorMapDataType type, cuuint32_t rank, void* address,
                     const cuuint64_t* dims, const cuuint64_t* strides, const cuuint32_t* box,
                     const cuuint32_t* element_strides, CUtensorMapInterleave interleave,
                     CUtensorMapSwizzle swizzle, CUtensorMapL2promotion l2,
                     CUtensorMapFloatOOBfill fill) {
  namespace emu = bwgemm::emulator;
  if (!out || rank < 1 || rank > 5 || !dims || !box || !element_strides || (rank > 1 && !strides) ||
      type < 0 || type > 15) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  emu::TensorMap map;
  map.type = static_cast<emu::TensorMapType>(type);
  map.rank = static_cast<int>(rank);
  map.address = reinterpret_cast<uint64_t>(address);
  map.interleave = static_cast<emu::TensorMapInterleave>(interleave);
  map.swizzle = static_cast<emu::TensorMapSwizzle>(swizzle);
  map.l2 = static_cast<emu::TensorMapL2>(l2);
  map.fill = static_cast<emu::TensorMapFill>(fill);
  map.strides[0] = static_cast<uint64_t>(emu::element_bits(map.type)) / 8;
  for (cuuint32_t i = 0; i < rank; ++i) {
    map.dims[i] = dims[i];
    map.box[i] = box[i];
    map.element_strides[i] = element_strides[i];
    if (i > 0) map.strides[i] = strides[i - 1];
  }
  if (!emu::validate(map).empty()) return CUDA_ERROR_INVALID_VALUE;
  emu::encode(map, reinterpret_cast<uint8_t*>(out));
  return CUDA_SUCCESS;
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

// Device variables keep the storage that the PTX module gives them; the host side never reads them.
void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}

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

cudaError_t cudaLibraryGetKernel(cudaKernel_t* handle, cudaLibrary_t library, const char* name) {
  auto* fat = reinterpret_cast<bwgemm::emulator::FatModule*>(library);
  try {
    const std::vector<std::string> names = fat->module().kernels();
    if (std::find(names.begin(), names.end(), name) == names.end()) {
      return Fail(cudaErrorSymbolNotFound,
                  std::string("emulator: the PTX has no kernel '") + name + "'");
    }
  } catch (const std::exception& e) {
    return Fail(cudaErrorInvalidPtx, std::string("emulator: ") + e.what());
  }
  *handle = reinterpret_cast<cudaKernel_t>(Registry::Get().AddLibraryKernel(fat, name));
  return cudaSuccess;
}

// --- Launches of compiled kernels

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** args,
                               size_t shared, cudaStream_t) {
  return Launch(kernel, grid, block, dim3(1, 1, 1), shared, args);
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function,
                                void** args) {
  dim3 cluster(1, 1, 1);
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    const cudaLaunchAttribute& attribute = config->attrs[i];
    switch (attribute.id) {
      case cudaLaunchAttributeClusterDimension: {
        const auto& d = attribute.val.clusterDim;
        cluster = dim3(d.x, d.y, d.z);
        break;
      }
      // Kernels run one after another here, so neither changes anything.
      case cudaLaunchAttributeIgnore:
      case cudaLaunchAttributeProgrammaticStreamSerialization:
        break;
      default:
        return Fail(
            cudaErrorNotSupported,
            "emulator: launch attribute " + std::to_string(attribute.id) + " is not implemented");
    }
  }
  return Launch(function, config->gridDim, config->blockDim, cluster, config->dynamicSmemBytes,
                args);
}

cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value) {
  RegisteredKernel* kernel = Registry::Get().Find(function);
  if (!kernel) return Fail(cudaErrorInvalidDeviceFunction, "the function is no kernel");
  switch (attribute) {
    case cudaFuncAttributeMaxDynamicSharedMemorySize: {
      const size_t limit = bwgemm::emulator::LaunchConfig().shared_per_cta;
      if (value < 0 || static_cast<size_t>(value) > limit) {
        return Fail(cudaErrorInvalidValue, std::to_string(value) +
                                               " bytes of dynamic shared memory are not in [0, " +
                                               std::to_string(limit) + "]");
      }
      kernel->max_dynamic_shared = value;
      return cudaSuccess;
    }
    case cudaFuncAttributeNonPortableClusterSizeAllowed:
      return cudaSuccess;  // every cluster size that fits is allowed
    case cudaFuncAttributePreferredSharedMemoryCarveout:
      return cudaSuccess;  // how many CTAs a multiprocessor holds does not change results
    default:
      return Fail(cudaErrorNotSupported, "emulator: function attribute " +
                                             std::to_string(attribute) + " is not implemented");
  }
}

// --- Devices

cudaError_t cudaGetDevice(int* device) {
  HostCall* call = HostCall::Current();
  *device = call ? call->device() : 0;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  if (!bwgemm::emulator::FindDevice(device)) {
    return Fail(cudaErrorInvalidDevice, "no emulated device " + std::to_string(device));
  }
  if (HostCall* call = HostCall::Current()) call->set_device(device);
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int ordinal) {
  const auto device = bwgemm::emulator::FindDevice(ordinal);
  if (!device) {
    return Fail(cudaErrorInvalidDevice, "no emulated device " + std::to_string(ordinal));
  }
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
      *value = static_cast<int>(bwgemm::emulator::LaunchConfig().shared_per_cta);
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      *value = static_cast<int>(bwgemm::emulator::LaunchConfig().shared_per_sm);
      return cudaSuccess;
    default:
      return Fail(cudaErrorNotSupported, "emulator: device attribute " + std::to_string(attribute) +
                                             " is not implemented");
  }
}

// --- Memory, errors, driver entry points

cudaError_t cudaMemsetAsync(void* pointer, int value, size_t bytes, cudaStream_t) {
  HostCall* call = HostCall::Current();
  if (!call) return Fail(cudaErrorNotPermitted, "cudaMemsetAsync outside of an emulated call");
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

cudaError_t cudaGetLastError() {
  const cudaError_t last = error_state.last;
  error_state.last = cudaSuccess;  // the text stays, for the cudaGetErrorString that follows
  return last;
}

const char* cudaGetErrorString(cudaError_t error) {
  if (error == cudaSuccess) return "no error";
  if (error == error_state.described) return error_state.text.c_str();
  return "error of the emulated CUDA runtime";
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned int,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* status) {
  const bool known = std::strcmp(symbol, "cuTensorMapEncodeTiled") == 0;
  *function = known ? reinterpret_cast<void*>(&EncodeTiled) : nullptr;
  if (status) {
    *status = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  }
  if (known) return cudaSuccess;
  return Fail(cudaErrorSymbolNotFound,
              std::string("emulator: driver function ") + symbol + " is not implemented");
}

}  // extern "C"
