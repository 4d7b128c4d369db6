// Threads that return early, ahead of barriers of cooperative groups, which all others wait at.
#include <cooperative_groups.h>

#include <cstdio>

namespace cg = cooperative_groups;

constexpr int kThreads = 64, kStays = 40;

__global__ void block(int* out) {
  __shared__ int shared[kThreads];
  const int i = static_cast<int>(threadIdx.x);
  if (i >= kStays) {
    out[i] = -1;
    return;
  }
  shared[i] = i;
  cg::this_thread_block().sync();
  out[i] = shared[kStays - 1 - i];
}

__global__ void __cluster_dims__(2) cluster(int* out) {
  __shared__ int shared[kThreads];
  const int i = static_cast<int>(threadIdx.x);
  if (i >= kStays) {
    out[kThreads * blockIdx.x + i] = -1;
    return;
  }
  shared[i] = i + 100 * static_cast<int>(blockIdx.x);
  auto all = cg::this_cluster();
  all.sync();
  out[kThreads * blockIdx.x + i] = *all.map_shared_rank(&shared[i], all.block_rank() ^ 1);
  all.sync();
}

int main() {
  int *out, host[2 * kThreads];
  cudaMalloc(&out, sizeof host);
  block<<<1, kThreads>>>(out);
  cudaMemcpy(host, out, sizeof host, cudaMemcpyDeviceToHost);
  std::printf("block %s: %d %d %d\n", cudaGetErrorName(cudaGetLastError()), host[0], host[39],
              host[40]);
  cluster<<<2, kThreads>>>(out);
  cudaMemcpy(host, out, sizeof host, cudaMemcpyDeviceToHost);
  std::printf("cluster %s: %d %d %d\n", cudaGetErrorName(cudaGetLastError()), host[39],
              host[kThreads + 39], host[kThreads + 40]);
  return 0;
}
