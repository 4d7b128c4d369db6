// What whole programs call of the emulated CUDA runtime, and every error that it reports.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstring>
#include <memory>

#include "emulator/tests/fat_binary.h"
#include "emulator/tests/tensor_check.h"

extern "C" {
void** __cudaRegisterFatBinary(void* wrapper);
void __cudaRegisterFunction(void** handle, const char* host, char*, const char* name, int, uint3*,
                            uint3*, dim3*, dim3*, int*);
void __cudaRegisterVar(void** handle, char* host, char*, const char* name, int, size_t, int, int);
}

using namespace bwgemm::emulator;

// scaled: out[i] = i * factor[0] for 32 threads, counter += 1 each. shaped: out[i] = CTAs of the
// cluster.
const char kModule[] = R"(.version 8.6
.target sm_90a
.address_size 64
.visible .const .align 4 .b8 factor[8];
.visible .global .align 4 .u32 counter;
.visible .entry scaled(.param .u64 out)
{
  .reg .b32 %r<4>;
  .reg .b64 %rd<4>;
  .shared .align 4 .b8 scratch[256];
  mov.u32 %r3, scratch;
  ld.param.u64 %rd1, [out];
  ld.const.u32 %r1, [factor];
  mov.u32 %r2, %tid.x;
  mul.lo.u32 %r1, %r1, %r2;
  mad.wide.u32 %rd2, %r2, 4, %rd1;
  st.global.u32 [%rd2], %r1;
  red.global.add.u32 [counter], 1;
  ret;
}
.visible .entry shaped(.param .u64 out)
{
  .reg .b32 %r<4>;
  .reg .b64 %rd<4>;
  ld.param.u64 %rd1, [out];
  mov.u32 %r1, %cluster_nctaid.x;
  mov.u32 %r2, %ctaid.x;
  mad.wide.u32 %rd2, %r2, 4, %rd1;
  st.global.u32 [%rd2], %r1;
  ret;
}
)";

struct Host {
  char scaled, shaped, factor, counter;
};

const Host& host() {
  struct Wrapper {
    uint32_t magic = 0x466243B1;
    uint32_t version = 1;
    const void* data = nullptr;
    const void* more = nullptr;
  };
  static Host host;
  static const std::string bytes = testing::fat_binary({{1, kModule, 0, 90}});
  static Wrapper wrapper;
  if (wrapper.data == nullptr) {
    wrapper.data = bytes.data();
    void** handle = __cudaRegisterFatBinary(&wrapper);
    const auto kernel = [&](const char* stub, const char* name) {
      __cudaRegisterFunction(handle, stub, nullptr, name, -1, nullptr, nullptr, nullptr, nullptr,
                             nullptr);
    };
    kernel(&host.scaled, "scaled");
    kernel(&host.shaped, "shaped");
    __cudaRegisterVar(handle, &host.factor, nullptr, "factor", 0, 8, 1, 0);
    __cudaRegisterVar(handle, &host.counter, nullptr, "counter", 0, 4, 0, 1);
  }
  return host;
}

// The error's text, as programs read it.
std::string text(cudaError_t error) {
  CHECK_EQ(cudaPeekAtLastError(), error);
  CHECK_EQ(cudaGetLastError(), error);
  CHECK_EQ(cudaGetLastError(), cudaSuccess);
  return cudaGetErrorString(error);
}

#define OK(call) CHECK_EQ(call, cudaSuccess)

