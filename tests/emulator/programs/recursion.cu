// Functions that call themselves or each other; the last one never ends.
#include <cstdio>

__device__ __noinline__ int fibonacci(int n) {
  return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2);
}

// Each call has an array of its own, and changes its caller's.
__device__ __noinline__ int marks(const bool* used, bool* next, int n, int left) {
  if (left == 0) return 1;
  bool mine[6];
  int count = 0;
  for (int i = 0; i < n; ++i) {
    if (used[i]) continue;
    for (int j = 0; j < n; ++j) mine[j] = used[j] || j == i;
    count += marks(mine, mine, n, left - 1);
    next[i] = true;
  }
  for (int i = 0; i < n; ++i) count += !next[i];
  return count;
}

__device__ __noinline__ bool odd(int n);
__device__ __noinline__ bool even(int n) { return n == 0 || odd(n - 1); }
__device__ __noinline__ bool odd(int n) { return n != 0 && even(n - 1); }

__device__ __noinline__ int down(volatile int* to, const volatile int* stop) {
  if (*stop != 0) return 0;
  *to = *to + 1;
  return down(to, stop) + *to;
}

__global__ void fibonaccis(int* out) { out[threadIdx.x] = fibonacci(threadIdx.x % 8); }
__global__ void arrays(int* out) {
  const int n = threadIdx.x % 6;
  bool none[6] = {}, all[6] = {};
  out[threadIdx.x] = marks(none, all, n, n);
}
__global__ void parity(int* out) { out[threadIdx.x] = odd(threadIdx.x); }
__global__ void endless(int* out) { out[threadIdx.x] = down(out + threadIdx.x, out + 32); }

int main() {
  int *device, host[32];
  cudaMalloc(&device, 33 * sizeof(int));
  cudaMemset(device, 0, 33 * sizeof(int));
  const auto print = [&](const char* name) {
    cudaMemcpy(host, device, sizeof host, cudaMemcpyDeviceToHost);
    std::printf("%s %d %d %d\n", name, host[5], host[6], host[31]);
  };
  fibonaccis<<<1, 32>>>(device);
  print("fibonacci");
  arrays<<<1, 32>>>(device);
  print("arrays");
  parity<<<1, 32>>>(device);
  print("odd");
  endless<<<1, 32>>>(device);
  std::printf("endless %s\n", cudaGetErrorName(cudaDeviceSynchronize()));
  return 0;
}
