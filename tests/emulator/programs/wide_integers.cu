// Numbers of 128 bits, and pointers in packed structures that are initialised on the device.
#include <cstdio>

using Wide = unsigned __int128;

struct __attribute__((packed)) Packed {
  char tag;
  int* pointer;
};
__device__ int numbers[4] = {1, 2, 3, 4};
__device__ Packed packed = {7, &numbers[2]};

__global__ void divide(const Wide* pairs, Wide* out) {
  const Wide a = pairs[2 * threadIdx.x], b = pairs[2 * threadIdx.x + 1];
  out[2 * threadIdx.x] = a / b;
  out[2 * threadIdx.x + 1] = a % b;
}

__global__ void follow(int* out) {
  out[0] = packed.tag;
  out[1] = *packed.pointer;
}

int main() {
  constexpr int kPairs = 6;
  const Wide one = 1;
  const Wide host[2 * kPairs] = {100,
                                 7,
                                 one << 64,
                                 3,
                                 (one << 70) + 5,
                                 one << 66,
                                 one << 127,
                                 3,
                                 (Wide{123} << 64) + 77,
                                 (one << 63) | 12345,
                                 ~Wide{0},
                                 (one << 100) - 1};
  Wide *pairs, *out, results[2 * kPairs];
  cudaMalloc(&pairs, sizeof host);
  cudaMalloc(&out, sizeof host);
  cudaMemcpy(pairs, host, sizeof host, cudaMemcpyHostToDevice);
  divide<<<1, kPairs>>>(pairs, out);
  cudaMemcpy(results, out, sizeof host, cudaMemcpyDeviceToHost);
  int wrong = 0;
  for (int i = 0; i < kPairs; ++i) {
    wrong += results[2 * i] != host[2 * i] / host[2 * i + 1];
    wrong += results[2 * i + 1] != host[2 * i] % host[2 * i + 1];
  }
  int *found, values[2];
  cudaMalloc(&found, sizeof values);
  follow<<<1, 1>>>(found);
  cudaMemcpy(values, found, sizeof values, cudaMemcpyDeviceToHost);
  std::printf("%d wrong, %d %d\n", wrong, values[0], values[1]);
  return 0;
}