TEST(memory) {
  uint32_t *device = nullptr, words[8] = {1, 2, 3, 4, 5, 6, 7, 8}, back[8] = {};
  OK(cudaMalloc(reinterpret_cast<void**>(&device), sizeof words));
  CHECK_EQ(reinterpret_cast<uintptr_t>(device) % 256, 0u);
  OK(cudaMemcpy(device, words, sizeof words, cudaMemcpyHostToDevice));
  OK(cudaMemcpyAsync(back, device, sizeof back, cudaMemcpyDeviceToHost, nullptr));
  CHECK_EQ(std::memcmp(back, words, sizeof back), 0);
  OK(cudaMemset(device + 1, 0, 4));
  OK(cudaMemcpy(back, device, sizeof back, cudaMemcpyDefault));
  CHECK_EQ(back[1], 0u);
  CHECK_TEXT(text(cudaMemcpy(device + 1, words, sizeof words, cudaMemcpyHostToDevice)),
             "cudaMemcpy of 32 bytes: its destination is no device memory: byte 4 of 'allocation");
  CHECK_TEXT(text(cudaMemcpy(back, words, 4, cudaMemcpyDeviceToHost)), "its source is no device");
  CHECK_TEXT(text(cudaMemset(device, 0, 33)), "cudaMemsetAsync of 33 bytes");
  CHECK_TEXT(text(cudaFreeHost(device)), "cudaFreeHost of an address that was not allocated so");
  OK(cudaFree(device));
  CHECK_TEXT(text(cudaFree(device)), "or was freed before");
  OK(cudaFree(nullptr));
  CHECK_TEXT(text(cudaMalloc(reinterpret_cast<void**>(&device), ~size_t{0} / 2)), "out of memory");
  CHECK_TEXT(text(cudaMalloc(nullptr, 4)), "cudaMalloc to null");
}

TEST(memory_of_two_dimensions) {
  char* device = nullptr;
  size_t pitch = 0;
  OK(cudaMallocPitch(reinterpret_cast<void**>(&device), &pitch, 5, 3));
  CHECK_EQ(pitch, size_t{512});
  const char rows[3][5] = {{1, 2, 3, 4, 5}, {6, 7, 8, 9, 10}, {11, 12, 13, 14, 15}};
  char back[3][5] = {};
  OK(cudaMemcpy2D(device, pitch, rows, 5, 5, 3, cudaMemcpyHostToDevice));
  OK(cudaMemset2D(device + 1, pitch, 0, 1, 2));
  OK(cudaMemcpy2DAsync(back, 5, device, pitch, 5, 3, cudaMemcpyDeviceToHost, nullptr));
  CHECK(back[0][0] == 1 && back[1][1] == 0 && back[2][1] == 12);
  CHECK_TEXT(text(cudaMemcpy2D(device, pitch, rows, 4, 5, 3, cudaMemcpyHostToDevice)),
             "rows of 5 bytes are longer than a pitch");
  OK(cudaFree(device));
  auto** pointer = reinterpret_cast<void**>(&device);
  CHECK_TEXT(text(cudaMallocPitch(pointer, nullptr, 5, 3)), "no place for the pitch");
  for (size_t width : {~size_t{0}, ~size_t{0} / 2}) {
    CHECK_TEXT(text(cudaMallocPitch(pointer, &pitch, width, 4)), "more bytes than 2^64 - 1");
  }
}

TEST(memory_of_the_host) {
  void *pinned = nullptr, *device = nullptr, *managed = nullptr;
  OK(cudaMallocHost(&pinned, 16));
  OK(cudaHostGetDevicePointer(&device, pinned, 0));
  CHECK(device == pinned);
  cudaPointerAttributes attributes;
  OK(cudaPointerGetAttributes(&attributes, static_cast<char*>(pinned) + 15));
  CHECK_EQ(attributes.type, cudaMemoryTypeHost);
  OK(cudaMallocManaged(&managed, 16, cudaMemAttachGlobal));
  OK(cudaPointerGetAttributes(&attributes, managed));
  CHECK_EQ(attributes.type, cudaMemoryTypeManaged);
  OK(cudaFree(managed));
  char ordinary[64];
  OK(cudaPointerGetAttributes(&attributes, ordinary));
  CHECK_EQ(attributes.type, cudaMemoryTypeUnregistered);
  CHECK_TEXT(text(cudaHostUnregister(ordinary)), "no registered memory");
  OK(cudaHostRegister(ordinary, 64, cudaHostRegisterDefault));
  CHECK_TEXT(text(cudaHostRegister(ordinary + 8, 8, cudaHostRegisterDefault)),
             "registered already");
  CHECK_TEXT(text(cudaHostRegister(ordinary, 0, cudaHostRegisterDefault)), "of nothing");
  OK(cudaHostUnregister(ordinary));
  OK(cudaFreeHost(pinned));
  size_t free = 0, total = 0;
  OK(cudaMemGetInfo(&free, &total));
  CHECK(free > 0 && total >= free);
}

