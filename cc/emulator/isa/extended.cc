// Extended-precision arithmetic with the carry flag (PTX ISA 9.7.2) and dot products of packed
// integers (9.7.1.23, 9.7.1.24).
#include "emulator/isa/arithmetic.h"
#include "emulator/isa/integer.h"
#include "emulator/isa/isa.h"
#include "emulator/isa/lanes.h"
#include "emulator/machine/kernel_builder.h"

namespace bwgemm::emulator {
namespace {

using namespace integer;

// ---- carry chains. The carry flag is one hidden row per function, written by .cc. Subtraction
// adds the complement: its flag is 1 where nothing is borrowed, and addc and madc may follow it.

template <typename T, bool kSubtract, bool kCarryIn, bool kCarryOut>
Step exec_carry(Warp& w, const Instr& in, uint32_t mask) {
  Lanes<T> d(w, in.op[0]);
  const Lanes<T> a(w, in.op[1]), b(w, in.op[2]);
  uint32_t* carry = w.r32(in.op[4]);
  for_lanes(mask, [&](int lane) {
    const T y = kSubtract ? ~b.get(lane) : b.get(lane);
    const unsigned __int128 c = kCarryIn ? carry[lane] & 1 : kSubtract;
    const unsigned __int128 exact = c + a.get(lane) + y;
    d.set(lane, static_cast<T>(exact));
    if (kCarryOut) carry[lane] = static_cast<uint32_t>(exact >> (8 * sizeof(T))) & 1;
  });
  return Step::kNext;
}

Row decode_flag(Decoder& d, bool in, bool out) {
  const Row flag = d.carry_row();
  if (in) d.builder().reads(flag);
  if (out) d.builder().writes(flag);
  return flag;
}

template <bool kSubtract, bool kCarryIn>
void decode_carry(Decoder& d, bool carry_out) {
  const Type t = d.type();
  if (!t.is_int() || t.bits < 32) d.unsupported("type ." + std::string(t.name));
  decode_operands(d, 2, t);
  d.out().op[4] = decode_flag(d, kCarryIn, carry_out);
  if (t.bits == 32) {
    d.out().exec = carry_out ? exec_carry<uint32_t, kSubtract, kCarryIn, true>
                             : exec_carry<uint32_t, kSubtract, kCarryIn, false>;
  } else {
    d.out().exec = carry_out ? exec_carry<uint64_t, kSubtract, kCarryIn, true>
                             : exec_carry<uint64_t, kSubtract, kCarryIn, false>;
  }
}

template <typename T, bool kHigh, bool kCarryIn, bool kCarryOut>
Step exec_mad_carry(Warp& w, const Instr& in, uint32_t mask) {
  using U = std::make_unsigned_t<T>;
  Lanes<U> d(w, in.op[0]);
  const Lanes<T> a(w, in.op[1]), b(w, in.op[2]);
  const Lanes<U> c(w, in.op[3]);
  uint32_t* carry = w.r32(in.op[4]);
  for_lanes(mask, [&](int lane) {
    const U product = static_cast<U>(kHigh ? MulHi::f(a.get(lane), b.get(lane))
                                           : MulLo::f(a.get(lane), b.get(lane)));
    const unsigned __int128 exact =
        static_cast<unsigned __int128>(product) + c.get(lane) + (kCarryIn ? carry[lane] & 1 : 0);
    d.set(lane, static_cast<U>(exact));
    if (kCarryOut) carry[lane] = static_cast<uint32_t>(exact >> (8 * sizeof(T))) & 1;
  });
  return Step::kNext;
}

template <bool kCarryIn>
void decode_mad_carry(Decoder& d, bool carry_out) {
  const bool high = d.mod_one_of({"hi", "lo"}) == "hi";
  const Type t = d.type();
  if (!t.is_int() || t.bits < 32) d.unsupported("type ." + std::string(t.name));
  decode_operands(d, 3, t);
  d.out().op[4] = decode_flag(d, kCarryIn, carry_out);
  const auto pick = [&](auto zero) -> ExecFn {
    using T = decltype(zero);
    if (high)
      return carry_out ? exec_mad_carry<T, true, kCarryIn, true>
                       : exec_mad_carry<T, true, kCarryIn, false>;
    return carry_out ? exec_mad_carry<T, false, kCarryIn, true>
                     : exec_mad_carry<T, false, kCarryIn, false>;
  };
  const bool s = t.is_signed();
  d.out().exec = t.bits == 32 ? (s ? pick(int32_t{}) : pick(uint32_t{}))
                              : (s ? pick(int64_t{}) : pick(uint64_t{}));
}

template <bool kSubtract>
void decode_addc_subc(Decoder& d) {
  decode_carry<kSubtract, true>(d, d.mod("cc"));
}

void decode_madc(Decoder& d) { decode_mad_carry<true>(d, d.mod("cc")); }

// ---- dot products of packed bytes and halves

template <bool kSignedA, bool kSignedB>
struct Dp4a {
  static uint32_t f(uint32_t a, uint32_t b, uint32_t c) {
    for (int i = 0; i < 4; ++i) {
      const int32_t x =
          kSignedA ? static_cast<int8_t>(a >> (8 * i)) : static_cast<uint8_t>(a >> (8 * i));
      const int32_t y =
          kSignedB ? static_cast<int8_t>(b >> (8 * i)) : static_cast<uint8_t>(b >> (8 * i));
      c += static_cast<uint32_t>(x * y);
    }
    return c;
  }
};
template <bool kSignedA, bool kSignedB, bool kHigh>
struct Dp2a {
  static uint32_t f(uint32_t a, uint32_t b, uint32_t c) {
    for (int i = 0; i < 2; ++i) {
      const int32_t x =
          kSignedA ? static_cast<int16_t>(a >> (16 * i)) : static_cast<uint16_t>(a >> (16 * i));
      const int shift = 8 * i + (kHigh ? 16 : 0);
      const int32_t y =
          kSignedB ? static_cast<int8_t>(b >> shift) : static_cast<uint8_t>(b >> shift);
      c += static_cast<uint32_t>(x) * static_cast<uint32_t>(y);
    }
    return c;
  }
};
template <bool A, bool B, typename Op>
ExecFn dot() {
  return exec_ternary<uint32_t, uint32_t, uint32_t, uint32_t, Op>;
}

void decode_dp4a(Decoder& d) {
  const Type a = d.type(), b = d.type();
  decode_operands(d, 3, 32, 32);
  if (a.bits != 32 || b.bits != 32) d.unsupported("type ." + std::string(a.name));
  d.out().exec = a.is_signed() ? (b.is_signed() ? dot<true, true, Dp4a<true, true>>()
                                                : dot<true, false, Dp4a<true, false>>())
                               : (b.is_signed() ? dot<false, true, Dp4a<false, true>>()
                                                : dot<false, false, Dp4a<false, false>>());
}

void decode_dp2a(Decoder& d) {
  const bool high = d.mod_one_of({"lo", "hi"}) == "hi";
  const Type a = d.type(), b = d.type();
  decode_operands(d, 3, 32, 32);
  if (a.bits != 32 || b.bits != 32) d.unsupported("type ." + std::string(a.name));
  const bool s = a.is_signed(), u = b.is_signed();
  d.out().exec = high ? (s ? (u ? dot<1, 1, Dp2a<1, 1, 1>>() : dot<1, 0, Dp2a<1, 0, 1>>())
                           : (u ? dot<0, 1, Dp2a<0, 1, 1>>() : dot<0, 0, Dp2a<0, 0, 1>>()))
                      : (s ? (u ? dot<1, 1, Dp2a<1, 1, 0>>() : dot<1, 0, Dp2a<1, 0, 0>>())
                           : (u ? dot<0, 1, Dp2a<0, 1, 0>>() : dot<0, 0, Dp2a<0, 0, 0>>()));
}

}  // namespace

void decode_add_cc(Decoder& d) { decode_carry<false, false>(d, true); }
void decode_sub_cc(Decoder& d) { decode_carry<true, false>(d, true); }
void decode_mad_cc(Decoder& d) { decode_mad_carry<false>(d, true); }

void register_extended(IsaTable& t) {
  t.add({"dp4a", decode_dp4a, "9.7.1.23"});
  t.add({"dp2a", decode_dp2a, "9.7.1.24"});
  t.add({"addc", decode_addc_subc<false>, "9.7.2.2"});
  t.add({"subc", decode_addc_subc<true>, "9.7.2.4"});
  t.add({"madc", decode_madc, "9.7.2.6"});
}

}  // namespace bwgemm::emulator
