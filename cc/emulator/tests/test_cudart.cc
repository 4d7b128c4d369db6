// The emulated CUDA runtime: registration, launches, and every error that it reports.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <memory>
#include <stdexcept>

#include "emulator/runtime/devices.h"
#include "emulator/runtime/host_call.h"
#include "emulator/tests/fat_binary.h"
#include "emulator/tests/tensor_check.h"

extern "C" {
void** __cudaRegisterFatBinary(void* wrapper);
void __cudaRegisterFunction(void** handle, const char* host, char*, const char* name, int, uint3*,
                            uint3*, dim3*, dim3*, int*);
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, CUstream_st* stream);
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream);
cudaError_t __cudaGetKernel(cudaKernel_t* handle, const void* host);
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** args,
                               size_t shared, cudaStream_t stream);
}

using namespace bwgemm::emulator;
using testing::fat_binary;

// One store per thread.
const char kFill[] = R"(.version 8.6
.target sm_100a
.address_size 64
.visible .entry fill(.param .u64 out, .param .u32 value)
{
  .reg .b32 %r<3>;
  .reg .b64 %rd<3>;
  ld.param.u64 %rd1, [out];
  ld.param.u32 %r1, [value];
  mov.u32 %r2, %tid.x;
  mad.wide.u32 %rd2, %r2, 4, %rd1;
  st.global.u32 [%rd2], %r1;
  ret;
}
)";

struct Wrapper {
  uint32_t magic = 0x466243B1;
  uint32_t version = 1;
  const void* data = nullptr;
  const void* more = nullptr;
};

// Registers `entries` under a host function address of its own, until the process ends.
const void* register_kernel(const std::vector<testing::FatEntry>& entries,
                            const char* name = "fill") {
  struct Registered {
    std::string bytes;
    Wrapper wrapper;
    char host;
  };
  static std::vector<std::unique_ptr<Registered>> all;
  all.push_back(std::make_unique<Registered>());
  Registered& r = *all.back();
  r.bytes = fat_binary(entries);
  r.wrapper.data = r.bytes.data();
  __cudaRegisterFunction(__cudaRegisterFatBinary(&r.wrapper), &r.host, nullptr, name, -1, nullptr,
                         nullptr, nullptr, nullptr, nullptr);
  return &r.host;
}

const void* fill_kernel() {
  static const void* host = register_kernel({{2, "machine code"}, {1, kFill}});
  return host;
}

// A call with one buffer of 32 words.
struct Call {
  Call() : device(DeviceOrdinal({10, 0, 4})), scope((Register(), memory), Settings(), device) {}
  void Register() { memory.add(words, sizeof(words), true, "words"); }
  uint32_t words[32] = {};
  GlobalMemory memory;
  int device;
  HostCall scope;
};

cudaError_t launch(const void* kernel, uint32_t* out, unsigned threads, size_t shared = 0,
                   const cudaLaunchAttribute* attribute = nullptr, cudaStream_t stream = nullptr) {
  uint32_t value = 7;
  void* args[] = {&out, &value};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(1, 1, 1);
  config.blockDim = dim3(threads, 1, 1);
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  cudaLaunchAttribute copy{};
  if (attribute) copy = *attribute;
  config.attrs = &copy;
  config.numAttrs = attribute ? 1 : 0;
  return cudaLaunchKernelExC(&config, kernel, args);
}

// The error's text, as our code reads it: after clearing the last error.
std::string text(cudaError_t error) {
  CHECK_EQ(cudaGetLastError(), error);
  CHECK_EQ(cudaGetLastError(), cudaSuccess);
  return cudaGetErrorString(error);
}

TEST(launch_runs_the_ptx) {
  Call call;
  CHECK_EQ(launch(fill_kernel(), call.words, 32), cudaSuccess);
  CHECK_EQ(call.words[31], 7u);
  CHECK_EQ(std::string(cudaGetErrorString(cudaSuccess)), std::string("no error"));
}

