// Element-wise reductions of bulk copies: PTX ISA 9.7.9.27.4.2 (cp.reduce.async.bulk).
#pragma once

#include <cstdint>

#include "emulator/machine/decoder.h"
#include "emulator/tensor/tensor_map.h"

namespace bwgemm::emulator {

enum class ReduceOp : uint8_t { kAdd, kMin, kMax, kInc, kDec, kAnd, kOr, kXor };
enum class ReduceType : uint8_t {
  kU32,
  kS32,
  kU64,
  kS64,
  kF16,
  kBF16,
  kF32,
  kF64,
  kB32,
  kB64,
  kNone
};

// Consumes .add, .min, ...
ReduceOp decode_reduce_op(Decoder& decoder);

// Type a tensor map stands for; kNone where reductions do not exist for it.
ReduceType reduce_type(TensorMapType type);
int reduce_bytes_per_element(ReduceType type);

// Why the combination does not exist, or null.
const char* reduce_problem(ReduceOp op, ReduceType type);

// to[i] = op(to[i], from[i]) for `bytes` bytes of elements.
void reduce_bytes(ReduceOp op, ReduceType type, uint8_t* to, const uint8_t* from, uint32_t bytes);

}  // namespace bwgemm::emulator
