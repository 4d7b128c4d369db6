#include "emulator/tensor/bulk_reduce.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "emulator/tensor/number_formats.h"

namespace bwgemm::emulator {
namespace {

uint16_t encode_bf16(float value) {
  const uint32_t bits = bits_from_float(value);
  if (std::isnan(value)) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}

template <class T>
T integer_op(ReduceOp op, T a, T b) {
  using U = std::make_unsigned_t<T>;
  switch (op) {
    case ReduceOp::kAdd:
      return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
    case ReduceOp::kMin:
      return std::min(a, b);
    case ReduceOp::kMax:
      return std::max(a, b);
    case ReduceOp::kInc:
      return static_cast<U>(a) >= static_cast<U>(b) ? T{0} : static_cast<T>(a + 1);
    case ReduceOp::kDec:
      return a == 0 || static_cast<U>(a) > static_cast<U>(b) ? b : static_cast<T>(a - 1);
    case ReduceOp::kAnd:
      return a & b;
    case ReduceOp::kOr:
      return a | b;
    case ReduceOp::kXor:
      return a ^ b;
  }
  return a;
}

template <class T>
T float_op(ReduceOp op, T a, T b) {
  switch (op) {
    case ReduceOp::kMin:
      return std::fmin(a, b);
    case ReduceOp::kMax:
      return std::fmax(a, b);
    default:
      return a + b;
  }
}

template <class T, class Combine>
void each(uint8_t* to, const uint8_t* from, uint32_t bytes, Combine&& combine) {
  for (uint32_t i = 0; i + sizeof(T) <= bytes; i += sizeof(T)) {
    T a, b;
    std::memcpy(&a, to + i, sizeof(T));
    std::memcpy(&b, from + i, sizeof(T));
    a = combine(a, b);
    std::memcpy(to + i, &a, sizeof(T));
  }
}

}  // namespace

ReduceOp decode_reduce_op(Decoder& d) {
  static constexpr std::string_view kNames[8] = {"add", "min", "max", "inc",
                                                 "dec", "and", "or",  "xor"};
  for (int i = 0; i < 8; ++i) {
    if (d.mod(kNames[i])) return static_cast<ReduceOp>(i);
  }
  d.error("needs a reduction such as .add");
}

ReduceType reduce_type(TensorMapType type) {
  switch (type) {
    case TensorMapType::kU32:
      return ReduceType::kU32;
    case TensorMapType::kS32:
      return ReduceType::kS32;
    case TensorMapType::kU64:
      return ReduceType::kU64;
    case TensorMapType::kS64:
      return ReduceType::kS64;
    case TensorMapType::kF16:
      return ReduceType::kF16;
    case TensorMapType::kBF16:
      return ReduceType::kBF16;
    case TensorMapType::kF32:
    case TensorMapType::kF32Ftz:
      return ReduceType::kF32;
    case TensorMapType::kF64:
      return ReduceType::kF64;
    default:
      return ReduceType::kNone;
  }
}

int reduce_bytes_per_element(ReduceType type) {
  switch (type) {
    case ReduceType::kF16:
    case ReduceType::kBF16:
      return 2;
    case ReduceType::kU64:
    case ReduceType::kS64:
    case ReduceType::kF64:
    case ReduceType::kB64:
      return 8;
    default:
      return 4;
  }
}

const char* reduce_problem(ReduceOp op, ReduceType type) {
  const bool bitwise = op == ReduceOp::kAnd || op == ReduceOp::kOr || op == ReduceOp::kXor;
  switch (type) {
    case ReduceType::kNone:
      return "reductions do not exist for this type";
    case ReduceType::kF16:
    case ReduceType::kBF16:
      return op == ReduceOp::kAdd || op == ReduceOp::kMin || op == ReduceOp::kMax
                 ? nullptr
                 : "16-bit floats have only .add, .min and .max";
    case ReduceType::kF32:
    case ReduceType::kF64:
      return op == ReduceOp::kAdd ? nullptr : "f32 and f64 have only .add";
    case ReduceType::kB32:
    case ReduceType::kB64:
      return bitwise ? nullptr : "untyped bits have only .and, .or and .xor";
    default:
      return (op == ReduceOp::kInc || op == ReduceOp::kDec) && type != ReduceType::kU32
                 ? ".inc and .dec exist for u32 only"
                 : nullptr;
  }
}

void reduce_bytes(ReduceOp op, ReduceType type, uint8_t* to, const uint8_t* from, uint32_t bytes) {
  switch (type) {
    case ReduceType::kU32:
    case ReduceType::kB32:
      return each<uint32_t>(to, from, bytes,
                            [op](uint32_t a, uint32_t b) { return integer_op(op, a, b); });
    case ReduceType::kS32:
      return each<int32_t>(to, from, bytes,
                           [op](int32_t a, int32_t b) { return integer_op(op, a, b); });
    case ReduceType::kU64:
    case ReduceType::kB64:
      return each<uint64_t>(to, from, bytes,
                            [op](uint64_t a, uint64_t b) { return integer_op(op, a, b); });
    case ReduceType::kS64:
      return each<int64_t>(to, from, bytes,
                           [op](int64_t a, int64_t b) { return integer_op(op, a, b); });
    case ReduceType::kF16:
      return each<uint16_t>(to, from, bytes, [op](uint16_t a, uint16_t b) {
        return encode_f16(
            float_op(op, decode(NumberFormat::kF16, a), decode(NumberFormat::kF16, b)));
      });
    case ReduceType::kBF16:
      return each<uint16_t>(to, from, bytes, [op](uint16_t a, uint16_t b) {
        return encode_bf16(
            float_op(op, decode(NumberFormat::kBF16, a), decode(NumberFormat::kBF16, b)));
      });
    case ReduceType::kF32:
      return each<float>(to, from, bytes, [op](float a, float b) { return float_op(op, a, b); });
    case ReduceType::kF64:
      return each<double>(to, from, bytes, [op](double a, double b) { return float_op(op, a, b); });
    case ReduceType::kNone:
      return;
  }
}

}  // namespace bwgemm::emulator
