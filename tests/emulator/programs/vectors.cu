// Ordinary runtime calls: memory, constant and global symbols, streams, events, several kernels,
// printf.
#include <cstdio>
#include <cstdlib>
#include <vector>

#define CHECK(call)                                                       \
  do {                                                                    \
    const cudaError_t error = (call);                                     \
    if (error != cudaSuccess) {                                           \
      std::printf("line %d: %s: %s\n", __LINE__, cudaGetErrorName(error), \
                  cudaGetErrorString(error));                             \
      std::exit(1);                                                       \
    }                                                                     \
  } while (0)

__constant__ float scale[2];
__device__ int blocks_run;

__global__ void scaled_sum(const float* a, const float* b, float* c, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) c[i] = scale[1] * a[i] + b[i];
  if (threadIdx.x == 0) atomicAdd(&blocks_run, 1);
  if (i == n - 1) printf("c[%d] = %.1f, %s\n", i, c[i], "from the device");
}

template <typename T>
__global__ void add_to_all(T* values, int n, T what) {
  extern __shared__ char bytes[];
  T* const staged = reinterpret_cast<T*>(bytes);
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  staged[threadIdx.x] = i < n ? values[i] : T(0);
  __syncthreads();
  if (i < n) values[i] = staged[threadIdx.x] + what;
}

int main(int argc, char** argv) {
  const int n = argc > 1 ? std::atoi(argv[1]) : 1000;
  std::vector<float> a(n), b(n), c(n);
  for (int i = 0; i < n; ++i) a[i] = i, b[i] = 2 * i;
  float *da, *db, *dc;
  CHECK(cudaMalloc(&da, n * sizeof(float)));
  CHECK(cudaMallocAsync(&db, n * sizeof(float), 0));
  CHECK(cudaMallocManaged(&dc, n * sizeof(float)));
  cudaStream_t stream;
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  CHECK(cudaMemcpy(da, a.data(), n * sizeof(float), cudaMemcpyHostToDevice));
  CHECK(cudaMemcpyAsync(db, b.data(), n * sizeof(float), cudaMemcpyHostToDevice, stream));
  const float scales[2] = {0, 3};
  CHECK(cudaMemcpyToSymbol(scale, scales, sizeof scales));

  cudaEvent_t start, end;
  CHECK(cudaEventCreate(&start));
  CHECK(cudaEventCreate(&end));
  CHECK(cudaEventRecord(start, stream));
  int size = 0, least = 0;
  CHECK(cudaOccupancyMaxPotentialBlockSize(&least, &size, scaled_sum));
  std::printf("block size %d\n", size);
  const int grid = (n + 255) / 256;
  scaled_sum<<<grid, 256, 0, stream>>>(da, db, dc, n);
  CHECK(cudaGetLastError());
  CHECK(
      cudaFuncSetAttribute(add_to_all<float>, cudaFuncAttributeMaxDynamicSharedMemorySize, 65536));
  add_to_all<<<grid, 256, 65536, stream>>>(dc, n, 0.5f);
  CHECK(cudaEventRecord(end, stream));
  CHECK(cudaStreamSynchronize(stream));
  float milliseconds = -1;
  CHECK(cudaEventElapsedTime(&milliseconds, start, end));
  CHECK(cudaMemcpy(c.data(), dc, n * sizeof(float), cudaMemcpyDeviceToHost));

  int blocks = 0, *address = nullptr;
  CHECK(cudaMemcpyFromSymbol(&blocks, blocks_run, sizeof blocks));
  CHECK(cudaGetSymbolAddress(reinterpret_cast<void**>(&address), blocks_run));
  CHECK(cudaMemset(address, 0, sizeof blocks));
  cudaDeviceProp properties;
  CHECK(cudaGetDeviceProperties(&properties, 0));
  for (int i = 0; i < n; ++i) {
    if (c[i] != 5.0f * i + 0.5f) {
      std::printf("c[%d] is %f\n", i, c[i]);
      return 1;
    }
  }
  std::printf("%d blocks on compute capability %d.%d, %d SMs, time %s\n", blocks, properties.major,
              properties.minor, properties.multiProcessorCount,
              milliseconds >= 0 ? "passed" : "bad");
  CHECK(cudaFree(da));
  CHECK(cudaFreeAsync(db, stream));
  CHECK(cudaFree(dc));
  CHECK(cudaEventDestroy(start));
  CHECK(cudaEventDestroy(end));
  CHECK(cudaStreamDestroy(stream));
  CHECK(cudaDeviceSynchronize());
  return 0;
}