TEST(launch_through_the_stub) {
  Call call;
  dim3 grid, block;
  size_t shared = 0;
  cudaStream_t stream = nullptr;
  CHECK_EQ(__cudaPushCallConfiguration(dim3(1, 1, 1), dim3(16, 1, 1), 0, nullptr), 0u);
  CHECK_EQ(__cudaPopCallConfiguration(&grid, &block, &shared, &stream), cudaSuccess);
  cudaKernel_t kernel = nullptr;
  CHECK_EQ(__cudaGetKernel(&kernel, fill_kernel()), cudaSuccess);
  uint32_t* out = call.words;
  uint32_t value = 9;
  void* args[] = {&out, &value};
  CHECK_EQ(__cudaLaunchKernel(kernel, grid, block, args, shared, stream), cudaSuccess);
  CHECK_EQ(call.words[15], 9u);
  CHECK_EQ(call.words[16], 0u);
}

TEST(libraries_are_ptx) {
  Call call;
  cudaLibrary_t library = nullptr;
  CHECK_EQ(cudaLibraryLoadData(&library, kFill, nullptr, nullptr, 0, nullptr, nullptr, 0),
           cudaSuccess);
  cudaKernel_t kernel = nullptr;
  CHECK_EQ(cudaLibraryGetKernel(&kernel, library, "fill"), cudaSuccess);
  CHECK_EQ(launch(reinterpret_cast<const void*>(kernel), call.words, 32), cudaSuccess);
  CHECK_EQ(call.words[31], 7u);
  CHECK_TEXT(text(cudaLibraryGetKernel(&kernel, library, "spill")), "no kernel 'spill'");
  CHECK_EQ(cudaLibraryLoadData(&library, "no PTX", nullptr, nullptr, 0, nullptr, nullptr, 0),
           cudaSuccess);
  const std::string first = text(cudaLibraryGetKernel(&kernel, library, "fill"));
  CHECK_TEXT(first, "emulator: ");
  CHECK_EQ(text(cudaLibraryGetKernel(&kernel, library, "fill")), first);
  CHECK_EQ(cudaLibraryUnload(library), cudaSuccess);
  CHECK_TEXT(text(cudaLibraryUnload(library)), "cudaLibraryUnload: no such library");
}

TEST(cluster_attribute_is_used) {
  Call call;
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = 2;  // of a grid of one CTA
  cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
  CHECK_TEXT(text(launch(fill_kernel(), call.words, 32, 0, &cluster)), "cluster");
}

TEST(a_programmatic_launch_does_not_wait_for_the_one_before) {
  Call call;
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  CHECK_EQ(launch(fill_kernel(), call.words, 32, 0, &early), cudaSuccess);  // the first
  CHECK_EQ(launch(fill_kernel(), call.words, 32), cudaSuccess);
  CHECK_TEXT(text(launch(fill_kernel(), call.words, 32, 0, &early)),
             "races with the write of line 12 of kernel 'fill', launched before, by warp 0 of CTA "
             "rank 0 of cluster 0, which may still run: no griddepcontrol.wait comes first");
  // Nothing is known of what a launch with an error did.
  CHECK_EQ(launch(fill_kernel(), call.words, 32, 0, &early), cudaSuccess);
  // Work in between.
  CHECK_EQ(cudaMemsetAsync(call.words, 0, 4, nullptr), cudaSuccess);
  CHECK_EQ(launch(fill_kernel(), call.words, 32, 0, &early), cudaSuccess);
  early.val.programmaticStreamSerializationAllowed = 0;
  CHECK_EQ(launch(fill_kernel(), call.words, 32, 0, &early), cudaSuccess);
}

TEST(a_programmatic_launch_does_wait_for_other_streams) {
  Call call;
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  CHECK_EQ(launch(fill_kernel(), call.words, 32, 0, &early, cudaStreamLegacy), cudaSuccess);
  CHECK_EQ(launch(fill_kernel(), call.words, 32, 0, &early, cudaStreamPerThread), cudaSuccess);
  CHECK_TEXT(text(launch(fill_kernel(), call.words, 32, 0, &early, cudaStreamPerThread)),
             "may still run");
}

