// Integer arithmetic (PTX ISA 9.7.1).
#include "emulator/isa/integer.h"

#include <algorithm>

#include "emulator/isa/arithmetic.h"
#include "emulator/isa/isa.h"
#include "emulator/isa/lanes.h"

namespace bwgemm::emulator {
namespace {

using namespace integer;

struct Min {
  template <typename T>
  static T f(T a, T b) {
    return std::min(a, b);
  }
};
struct Max {
  template <typename T>
  static T f(T a, T b) {
    return std::max(a, b);
  }
};
// Division by zero gives an unspecified value, as on the machine: all ones (PTX ISA 9.7.1.8); it
// does not trap.
struct Div {
  template <typename T>
  static T f(T a, T b) {
    if (b == 0) return static_cast<T>(~T{0});
    if constexpr (std::is_signed_v<T>) {
      if (b == -1) return static_cast<T>(0 - static_cast<Wide<T>>(a));
    }
    return static_cast<T>(a / b);
  }
};
struct Rem {
  template <typename T>
  static T f(T a, T b) {
    if (b == 0) return static_cast<T>(~T{0});
    if constexpr (std::is_signed_v<T>) {
      if (b == -1) return 0;
    }
    return static_cast<T>(a % b);
  }
};
struct Abs {
  template <typename T>
  static T f(T a) {
    return a < 0 ? static_cast<T>(0 - static_cast<Wide<T>>(a)) : a;
  }
};
struct Neg {
  template <typename T>
  static T f(T a) {
    return static_cast<T>(0 - static_cast<Wide<T>>(a));
  }
};
template <bool kSubtract>
struct Saturating {
  static int32_t f(int32_t a, int32_t b) {
    const int64_t exact = kSubtract ? int64_t{a} - b : int64_t{a} + b;
    return static_cast<int32_t>(std::clamp<int64_t>(exact, INT32_MIN, INT32_MAX));
  }
};
struct Sad {
  template <typename A, typename C>
  static C f(A a, A b, C c) {
    const A difference = a < b ? static_cast<A>(static_cast<Wide<A>>(b) - static_cast<Wide<A>>(a))
                               : static_cast<A>(static_cast<Wide<A>>(a) - static_cast<Wide<A>>(b));
    return static_cast<C>(static_cast<Wide<C>>(c) +
                          static_cast<Wide<C>>(static_cast<std::make_unsigned_t<A>>(difference)));
  }
};
struct MadLo {
  template <typename T>
  static T f(T a, T b, T c) {
    return static_cast<T>(static_cast<Wide<T>>(a) * static_cast<Wide<T>>(b) +
                          static_cast<Wide<T>>(c));
  }
};
struct MadHi {
  template <typename T>
  static T f(T a, T b, T c) {
    return Add::f(MulHi::f(a, b), c);
  }
};
struct MadHiSat {
  static int32_t f(int32_t a, int32_t b, int32_t c) {
    return Saturating<false>::f(MulHi::f(a, b), c);
  }
};
template <typename D>
struct MulWide {
  template <typename T>
  static D f(T a, T b) {
    return static_cast<D>(static_cast<std::make_unsigned_t<D>>(static_cast<D>(a)) *
                          static_cast<std::make_unsigned_t<D>>(static_cast<D>(b)));
  }
};
template <typename D>
struct MadWide {
  template <typename T>
  static D f(T a, T b, D c) {
    return Add::f(MulWide<D>::f(a, b), c);
  }
};
// 24-bit products: .lo the low 32 bits, .hi bits 16-47 of the 48-bit product.
template <typename T>
T low24(T a) {
  return static_cast<T>(static_cast<T>(static_cast<uint32_t>(a) << 8) >> 8);
}
struct Mul24Lo {
  template <typename T>
  static T f(T a, T b) {
    return MulLo::f(low24(a), low24(b));
  }
};
struct Mul24Hi {
  template <typename T>
  static T f(T a, T b) {
    using P = std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>;
    return static_cast<T>((static_cast<P>(low24(a)) * static_cast<P>(low24(b))) >> 16);
  }
};
template <typename M>
struct Mad24 {
  template <typename T>
  static T f(T a, T b, T c) {
    return Add::f(M::f(a, b), c);
  }
};

// ---- choosing the instance for a type

template <typename Op>
ExecFn binary_any(Type t) {
  if (t.lanes != 1) return nullptr;
  const bool s = t.is_signed();
  switch (t.bits) {
    case 16:
      return s ? exec_binary<int16_t, int16_t, int16_t, Op>
               : exec_binary<uint16_t, uint16_t, uint16_t, Op>;
    case 32:
      return s ? exec_binary<int32_t, int32_t, int32_t, Op>
               : exec_binary<uint32_t, uint32_t, uint32_t, Op>;
    case 64:
      return s ? exec_binary<int64_t, int64_t, int64_t, Op>
               : exec_binary<uint64_t, uint64_t, uint64_t, Op>;
    default:
      return nullptr;
  }
}
template <typename Op>
ExecFn ternary_any(Type t) {
  if (t.lanes != 1) return nullptr;
  const bool s = t.is_signed();
  switch (t.bits) {
    case 16:
      return s ? exec_ternary<int16_t, int16_t, int16_t, int16_t, Op>
               : exec_ternary<uint16_t, uint16_t, uint16_t, uint16_t, Op>;
    case 32:
      return s ? exec_ternary<int32_t, int32_t, int32_t, int32_t, Op>
               : exec_ternary<uint32_t, uint32_t, uint32_t, uint32_t, Op>;
    case 64:
      return s ? exec_ternary<int64_t, int64_t, int64_t, int64_t, Op>
               : exec_ternary<uint64_t, uint64_t, uint64_t, uint64_t, Op>;
    default:
      return nullptr;
  }
}

// Two 16-bit lanes in 32 bits.
template <typename T, typename Op>
struct Pair16 {
  static uint32_t f(uint32_t a, uint32_t b) {
    const uint16_t low = static_cast<uint16_t>(Op::f(static_cast<T>(a), static_cast<T>(b)));
    const uint16_t high =
        static_cast<uint16_t>(Op::f(static_cast<T>(a >> 16), static_cast<T>(b >> 16)));
    return static_cast<uint32_t>(high) << 16 | low;
  }
};
template <typename Op>
ExecFn binary_x2(Type t) {
  return t.is_signed() ? exec_binary<uint32_t, uint32_t, uint32_t, Pair16<int16_t, Op>>
                       : exec_binary<uint32_t, uint32_t, uint32_t, Pair16<uint16_t, Op>>;
}

void finish(Decoder& d, ExecFn exec, Type t, size_t sources) {
  if (exec == nullptr) d.unsupported("type ." + std::string(t.name));
  decode_operands(d, sources, t);
  d.out().exec = exec;
}

// ---- entries

template <typename Op, bool kSubtract>
void decode_add_sub(Decoder& d) {
  if (d.mod("cc")) return kSubtract ? decode_sub_cc(d) : decode_add_cc(d);
  const bool saturate = d.mod("sat");
  const Type t = d.type();
  if (saturate) {
    if (t.name != "s32") d.unsupported(".sat with ." + std::string(t.name));
    return finish(d, exec_binary<int32_t, int32_t, int32_t, Saturating<kSubtract>>, t, 2);
  }
  finish(d, t.lanes == 2 ? binary_x2<Op>(t) : binary_any<Op>(t), t, 2);
}

template <typename Op>
struct Relu {
  template <typename T>
  static T f(T a, T b) {
    return std::max<T>(Op::f(a, b), 0);
  }
};

template <typename Op>
void decode_min_max(Decoder& d) {
  const bool relu = d.mod("relu");
  const Type t = d.type();
  if (relu) {
    if (t.name != "s32" && t.name != "s16x2") d.unsupported(".relu with ." + std::string(t.name));
    return finish(d, t.lanes == 2 ? binary_x2<Relu<Op>>(t) : binary_any<Relu<Op>>(t), t, 2);
  }
  finish(d, t.lanes == 2 ? binary_x2<Op>(t) : binary_any<Op>(t), t, 2);
}

template <typename Op>
void decode_div_rem(Decoder& d) {
  const Type t = d.type();
  finish(d, binary_any<Op>(t), t, 2);
}

void decode_mul(Decoder& d) {
  if (d.mod("wide")) {
    const Type t = d.type();
    if (!t.is_int() || (t.bits != 16 && t.bits != 32))
      d.unsupported("type ." + std::string(t.name));
    const bool s = t.is_signed();
    decode_operands(d, 2, 2 * t.bits, t.bits);
    if (t.bits == 16) {
      d.out().exec = s ? exec_binary<int32_t, int16_t, int16_t, MulWide<int32_t>>
                       : exec_binary<uint32_t, uint16_t, uint16_t, MulWide<uint32_t>>;
    } else {
      d.out().exec = s ? exec_binary<int64_t, int32_t, int32_t, MulWide<int64_t>>
                       : exec_binary<uint64_t, uint32_t, uint32_t, MulWide<uint64_t>>;
    }
    return;
  }
  const std::string_view half = d.mod_one_of({"lo", "hi"});
  const Type t = d.type();
  if (half.empty()) d.error("integer mul needs .lo, .hi or .wide");
  finish(d, half == "lo" ? binary_any<MulLo>(t) : binary_any<MulHi>(t), t, 2);
}

void decode_mad(Decoder& d) {
  if (d.mod("cc")) return decode_mad_cc(d);
  if (d.mod("wide")) {
    const Type t = d.type();
    const bool s = t.is_signed();
    d.expect_operands(4, 4);
    if (t.bits != 16 && t.bits != 32) d.unsupported("type ." + std::string(t.name));
    d.out().op[0] = d.dst(0, 2 * t.bits);
    d.out().op[1] = d.src(1, t.bits);
    d.out().op[2] = d.src(2, t.bits);
    d.out().op[3] = d.src(3, 2 * t.bits);
    if (t.bits == 16)
      d.out().exec = s ? exec_ternary<int32_t, int16_t, int16_t, int32_t, MadWide<int32_t>>
                       : exec_ternary<uint32_t, uint16_t, uint16_t, uint32_t, MadWide<uint32_t>>;
    else
      d.out().exec = s ? exec_ternary<int64_t, int32_t, int32_t, int64_t, MadWide<int64_t>>
                       : exec_ternary<uint64_t, uint32_t, uint32_t, uint64_t, MadWide<uint64_t>>;
    return;
  }
  const std::string_view half = d.mod_one_of({"lo", "hi"});
  const bool saturate = d.mod("sat");
  const Type t = d.type();
  if (half.empty()) d.error("integer mad needs .lo, .hi or .wide");
  if (saturate) {
    if (half != "hi" || t.name != "s32") d.unsupported(".sat with ." + std::string(t.name));
    return finish(d, exec_ternary<int32_t, int32_t, int32_t, int32_t, MadHiSat>, t, 3);
  }
  finish(d, half == "lo" ? ternary_any<MadLo>(t) : ternary_any<MadHi>(t), t, 3);
}

template <typename Lo, typename Hi, size_t kSources>
void decode_24(Decoder& d) {
  const bool high = d.mod_one_of({"lo", "hi"}) == "hi";
  const Type t = d.type();
  if (t.bits != 32 || !t.is_int()) d.unsupported("type ." + std::string(t.name));
  ExecFn exec;
  if constexpr (kSources == 2) {
    if (t.is_signed())
      exec = high ? exec_binary<int32_t, int32_t, int32_t, Hi>
                  : exec_binary<int32_t, int32_t, int32_t, Lo>;
    else
      exec = high ? exec_binary<uint32_t, uint32_t, uint32_t, Hi>
                  : exec_binary<uint32_t, uint32_t, uint32_t, Lo>;
  } else {
    if (t.is_signed())
      exec = high ? exec_ternary<int32_t, int32_t, int32_t, int32_t, Hi>
                  : exec_ternary<int32_t, int32_t, int32_t, int32_t, Lo>;
    else
      exec = high ? exec_ternary<uint32_t, uint32_t, uint32_t, uint32_t, Hi>
                  : exec_ternary<uint32_t, uint32_t, uint32_t, uint32_t, Lo>;
  }
  finish(d, exec, t, kSources);
}

template <typename Op>
void decode_abs_neg(Decoder& d) {
  const Type t = d.type();
  if (!t.is_signed()) d.unsupported("type ." + std::string(t.name));
  finish(d,
         t.bits == 16   ? exec_unary<int16_t, int16_t, Op>
         : t.bits == 32 ? exec_unary<int32_t, int32_t, Op>
                        : exec_unary<int64_t, int64_t, Op>,
         t, 1);
}

void decode_sad(Decoder& d) {
  const Type t = d.type();
  const bool s = t.is_signed();
  ExecFn exec = nullptr;
  if (t.bits == 16)
    exec = s ? exec_ternary<int16_t, int16_t, int16_t, int16_t, Sad>
             : exec_ternary<uint16_t, uint16_t, uint16_t, uint16_t, Sad>;
  if (t.bits == 32)
    exec = s ? exec_ternary<int32_t, int32_t, int32_t, int32_t, Sad>
             : exec_ternary<uint32_t, uint32_t, uint32_t, uint32_t, Sad>;
  if (t.bits == 64)
    exec = s ? exec_ternary<int64_t, int64_t, int64_t, int64_t, Sad>
             : exec_ternary<uint64_t, uint64_t, uint64_t, uint64_t, Sad>;
  finish(d, exec, t, 3);
}

}  // namespace

// add, sub, mul, mad, min, max, abs, neg, div and rem also exist for floating-point types: float.cc
// registers entries that look at the type and call these for integers.
void decode_integer_add(Decoder& d) { decode_add_sub<Add, false>(d); }
void decode_integer_sub(Decoder& d) { decode_add_sub<Sub, true>(d); }
void decode_integer_mul(Decoder& d) { decode_mul(d); }
void decode_integer_mad(Decoder& d) { decode_mad(d); }
void decode_integer_min(Decoder& d) { decode_min_max<Min>(d); }
void decode_integer_max(Decoder& d) { decode_min_max<Max>(d); }
void decode_integer_abs(Decoder& d) { decode_abs_neg<Abs>(d); }
void decode_integer_neg(Decoder& d) { decode_abs_neg<Neg>(d); }
void decode_integer_div(Decoder& d) { decode_div_rem<Div>(d); }

void register_integer(IsaTable& t) {
  t.add({"rem", decode_div_rem<Rem>, "9.7.1.9"});
  t.add({"sad", decode_sad, "9.7.1.7"});
  t.add({"mul24", decode_24<Mul24Lo, Mul24Hi, 2>, "9.7.1.5"});
  t.add({"mad24", decode_24<Mad24<Mul24Lo>, Mad24<Mul24Hi>, 3>, "9.7.1.6"});
}

}  // namespace bwgemm::emulator
