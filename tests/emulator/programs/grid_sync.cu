// A grid whose CTAs read what others wrote before a barrier of the whole grid.
#include <cooperative_groups.h>

#include <cstdio>

constexpr int kCtas = 6, kThreads = 64, kRounds = 3;

__global__ void shifted(int* values, int* sums) {
  const auto grid = cooperative_groups::this_grid();
  const int count = kCtas * kThreads;
  const int i = static_cast<int>(grid.thread_rank());
  int* from = values;
  int* to = values + count;
  from[i] = i;
  for (int round = 0; round < kRounds; ++round) {
    grid.sync();
    to[i] = from[(i + kThreads) % count];
    int* const other = from;
    from = to;
    to = other;
  }
  sums[i] = from[i];
}

int main() {
  constexpr int count = kCtas * kThreads;
  int *values, *sums, host[count];
  cudaMalloc(&values, 2 * sizeof host);
  cudaMalloc(&sums, sizeof host);
  void* arguments[] = {&values, &sums};
  for (int launch = 0; launch < 2; ++launch) {
    const cudaError_t error = cudaLaunchCooperativeKernel(
        reinterpret_cast<void*>(shifted), dim3(kCtas), dim3(kThreads), arguments, 0, nullptr);
    cudaMemcpy(host, sums, sizeof host, cudaMemcpyDeviceToHost);
    int wrong = 0;
    for (int i = 0; i < count; ++i) wrong += host[i] != (i + kRounds * kThreads) % count;
    std::printf("%s, %d wrong\n", cudaGetErrorName(error), wrong);
  }
  shifted<<<kCtas, kThreads>>>(values, sums);  // not cooperative: the barrier traps
  std::printf("%s\n", cudaGetErrorName(cudaDeviceSynchronize()));
  return 0;
}