TEST(streams_and_events) {
  cudaStream_t stream = nullptr;
  cudaEvent_t start = nullptr, end = nullptr, untimed = nullptr;
  OK(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, -1));
  int priority = 0;
  OK(cudaStreamGetPriority(stream, &priority));
  CHECK_EQ(priority, -1);
  OK(cudaEventCreate(&start));
  OK(cudaEventCreate(&end));
  OK(cudaEventCreateWithFlags(&untimed, cudaEventDisableTiming));
  float milliseconds = -1;
  CHECK_TEXT(text(cudaEventElapsedTime(&milliseconds, start, end)), "was not recorded");
  OK(cudaEventRecord(start, stream));
  OK(cudaEventRecord(end, stream));
  OK(cudaEventRecord(untimed, stream));
  OK(cudaStreamWaitEvent(stream, end, 0));
  OK(cudaEventSynchronize(end));
  OK(cudaEventElapsedTime(&milliseconds, start, end));
  CHECK(milliseconds >= 0);
  CHECK_TEXT(text(cudaEventElapsedTime(&milliseconds, start, untimed)), "has no timing");
  int called = 0;
  OK(cudaLaunchHostFunc(stream, [](void* count) { ++*static_cast<int*>(count); }, &called));
  CHECK_EQ(called, 1);
  cudaStreamCaptureStatus capture;
  OK(cudaStreamIsCapturing(stream, &capture));
  CHECK_EQ(capture, cudaStreamCaptureStatusNone);
  OK(cudaStreamSynchronize(nullptr));
  OK(cudaStreamDestroy(stream));
  CHECK_TEXT(text(cudaStreamSynchronize(stream)), "the stream was destroyed");
  CHECK_TEXT(text(cudaStreamDestroy(nullptr)), "the stream was destroyed");
  OK(cudaEventDestroy(start));
  CHECK_TEXT(text(cudaEventRecord(start, nullptr)), "the event was destroyed");
  CHECK_TEXT(text(cudaEventDestroy(start)), "the event was destroyed");
  OK(cudaEventDestroy(end));
  OK(cudaEventDestroy(untimed));
  OK(cudaDeviceSynchronize());
}

cudaError_t launch(const void* kernel, uint32_t* out, unsigned grid, unsigned block,
                   cudaLaunchAttribute* attributes = nullptr, unsigned count = 0) {
  void* args[] = {&out};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(grid, 1, 1);
  config.blockDim = dim3(block, 1, 1);
  config.attrs = attributes;
  config.numAttrs = count;
  return cudaLaunchKernelExC(&config, kernel, args);
}

TEST(symbols_and_launches) {
  uint32_t* out = nullptr;
  OK(cudaMalloc(reinterpret_cast<void**>(&out), 128));
  const uint32_t factor = 3;
  OK(cudaMemcpyToSymbol(&host().factor, &factor, 4, 0, cudaMemcpyHostToDevice));
  uint32_t* counter = nullptr;
  size_t bytes = 0;
  OK(cudaGetSymbolAddress(reinterpret_cast<void**>(&counter), &host().counter));
  OK(cudaGetSymbolSize(&bytes, &host().factor));
  CHECK_EQ(bytes, size_t{8});
  OK(cudaMemset(counter, 0, 4));
  void* args[] = {&out};
  OK(cudaLaunchKernel(&host().scaled, dim3(1, 1, 1), dim3(32, 1, 1), args, 0, nullptr));
  uint32_t back[32], count = 0;
  OK(cudaMemcpy(back, out, sizeof back, cudaMemcpyDeviceToHost));
  CHECK_EQ(back[31], 93u);
  OK(cudaMemcpyFromSymbol(&count, &host().counter, 4, 0, cudaMemcpyDeviceToHost));
  CHECK_EQ(count, 32u);
  CHECK_TEXT(text(cudaMemcpyToSymbol(&host().factor, &factor, 4, 5, cudaMemcpyHostToDevice)),
             "cudaMemcpyToSymbol of 4 bytes at 5 of a variable of 8");
  CHECK_TEXT(text(cudaGetSymbolSize(&bytes, &count)), "names no variable");
  OK(cudaFree(out));
}

