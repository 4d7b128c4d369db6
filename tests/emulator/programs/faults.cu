// One fault of a kernel, chosen by the first argument; ends with 0 whatever happens, as careless
// programs do.
#include <cassert>
#include <cstdio>
#include <cstring>

__global__ void beyond(int* values) { values[threadIdx.x + 1] = 0; }
__global__ void asserts(int* values) { assert(values == nullptr && "not null"); }
__global__ void traps(int*) { __trap(); }
__global__ void races(int* values) { values[0] = threadIdx.x + blockIdx.x; }
__global__ void spins(int* values) {
  while (*reinterpret_cast<volatile int*>(values) != 7) continue;
}
__global__ void unknown(int* values) {
  asm volatile("multimem.red.relaxed.sys.global.add.u32 [%0], 1;" ::"l"(values) : "memory");
}
__global__ void harmless(int* values) { values[threadIdx.x] = 1; }
__global__ void same(int* values) { values[0] = 7; }

int main(int argc, char** argv) {
  const char* const which = argc > 1 ? argv[1] : "";
  int* values;
  cudaMalloc(&values, 32 * sizeof(int));
  if (std::strcmp(which, "beyond") == 0) beyond<<<1, 32>>>(values);
  if (std::strcmp(which, "asserts") == 0) asserts<<<1, 32>>>(values);
  if (std::strcmp(which, "traps") == 0) traps<<<1, 32>>>(values);
  if (std::strcmp(which, "races") == 0) races<<<4, 1>>>(values);
  if (std::strcmp(which, "same") == 0) same<<<4, 1>>>(values);
  if (std::strcmp(which, "spins") == 0) spins<<<2, 64>>>(values);
  if (std::strcmp(which, "unknown") == 0) unknown<<<1, 32>>>(values);
  harmless<<<1, 32>>>(values);
  std::printf("%s\n", cudaGetErrorName(cudaDeviceSynchronize()));
  return 0;
}
