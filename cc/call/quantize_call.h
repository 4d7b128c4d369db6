// A call of the quantization kernels as it arrives from a framework: checked and launched.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <string_view>

#include "call/buffer.h"
#include "call/product_call.h"
#include "core/epilogue_arguments.h"

namespace bwgemm::call {

// Buffers of a call. Scales are operands of layouts "tensor" and "row", results of the others.
//   x         [B, R, K], bfloat16, float16 or float32
//   random    [B, 5] int32; absent: values are rounded to nearest even
//   values    [B, R, K], float8_e4m3fn or float8_e5m2;  t_values  [B, K, R], may be absent
//   scales    f32 [B], [B, R], [B, K/128, R] or [B, R/128, K/128];  t_scales: of [B, K, R] likewise
//   amax      f32 [B, tiles], the largest magnitude of each 128 x 128, in any order; may be absent
//   x0, ...   in the place of x: what a linked function reads
enum class QuantizeRole { kX, kRandom, kValues, kTValues, kScales, kTScales, kAmax, kX0 };
inline constexpr int kQuantizeRoles = static_cast<int>(QuantizeRole::kX0) + kMaxEpilogueOperands;

std::string_view Name(QuantizeRole role);

struct QuantizeCall {
  std::string_view scaling;  // "tensor", "row", "1x128" or "128x128"
  bool power_of_two = false;
  float epsilon = 0;
  // The kernel with a function in it that computes x, and its name; `code` is empty where x is in
  // memory. `operands`: types and elements of x0, ...: "bfloat16:4096 float32:1".
  std::string_view kernel;
  LinkedEpilogue source;
  std::array<Buffer, kQuantizeRoles> buffers;
  std::array<bool, kQuantizeRoles> is_result{};

  Buffer& operator[](QuantizeRole role) { return buffers[static_cast<int>(role)]; }
  const Buffer& operator[](QuantizeRole role) const { return buffers[static_cast<int>(role)]; }
};

// Loads the kernel of a call, ahead of it.
Status PrepareQuantize(const QuantizeCall& call, int device);

// Checks everything, then launches one kernel on the stream.
Status RunQuantize(const QuantizeCall& call, int device, cudaStream_t stream);

}  // namespace bwgemm::call