TEST(clusters) {
  uint32_t *out = nullptr, back[8] = {};
  OK(cudaMalloc(reinterpret_cast<void**>(&out), sizeof back));
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim.x = 2;
  attributes[0].val.clusterDim.y = attributes[0].val.clusterDim.z = 1;
  attributes[1].id = cudaLaunchAttributePreferredClusterDimension;
  attributes[1].val.preferredClusterDim.x = 4;
  attributes[1].val.preferredClusterDim.y = attributes[1].val.preferredClusterDim.z = 1;
  OK(launch(&host().shaped, out, 8, 1, attributes, 2));
  OK(cudaMemcpy(back, out, sizeof back, cudaMemcpyDeviceToHost));
  CHECK_EQ(back[0], 4u);                                 // the settings' seed is odd
  OK(launch(&host().shaped, out, 6, 1, attributes, 2));  // no multiple of 4
  OK(cudaMemcpy(back, out, sizeof back, cudaMemcpyDeviceToHost));
  CHECK_EQ(back[0], 2u);
  CHECK_TEXT(text(launch(&host().shaped, out, 3, 1, attributes, 1)), "not a multiple of the");
  void* args[] = {&out};
  OK(cudaLaunchCooperativeKernel(&host().shaped, dim3(8, 1, 1), dim3(1, 1, 1), args, 0, nullptr));
  CHECK_TEXT(text(cudaLaunchCooperativeKernel(&host().shaped, dim3(9, 1, 1), dim3(1024, 1, 1), args,
                                              0, nullptr)),
             "a cooperative launch of 9 CTAs, the device holds 8 at a time");
  OK(cudaFree(out));
}

TEST(device) {
  int count = 0, device = -1;
  OK(cudaGetDeviceCount(&count));
  CHECK_EQ(count, 1);
  OK(cudaGetDevice(&device));
  CHECK_EQ(device, 0);
  OK(cudaSetDevice(0));
  CHECK_TEXT(text(cudaSetDevice(1)), "no emulated device 1");
  cudaDeviceProp properties;
  OK(cudaGetDeviceProperties(&properties, 0));
  CHECK_EQ(properties.major, 9);  // as the module's target
  CHECK_EQ(properties.multiProcessorCount, 4);
  CHECK_EQ(properties.warpSize, 32);
  CHECK_EQ(properties.sharedMemPerBlockOptin, size_t{227 * 1024});
  CHECK_TEXT(std::string(properties.name), "jax_bwgemm emulator, compute capability 9.0");
  CHECK_TEXT(text(cudaGetDeviceProperties(&properties, 7)), "no emulated device 7");
  int version = 0;
  OK(cudaDriverGetVersion(&version));
  CHECK_EQ(version, CUDART_VERSION);
}

TEST(functions) {
  cudaFuncAttributes attributes;
  OK(cudaFuncGetAttributes(&attributes, &host().scaled));
  CHECK_EQ(attributes.sharedSizeBytes, size_t{256});
  CHECK_EQ(attributes.maxThreadsPerBlock, 1024);
  CHECK_EQ(attributes.ptxVersion, 90);
  CHECK_TEXT(text(cudaFuncGetAttributes(&attributes, &attributes)), "the function is no kernel");
  int blocks = 0;
  OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, &host().scaled, 512, 0));
  CHECK_EQ(blocks, 4);
  OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, &host().scaled, 32, 100000));
  CHECK_EQ(blocks, 2);
  OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, &host().scaled, 32, 300000));
  CHECK_EQ(blocks, 0);
  CHECK_TEXT(text(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, &host().scaled, 0, 0)),
             "a block needs threads");
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = 2;
  cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(2, 1, 1);
  config.blockDim = dim3(1024, 1, 1);
  config.attrs = &cluster;
  config.numAttrs = 1;
  int clusters = 0;
  OK(cudaOccupancyMaxActiveClusters(&clusters, &host().scaled, &config));
  CHECK_EQ(clusters, 4);
  OK(cudaOccupancyMaxPotentialClusterSize(&clusters, &host().scaled, &config));
  CHECK_EQ(clusters, 4);
}

