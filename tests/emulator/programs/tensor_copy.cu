// A tensor map encoded by the driver function that the runtime hands out; a tile of it is loaded by
// TMA and written out plainly.
#include <cuda.h>

#include <cstdint>
#include <cstdio>
#include <vector>

constexpr int kRows = 64, kColumns = 32, kTile = 16;

__global__ void copy_tile(const __grid_constant__ CUtensorMap map, float* out, int x, int y) {
  __shared__ alignas(128) float tile[kTile][kTile];
  __shared__ alignas(8) uint64_t barrier;
  const uint32_t at = static_cast<uint32_t>(__cvta_generic_to_shared(tile));
  const uint32_t bar = static_cast<uint32_t>(__cvta_generic_to_shared(&barrier));
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(bar));
    asm volatile("fence.mbarrier_init.release.cluster;");
    asm volatile("fence.proxy.async;");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar),
                 "r"(static_cast<uint32_t>(sizeof tile)));
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3}], [%4];" ::"r"(at),
        "l"(&map), "r"(x), "r"(y), "r"(bar)
        : "memory");
  }
  __syncthreads();
  asm volatile(
      "{\n.reg .pred done;\nWAIT:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], 0;\n"
      "@!done bra WAIT;\n}" ::"r"(bar)
      : "memory");
  for (int i = threadIdx.x; i < kTile * kTile; i += blockDim.x) out[i] = tile[i / kTile][i % kTile];
}

int main() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found;
  if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                       cudaEnableDefault, &found) != cudaSuccess ||
      found != cudaDriverEntryPointSuccess) {
    return 1;
  }
  std::vector<float> source(kRows * kColumns), tile(kTile * kTile);
  for (size_t i = 0; i < source.size(); ++i) source[i] = i;
  float *device, *out;
  cudaMalloc(&device, source.size() * sizeof(float));
  cudaMalloc(&out, tile.size() * sizeof(float));
  cudaMemcpy(device, source.data(), source.size() * sizeof(float), cudaMemcpyHostToDevice);
  CUtensorMap map;
  const cuuint64_t dims[] = {kColumns, kRows}, strides[] = {kColumns * sizeof(float)};
  const cuuint32_t box[] = {kTile, kTile}, ones[] = {1, 1};
  if (reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function)(
          &map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 2, device, dims, strides, box, ones,
          CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
          CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) != CUDA_SUCCESS) {
    return 1;
  }
  reinterpret_cast<uint64_t*>(&map)[1] &= ~(uint64_t{1} << 21);  // as CuTe does to small tensors
  copy_tile<<<1, 64>>>(map, out, 24, 56);  // half of the tile is outside on either side
  if (cudaMemcpy(tile.data(), out, tile.size() * sizeof(float), cudaMemcpyDeviceToHost) !=
      cudaSuccess) {
    std::printf("%s\n", cudaGetErrorString(cudaPeekAtLastError()));
    return 1;
  }
  for (int row = 0; row < kTile; ++row) {
    for (int column = 0; column < kTile; ++column) {
      const bool inside = row < 8 && column < 8;
      const float expected = inside ? (56 + row) * kColumns + 24 + column : 0;
      if (tile[row * kTile + column] != expected) return 1;
    }
  }
  std::printf("tile copied\n");
  return 0;
}
