// Clusters, asked for by a launch attribute and by the kernel itself, with distributed shared
// memory.
#include <cooperative_groups.h>

#include <cstdio>

namespace cg = cooperative_groups;

// Every CTA writes the sum of the ranks of its cluster, read from the others' shared memory.
__device__ void sum_of_ranks(int* out) {
  __shared__ int mine;
  cg::cluster_group cluster = cg::this_cluster();
  if (threadIdx.x == 0) mine = cluster.block_rank();
  cluster.sync();
  if (threadIdx.x == 0) {
    int sum = 0;
    for (unsigned rank = 0; rank < cluster.num_blocks(); ++rank)
      sum += *cluster.map_shared_rank(&mine, rank);
    out[blockIdx.x] = sum;
  }
  cluster.sync();
}

__global__ void asked(int* out) { sum_of_ranks(out); }
__global__ void __cluster_dims__(2, 1, 1) built_in(int* out) { sum_of_ranks(out); }

int main() {
  int* out;
  int back[8];
  if (cudaMalloc(&out, sizeof back) != cudaSuccess) return 1;
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = 4;
  attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = 8;
  config.blockDim = 64;
  config.attrs = &attribute;
  config.numAttrs = 1;
  int clusters = 0;
  if (cudaOccupancyMaxActiveClusters(&clusters, asked, &config) != cudaSuccess) return 1;
  if (cudaLaunchKernelEx(&config, asked, out) != cudaSuccess) return 1;
  if (cudaMemcpy(back, out, sizeof back, cudaMemcpyDeviceToHost) != cudaSuccess) return 1;
  std::printf("asked %d %d\n", back[0], back[7]);
  built_in<<<8, 64>>>(out);
  if (cudaDeviceSynchronize() != cudaSuccess) return 1;
  if (cudaMemcpy(back, out, sizeof back, cudaMemcpyDeviceToHost) != cudaSuccess) return 1;
  std::printf("built in %d %d\n", back[0], back[7]);
  config.gridDim = 6;
  const cudaError_t error = cudaLaunchKernelEx(&config, asked, out);
  std::printf("%s, then %s\n", cudaGetErrorName(error), cudaGetErrorName(cudaDeviceSynchronize()));
  return 0;
}