TEST(reports_of_the_kernel) {
  Call call;
  const std::string report = text(launch(fill_kernel(), call.words, 33));
  CHECK_TEXT(report, "emulator: line 12");
  CHECK_TEXT(report, "st.global.u32 [%rd2], %r1;");
}

TEST(launch_errors) {
  uint32_t words[32];
  CHECK_TEXT(text(launch(fill_kernel(), words, 32)), "launched outside of an emulated call");
  Call call;
  CHECK_TEXT(text(launch(&words, call.words, 32)), "the launched function is no kernel");
  CHECK_TEXT(text(launch(fill_kernel(), call.words, 32, 49153)),
             "the launch asks for 49153 bytes of dynamic shared memory");
  cudaLaunchAttribute event{};
  event.id = cudaLaunchAttributeProgrammaticEvent;
  CHECK_TEXT(text(launch(fill_kernel(), call.words, 32, 0, &event)),
             "launch attribute 7 is not implemented");
  cudaKernel_t kernel;
  CHECK_TEXT(text(__cudaGetKernel(&kernel, &words)), "the function is no kernel");
}

TEST(bad_images) {
  Call call;
  CHECK_TEXT(text(launch(register_kernel({{1, kFill}, {1, kFill}}), call.words, 32)),
             "holds 2 PTX images, the emulator needs exactly one");
  CHECK_TEXT(text(launch(register_kernel({{1, kFill, 3}}), call.words, 32)), "--no-compress");
  CHECK_TEXT(text(launch(register_kernel({{1, ".version 8.6 {"}}), call.words, 32)),
             "emulator: kernel 'fill' cannot be run: line 1");
  CHECK_TEXT(text(launch(register_kernel({{1, kFill}}, "other"), call.words, 32)), "other");
}

TEST(function_attributes) {
  const void* kernel = register_kernel({{1, kFill}});
  const auto shared = cudaFuncAttributeMaxDynamicSharedMemorySize;
  CHECK_EQ(cudaFuncSetAttribute(kernel, shared, 100000), cudaSuccess);
  CHECK_EQ(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1),
           cudaSuccess);
  Call call;
  CHECK_EQ(launch(kernel, call.words, 32, 100000), cudaSuccess);
  CHECK_TEXT(text(cudaFuncSetAttribute(kernel, shared, 300000)), "300000 bytes");
  CHECK_EQ(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, 100),
           cudaSuccess);
  CHECK_TEXT(text(cudaFuncSetAttribute(kernel, cudaFuncAttributeRequiredClusterWidth, 1)),
             "function attribute 11 is not implemented");
  CHECK_TEXT(text(cudaFuncSetAttribute(&call, shared, 1)), "the function is no kernel");
}

TEST(function_parameters) {
  const void* kernel = register_kernel({{1, kFill}});
  size_t offset = 1, bytes = 0;
  CHECK_EQ(cudaFuncGetParamInfo(kernel, 0, &offset, &bytes), cudaSuccess);
  CHECK_EQ(offset, 0u);
  CHECK_EQ(bytes, 8u);
  CHECK_TEXT(text(cudaFuncGetParamInfo(kernel, 9, &offset, &bytes)), "parameters");
  CHECK_TEXT(text(cudaFuncGetParamInfo(&offset, 0, &offset, &bytes)), "the function is no kernel");
  const void* broken = register_kernel({{1, ".version 8.6 {"}});
  CHECK_TEXT(text(cudaFuncGetParamInfo(broken, 0, &offset, &bytes)), "emulator: line 1");
}

