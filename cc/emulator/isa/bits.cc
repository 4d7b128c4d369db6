// Counting, finding and moving bits (PTX ISA 9.7.1.14 - 9.7.1.22).
#include <algorithm>

#include "emulator/isa/isa.h"
#include "emulator/isa/lanes.h"

namespace bwgemm::emulator {
namespace {

struct Popc {
  template <typename T>
  static uint32_t f(T a) {
    return static_cast<uint32_t>(__builtin_popcountll(a));
  }
};
struct Clz {
  template <typename T>
  static uint32_t f(T a) {
    return a == 0 ? 8 * sizeof(T)
                  : static_cast<uint32_t>(__builtin_clzll(a)) - (64 - 8 * sizeof(T));
  }
};
struct Brev {
  template <typename T>
  static T f(T a) {
    T out = 0;
    for (size_t i = 0; i < 8 * sizeof(T); ++i) out = static_cast<T>(out << 1 | (a >> i & 1));
    return out;
  }
};
// Most significant bit that differs from the sign; .shiftamt gives how far to shift it to the top.
template <bool kShift>
struct Bfind {
  template <typename T>
  static uint32_t f(T a) {
    using U = std::make_unsigned_t<T>;
    U value = static_cast<U>(a);
    if (std::is_signed_v<T> && a < 0) value = static_cast<U>(~value);
    if (value == 0) return 0xFFFFFFFFu;
    const uint32_t bit = 63u - static_cast<uint32_t>(__builtin_clzll(value));
    return kShift ? static_cast<uint32_t>(8 * sizeof(T) - 1) - bit : bit;
  }
};
struct Bfe {
  template <typename T>
  static T f(T a, uint32_t position, uint32_t length) {
    constexpr uint32_t kMsb = 8 * sizeof(T) - 1;
    using U = std::make_unsigned_t<T>;
    const uint32_t pos = position & 0xFF, len = length & 0xFF;
    U sign = 0;
    if (std::is_signed_v<T> && len != 0)
      sign = static_cast<U>(static_cast<U>(a) >> std::min(pos + len - 1, kMsb) & 1);
    if (len == 0 || (pos > kMsb && !std::is_signed_v<T>)) return 0;
    U out = pos > kMsb ? U{0} : static_cast<U>(static_cast<U>(a) >> pos);
    const uint32_t valid = pos > kMsb ? 0 : std::min(len, kMsb + 1 - pos);
    if (valid <= kMsb) {
      const U field = static_cast<U>((U{1} << valid) - 1);
      out = static_cast<U>((out & field) | (sign != 0 ? ~field : U{0}));
    }
    return static_cast<T>(out);
  }
};
template <typename T>
Step exec_bfi(Warp& w, const Instr& in, uint32_t mask) {
  Lanes<T> d(w, in.op[0]);
  const Lanes<T> a(w, in.op[1]), b(w, in.op[2]);
  const uint32_t* position = w.r32(in.op[3]);
  const uint32_t* length = w.r32(in.op[4]);
  for_lanes(mask, [&](int lane) {
    constexpr uint32_t kBits = 8 * sizeof(T);
    const uint32_t pos = position[lane] & 0xFF, len = length[lane] & 0xFF;
    T field = len >= kBits ? ~T{0} : static_cast<T>((T{1} << len) - 1);
    field = pos >= kBits ? T{0} : static_cast<T>(field << pos);
    const T value = pos >= kBits ? T{0} : static_cast<T>(a.get(lane) << pos);
    d.set(lane, static_cast<T>((b.get(lane) & ~field) | (value & field)));
  });
  return Step::kNext;
}

struct Bmsk {
  static uint32_t make(uint32_t pos, uint32_t len, bool clamp) {
    if (clamp) {
      pos = std::min(pos, 32u);
      len = std::min(len, 32u);
    } else {
      pos &= 31;
      len &= 31;
    }
    const uint64_t field = ((uint64_t{1} << len) - 1) << pos;
    return static_cast<uint32_t>(field);
  }
};
Step exec_bmsk(Warp& w, const Instr& in, uint32_t mask) {
  uint32_t* d = w.r32(in.op[0]);
  const uint32_t *a = w.r32(in.op[1]), *b = w.r32(in.op[2]);
  for_lanes(mask, [&](int lane) { d[lane] = Bmsk::make(a[lane], b[lane], in.sub != 0); });
  return Step::kNext;
}
Step exec_szext(Warp& w, const Instr& in, uint32_t mask) {
  uint32_t* d = w.r32(in.op[0]);
  const uint32_t *a = w.r32(in.op[1]), *b = w.r32(in.op[2]);
  for_lanes(mask, [&](int lane) {
    const uint32_t n = (in.sub & 2) != 0 ? std::min(b[lane], 32u) : b[lane] & 31;
    uint32_t value = n == 32 ? a[lane] : a[lane] & ((1u << n) - 1);
    if ((in.sub & 1) != 0 && n > 0 && n < 32 && (value >> (n - 1) & 1) != 0)
      value |= ~((1u << n) - 1);
    d[lane] = value;
  });
  return Step::kNext;
}
// The bit position of the offset-th set bit from `base` upwards (downwards for negative offsets).
uint32_t fns(uint32_t bits, uint32_t base, int32_t offset) {
  if (offset == 0) return base < 32 && (bits >> base & 1) != 0 ? base : 0xFFFFFFFFu;
  int32_t count = 0;
  for (int64_t pos = base; pos >= 0 && pos < 32; pos += offset > 0 ? 1 : -1) {
    if ((bits >> pos & 1) != 0 && ++count == (offset > 0 ? offset : -int64_t{offset}))
      return static_cast<uint32_t>(pos);
  }
  return 0xFFFFFFFFu;
}
Step exec_fns(Warp& w, const Instr& in, uint32_t mask) {
  uint32_t* d = w.r32(in.op[0]);
  const uint32_t *a = w.r32(in.op[1]), *b = w.r32(in.op[2]), *c = w.r32(in.op[3]);
  for_lanes(mask,
            [&](int lane) { d[lane] = fns(a[lane], b[lane], static_cast<int32_t>(c[lane])); });
  return Step::kNext;
}

// popc, clz: 32-bit result.
template <typename Op>
void decode_count(Decoder& d) {
  const Type t = d.type();
  decode_operands(d, 1, 32, t.bits);
  if (t.bits == 32)
    d.out().exec = exec_unary<uint32_t, uint32_t, Op>;
  else if (t.bits == 64)
    d.out().exec = exec_unary<uint32_t, uint64_t, Op>;
  else
    d.unsupported("type ." + std::string(t.name));
}

void decode_brev(Decoder& d) {
  const Type t = d.type();
  decode_operands(d, 1, t);
  if (t.bits == 32)
    d.out().exec = exec_unary<uint32_t, uint32_t, Brev>;
  else if (t.bits == 64)
    d.out().exec = exec_unary<uint64_t, uint64_t, Brev>;
  else
    d.unsupported("type ." + std::string(t.name));
}

void decode_bfind(Decoder& d) {
  const bool shift = d.mod("shiftamt");
  const Type t = d.type();
  decode_operands(d, 1, 32, t.bits);
  const auto pick = [&](auto value) -> ExecFn {
    using T = decltype(value);
    return shift ? exec_unary<uint32_t, T, Bfind<true>> : exec_unary<uint32_t, T, Bfind<false>>;
  };
  if (t.bits == 32)
    d.out().exec = t.is_signed() ? pick(int32_t{}) : pick(uint32_t{});
  else if (t.bits == 64)
    d.out().exec = t.is_signed() ? pick(int64_t{}) : pick(uint64_t{});
  else
    d.unsupported("type ." + std::string(t.name));
}

void decode_bfe(Decoder& d) {
  const Type t = d.type();
  d.expect_operands(4, 4);
  d.out().op[0] = d.dst(0, t.bits);
  d.out().op[1] = d.src(1, t.bits);
  d.out().op[2] = d.src(2, 32);
  d.out().op[3] = d.src(3, 32);
  const bool s = t.is_signed();
  if (t.bits == 32)
    d.out().exec = s ? exec_ternary<int32_t, int32_t, uint32_t, uint32_t, Bfe>
                     : exec_ternary<uint32_t, uint32_t, uint32_t, uint32_t, Bfe>;
  else if (t.bits == 64)
    d.out().exec = s ? exec_ternary<int64_t, int64_t, uint32_t, uint32_t, Bfe>
                     : exec_ternary<uint64_t, uint64_t, uint32_t, uint32_t, Bfe>;
  else
    d.unsupported("type ." + std::string(t.name));
}

void decode_bfi(Decoder& d) {
  const Type t = d.type();
  d.expect_operands(5, 5);
  d.out().op[0] = d.dst(0, t.bits);
  d.out().op[1] = d.src(1, t.bits);
  d.out().op[2] = d.src(2, t.bits);
  d.out().op[3] = d.src(3, 32);
  d.out().op[4] = d.src(4, 32);
  if (t.bits == 32)
    d.out().exec = exec_bfi<uint32_t>;
  else if (t.bits == 64)
    d.out().exec = exec_bfi<uint64_t>;
  else
    d.unsupported("type ." + std::string(t.name));
}

void decode_bmsk(Decoder& d) {
  d.out().sub = d.mod_one_of({"clamp", "wrap"}) == "clamp";
  if (d.type().bits != 32) d.unsupported("type");
  decode_operands(d, 2, 32, 32);
  d.out().exec = exec_bmsk;
}

void decode_szext(Decoder& d) {
  const bool clamp = d.mod_one_of({"clamp", "wrap"}) == "clamp";
  const Type t = d.type();
  if (t.bits != 32) d.unsupported("type");
  decode_operands(d, 2, 32, 32);
  d.out().sub = static_cast<uint8_t>((t.is_signed() ? 1 : 0) | (clamp ? 2 : 0));
  d.out().exec = exec_szext;
}

void decode_fns(Decoder& d) {
  d.mod("b32");
  decode_operands(d, 3, 32, 32);
  d.out().exec = exec_fns;
}

}  // namespace

void register_bits(IsaTable& t) {
  t.add({"popc", decode_count<Popc>, "9.7.1.14"});
  t.add({"clz", decode_count<Clz>, "9.7.1.15"});
  t.add({"bfind", decode_bfind, "9.7.1.16"});
  t.add({"fns", decode_fns, "9.7.1.17"});
  t.add({"brev", decode_brev, "9.7.1.18"});
  t.add({"bfe", decode_bfe, "9.7.1.19"});
  t.add({"bfi", decode_bfi, "9.7.1.20"});
  t.add({"szext", decode_szext, "9.7.1.21"});
  t.add({"bmsk", decode_bmsk, "9.7.1.22"});
}

}  // namespace bwgemm::emulator
