// Typed views of register rows and the lane loops of ordinary instructions. With all lanes active
// the loops have a constant trip count and no branches, which g++ vectorises.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "emulator/machine/decoder.h"
#include "emulator/machine/instr.h"
#include "emulator/machine/warp.h"

namespace bwgemm::emulator {

// How a value of T lies in its row: 64-bit values in uint64_t[32], 32-bit ones in uint32_t[32],
// smaller ones zero-extended to 32 bits.
template <typename T>
class Lanes {
  using Raw = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;

 public:
  Lanes(Warp& w, Row row) : raw_(reinterpret_cast<Raw*>(w.r32(row))) {}

  T get(int lane) const {
    if constexpr (sizeof(T) < 4) {
      return static_cast<T>(raw_[lane]);
    } else {
      T value;
      std::memcpy(&value, &raw_[lane], sizeof value);
      return value;
    }
  }
  void set(int lane, T value) {
    if constexpr (sizeof(T) < 4) {
      raw_[lane] = static_cast<std::make_unsigned_t<T>>(value);
    } else {
      std::memcpy(&raw_[lane], &value, sizeof value);
    }
  }

 private:
  Raw* raw_;
};

// d = Op(a), d = Op(a, b), d = Op(a, b, c) with operands op[0], op[1], ... Op::f is a static
// function template or function.
template <typename D, typename A, typename Op>
Step exec_unary(Warp& w, const Instr& in, uint32_t mask) {
  Lanes<D> d(w, in.op[0]);
  const Lanes<A> a(w, in.op[1]);
  for_lanes(mask, [&](int lane) { d.set(lane, Op::f(a.get(lane))); });
  return Step::kNext;
}

template <typename D, typename A, typename B, typename Op>
Step exec_binary(Warp& w, const Instr& in, uint32_t mask) {
  Lanes<D> d(w, in.op[0]);
  const Lanes<A> a(w, in.op[1]);
  const Lanes<B> b(w, in.op[2]);
  for_lanes(mask, [&](int lane) { d.set(lane, static_cast<D>(Op::f(a.get(lane), b.get(lane)))); });
  return Step::kNext;
}

template <typename D, typename A, typename B, typename C, typename Op>
Step exec_ternary(Warp& w, const Instr& in, uint32_t mask) {
  Lanes<D> d(w, in.op[0]);
  const Lanes<A> a(w, in.op[1]);
  const Lanes<B> b(w, in.op[2]);
  const Lanes<C> c(w, in.op[3]);
  for_lanes(mask, [&](int lane) {
    d.set(lane, static_cast<D>(Op::f(a.get(lane), b.get(lane), c.get(lane))));
  });
  return Step::kNext;
}

// Operand decoding for the usual forms: destination and `sources` sources, all of the same size.
inline void decode_operands(Decoder& d, size_t sources, int dst_bits, int src_bits) {
  d.expect_operands(1 + sources, 1 + sources);
  d.out().op[0] = d.dst(0, dst_bits);
  for (size_t i = 0; i < sources; ++i) d.out().op[1 + i] = d.src(1 + i, src_bits);
}

inline void decode_operands(Decoder& d, size_t sources, Type type) {
  d.expect_operands(1 + sources, 1 + sources);
  d.out().op[0] = d.dst(0, type.bits);
  for (size_t i = 0; i < sources; ++i) d.out().op[1 + i] = d.src(1 + i, type);
}

}  // namespace bwgemm::emulator