TEST(devices) {
  Call call;
  int value = -1;
  CHECK_EQ(cudaGetDevice(&value), cudaSuccess);
  CHECK_EQ(value, call.device);
  const std::pair<cudaDeviceAttr, int> expected[] = {
      {cudaDevAttrMultiProcessorCount, 4},
      {cudaDevAttrComputeCapabilityMajor, 10},
      {cudaDevAttrComputeCapabilityMinor, 0},
      {cudaDevAttrMaxSharedMemoryPerBlockOptin, 227 * 1024},
      {cudaDevAttrMaxSharedMemoryPerMultiprocessor, 228 * 1024}};
  for (const auto& [attribute, want] : expected) {
    CHECK_EQ(cudaDeviceGetAttribute(&value, attribute, call.device), cudaSuccess);
    CHECK_EQ(value, want);
  }
  CHECK_TEXT(text(cudaDeviceGetAttribute(&value, cudaDevAttrClockRate, call.device)),
             "device attribute 13 is not implemented");
  CHECK_TEXT(text(cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, 63)),
             "no emulated device 63");
  const int other = DeviceOrdinal({9, 0, 2});
  CHECK_EQ(cudaSetDevice(other), cudaSuccess);
  CHECK_EQ(cudaGetDevice(&value), cudaSuccess);
  CHECK_EQ(value, other);
  CHECK_TEXT(text(cudaSetDevice(-1)), "no emulated device -1");
}

TEST(memset) {
  uint32_t words[32];
  CHECK_TEXT(text(cudaMemsetAsync(words, 0, 4, nullptr)), "outside of an emulated call");
  Call call;
  CHECK_EQ(cudaMemsetAsync(call.words, 1, 4, nullptr), cudaSuccess);
  CHECK_EQ(call.words[0], 0x01010101u);
  CHECK_EQ(call.words[1], 0u);
  CHECK_EQ(cudaMemsetAsync(nullptr, 1, 0, nullptr), cudaSuccess);
  CHECK_TEXT(text(cudaMemsetAsync(call.words + 31, 0, 8, nullptr)), "cudaMemsetAsync of 8 bytes");
}

TEST(driver_functions) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult result;
  CHECK_TEXT(text(cudaGetDriverEntryPointByVersion("cuLaunchKernel", &function, 12000, 0, &result)),
             "driver function cuLaunchKernel is not implemented");
  CHECK(function == nullptr);
  CHECK_EQ(result, cudaDriverEntryPointSymbolNotFound);
  CHECK_EQ(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, 0, &result),
           cudaSuccess);
  const auto encode = reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
  CUtensorMap map;
  const cuuint64_t dims[2] = {64, 64}, strides[1] = {128}, odd_strides[1] = {130};
  const cuuint32_t box[2] = {32, 32}, ones[2] = {1, 1};
  const auto call = [&](const cuuint64_t* pitch, cuuint32_t rank) {
    return encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, rank, reinterpret_cast<void*>(4096), dims,
                  pitch, box, ones, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_64B,
                  CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  };
  CHECK_EQ(call(strides, 2), CUDA_SUCCESS);
  const auto refused = [&](const cuuint64_t* pitch, cuuint32_t rank, const char* reason) {
    CHECK_EQ(call(pitch, rank), CUDA_ERROR_INVALID_VALUE);
    CHECK_TEXT(std::string(cudaGetErrorString(cudaErrorInvalidValue)),
               std::string("cuTensorMapEncodeTiled: ") + reason);
    CHECK_EQ(cudaGetLastError(), cudaSuccess);  // a function of the driver leaves it alone
  };
  refused(odd_strides, 2, "globalStrides[0] must be a multiple of 16 below 2^40, got 130");
  refused(nullptr, 2, "a null pointer, or no data type");
  refused(strides, 6, "tensorRank must be 1 to 5, got 6");
}

// Last, because it uses up the process's devices.
TEST(too_many_devices) {
  std::string refusal;
  try {
    for (int sms = 100; sms < 200; ++sms) DeviceOrdinal({10, 0, sms});
  } catch (const std::runtime_error& e) {
    refusal = e.what();
  }
  CHECK_TEXT(refusal, "one process can emulate 64 different devices");
  CHECK_EQ(DeviceOrdinal({10, 0, 100}), DeviceOrdinal({10, 0, 100}));
}

int main(int argc, char** argv) { return bwgemm::emulator::testing::run_all(argc, argv); }