TEST(driver) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult result;
  OK(cudaGetDriverEntryPointByVersion("cuTensorMapReplaceAddress", &function, 12000, 0, &result));
  CHECK_EQ(result, cudaDriverEntryPointSuccess);
  CHECK(function == reinterpret_cast<void*>(&cuTensorMapReplaceAddress));
  CHECK_TEXT(text(cudaGetDriverEntryPointByVersion("cuNothing", &function, 12000, 0, &result)),
             "driver function cuNothing is not implemented");
  CUtensorMap map;
  CHECK_EQ(cuTensorMapReplaceAddress(&map, nullptr), CUDA_ERROR_INVALID_VALUE);
  CHECK_EQ(cuTensorMapReplaceAddress(nullptr, nullptr), CUDA_ERROR_INVALID_VALUE);
  CHECK_TEXT(std::string(cudaGetErrorString(cudaErrorInvalidValue)),
             "cuTensorMapReplaceAddress: no tensor map");
  const cuuint64_t dims[1] = {64};
  const cuuint32_t box[1] = {32}, ones[1] = {1};
  CHECK_EQ(cuTensorMapEncodeTiled(
               &map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 1, reinterpret_cast<void*>(4096), dims,
               nullptr, box, ones, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
               CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
           CUDA_SUCCESS);
  CHECK_EQ(cuTensorMapReplaceAddress(&map, reinterpret_cast<void*>(8192)), CUDA_SUCCESS);
  CHECK_EQ(cuTensorMapReplaceAddress(&map, reinterpret_cast<void*>(8193)),
           CUDA_ERROR_INVALID_VALUE);
  const char* reason = nullptr;
  CHECK_EQ(cuGetErrorString(CUDA_ERROR_INVALID_VALUE, &reason), CUDA_SUCCESS);
  CHECK_TEXT(std::string(reason),
             "cuTensorMapReplaceAddress: globalAddress must be a multiple of 16, got 8193");
  int value = 0;
  CHECK_EQ(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0),
           CUDA_SUCCESS);
  CHECK_EQ(value, 9);
}

// Each of these lies between two launches, or waits for the first: the second has nothing to race
// with.
TEST(what_ends_launches_ahead_of_a_programmatic_one) {
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  uint32_t *out = nullptr, *other = nullptr, word = 0;
  OK(cudaMalloc(reinterpret_cast<void**>(&out), 128));
  OK(cudaMalloc(reinterpret_cast<void**>(&other), 128));
  cudaEvent_t event = nullptr;
  OK(cudaEventCreate(&event));
  cudaStream_t stream = nullptr;
  OK(cudaStreamCreate(&stream));
  const auto again = [&] { OK(launch(&host().shaped, out, 1, 1, &early, 1)); };
  again();
  OK(cudaMemcpyAsync(&word, out, 4, cudaMemcpyDeviceToHost, nullptr));
  again();
  OK(cudaMemset(out, 0, 4));
  again();
  OK(cudaMemcpyToSymbol(&host().counter, &word, 4, 0, cudaMemcpyHostToDevice));
  again();
  OK(cudaEventRecord(event, nullptr));
  again();
  OK(cudaEventSynchronize(event));
  again();
  OK(cudaStreamSynchronize(nullptr));
  again();
  OK(cudaDeviceSynchronize());
  again();
  OK(cudaStreamDestroy(stream));
  again();
  OK(cudaFree(other));
  again();
}

// Last, because it makes the device unusable.
TEST(faults_stand) {
  uint32_t* out = nullptr;
  OK(cudaMalloc(reinterpret_cast<void**>(&out), 4));
  CHECK_EQ(launch(&host().scaled, out, 1, 32), cudaErrorLaunchFailure);
  CHECK_EQ(cudaGetLastError(), cudaErrorLaunchFailure);
  CHECK_EQ(cudaGetLastError(), cudaErrorLaunchFailure);
  CHECK_EQ(cudaDeviceSynchronize(), cudaErrorLaunchFailure);
  CHECK_EQ(cudaMemcpy(out, out, 4, cudaMemcpyDeviceToDevice), cudaErrorLaunchFailure);
  CHECK_EQ(launch(&host().scaled, out, 1, 1), cudaErrorLaunchFailure);
  CHECK_TEXT(cudaGetErrorString(cudaErrorLaunchFailure), "past the end of 'allocation");
  CHECK_EQ(std::string(cudaGetErrorName(cudaErrorLaunchFailure)), "cudaErrorLaunchFailure");
}

int main(int argc, char** argv) {
  setenv("BWGEMM_EMULATOR_SETTINGS", "seed=1,sm_count=4,rule:same-value=off", 1);
  host();  // before the first call, as static constructors do
  return testing::run_all(argc, argv);
}
