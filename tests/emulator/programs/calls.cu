// Calls through a table of functions, a pointer chosen at run time and virtual functions.
#include <cstdio>

using Unary = int (*)(int);

__device__ __noinline__ int more(int x) { return x + 1; }
__device__ __noinline__ int twice(int x) { return 2 * x; }
__device__ Unary table[2] = {more, twice};

struct Shape {
  __device__ virtual int area(int scale) const = 0;
};
struct Square : Shape {
  int side;
  __device__ explicit Square(int side) : side(side) {}
  __device__ int area(int scale) const override { return side * side * scale; }
};
struct Strip : Shape {
  int length;
  __device__ explicit Strip(int length) : length(length) {}
  __device__ int area(int scale) const override { return 3 * length + scale; }
};

__global__ void tabled(int* out) { out[threadIdx.x] = table[threadIdx.x % 2](threadIdx.x); }

__global__ void chosen(int* out, int which) {
  const Unary f = which ? more : twice;
  out[threadIdx.x] = f(threadIdx.x);
}

__global__ void shaped(int* out) {
  const int i = threadIdx.x;
  const Square square(i);
  const Strip strip(i);
  const Shape* const shape = i % 3 ? static_cast<const Shape*>(&square) : &strip;
  out[i] = shape->area(i);
}

int main() {
  int *device, host[32];
  cudaMalloc(&device, sizeof host);
  const auto print = [&](const char* name) {
    cudaMemcpy(host, device, sizeof host, cudaMemcpyDeviceToHost);
    std::printf("%s %d %d %d\n", name, host[5], host[6], host[31]);
  };
  tabled<<<1, 32>>>(device);
  print("tabled");
  chosen<<<1, 32>>>(device, 0);
  print("chosen");
  shaped<<<1, 32>>>(device);
  print("shaped");
  return cudaDeviceSynchronize() != cudaSuccess;
}
