// Logic, shifts and byte permutation (PTX ISA 9.7.8, 9.7.9.7).
#include <algorithm>

#include "emulator/isa/isa.h"
#include "emulator/isa/lanes.h"

namespace bwgemm::emulator {
namespace {

struct And {
  template <typename T>
  static T f(T a, T b) {
    return static_cast<T>(a & b);
  }
};
struct Or {
  template <typename T>
  static T f(T a, T b) {
    return static_cast<T>(a | b);
  }
};
struct Xor {
  template <typename T>
  static T f(T a, T b) {
    return static_cast<T>(a ^ b);
  }
};
struct Not {
  template <typename T>
  static T f(T a) {
    return static_cast<T>(~a);
  }
};
struct Cnot {
  template <typename T>
  static T f(T a) {
    return a == 0 ? 1 : 0;
  }
};
// Shifts by more than the width give 0 (or the sign).
struct Shl {
  template <typename T>
  static T f(T a, uint32_t n) {
    return n >= 8 * sizeof(T) ? T{0} : static_cast<T>(static_cast<std::make_unsigned_t<T>>(a) << n);
  }
};
struct Shr {
  template <typename T>
  static T f(T a, uint32_t n) {
    if (n >= 8 * sizeof(T)) n = std::is_signed_v<T> ? 8 * sizeof(T) - 1 : 8 * sizeof(T);
    return n >= 8 * sizeof(T) ? T{0} : static_cast<T>(a >> n);
  }
};
struct Lop3 {
  static uint32_t f(uint32_t a, uint32_t b, uint32_t c, uint32_t table) {
    uint32_t out = 0;
    for (uint32_t i = 0; i < 8; ++i) {
      if ((table >> i & 1) != 0) out |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
    }
    return out;
  }
};
Step exec_lop3(Warp& w, const Instr& in, uint32_t mask) {
  uint32_t* d = w.r32(in.op[0]);
  const uint32_t *a = w.r32(in.op[1]), *b = w.r32(in.op[2]), *c = w.r32(in.op[3]);
  const uint32_t table = static_cast<uint32_t>(in.imm);
  for_lanes(mask, [&](int lane) { d[lane] = Lop3::f(a[lane], b[lane], c[lane], table); });
  return Step::kNext;
}

enum class PrmtMode : uint8_t { kIndex, kF4e, kB4e, kRc8, kEcl, kEcr, kRc16 };

uint32_t prmt(uint32_t a, uint32_t b, uint32_t c, PrmtMode mode) {
  const uint64_t bytes = static_cast<uint64_t>(b) << 32 | a;
  uint32_t out = 0;
  const uint32_t s = c & 3;
  for (uint32_t i = 0; i < 4; ++i) {
    uint32_t pick = 0;
    bool sign = false;
    switch (mode) {
      case PrmtMode::kIndex:
        pick = c >> (4 * i) & 7;
        sign = (c >> (4 * i) & 8) != 0;
        break;
      case PrmtMode::kF4e:
        pick = i + s;
        break;
      case PrmtMode::kB4e:
        pick = (s - i) & 7;
        break;
      case PrmtMode::kRc8:
        pick = s;
        break;
      case PrmtMode::kEcl:
        pick = std::max(i, s);
        break;
      case PrmtMode::kEcr:
        pick = std::min(i, s);
        break;
      case PrmtMode::kRc16:
        pick = (s & 1) * 2 + (i & 1);
        break;
    }
    uint32_t byte = static_cast<uint32_t>(bytes >> (8 * pick)) & 0xFF;
    if (sign) byte = (byte & 0x80) != 0 ? 0xFF : 0;
    out |= byte << (8 * i);
  }
  return out;
}
Step exec_prmt(Warp& w, const Instr& in, uint32_t mask) {
  uint32_t* d = w.r32(in.op[0]);
  const uint32_t *a = w.r32(in.op[1]), *b = w.r32(in.op[2]), *c = w.r32(in.op[3]);
  for_lanes(mask, [&](int lane) {
    d[lane] = prmt(a[lane], b[lane], c[lane], static_cast<PrmtMode>(in.sub));
  });
  return Step::kNext;
}

// Funnel shifts: bits 1 of sub: right, bit 2: clamp the amount at 32 (else modulo 32).
Step exec_shf(Warp& w, const Instr& in, uint32_t mask) {
  uint32_t* d = w.r32(in.op[0]);
  const uint32_t *a = w.r32(in.op[1]), *b = w.r32(in.op[2]), *c = w.r32(in.op[3]);
  for_lanes(mask, [&](int lane) {
    const uint32_t n = (in.sub & 2) != 0 ? std::min(c[lane], 32u) : c[lane] & 31;
    const uint64_t both = static_cast<uint64_t>(b[lane]) << 32 | a[lane];
    d[lane] = (in.sub & 1) != 0 ? static_cast<uint32_t>(both >> n)
                                : static_cast<uint32_t>((both << n) >> 32);
  });
  return Step::kNext;
}

// ---- predicates as one-bit values

template <typename Op>
Step exec_pred2(Warp& w, const Instr& in, uint32_t mask) {
  w.set_pred(in.op[0], mask, Op::f(w.pred(in.op[1]), w.pred(in.op[2])));
  return Step::kNext;
}
Step exec_pred_not(Warp& w, const Instr& in, uint32_t mask) {
  w.set_pred(in.op[0], mask, ~w.pred(in.op[1]));
  return Step::kNext;
}

template <typename Op>
void decode_bitwise(Decoder& d) {
  const Type t = d.type();
  d.expect_operands(3, 3);
  if (t.kind == TypeKind::kPred) {
    d.out().op[0] = d.pred_dst(0);
    d.out().op[1] = d.pred_src(1);
    d.out().op[2] = d.pred_src(2);
    d.out().exec = exec_pred2<Op>;
    return;
  }
  decode_operands(d, 2, t);
  switch (t.bits) {
    case 16:
      d.out().exec = exec_binary<uint16_t, uint16_t, uint16_t, Op>;
      break;
    case 32:
      d.out().exec = exec_binary<uint32_t, uint32_t, uint32_t, Op>;
      break;
    case 64:
      d.out().exec = exec_binary<uint64_t, uint64_t, uint64_t, Op>;
      break;
    default:
      d.unsupported("type ." + std::string(t.name));
  }
}

template <typename Op>
void decode_bitwise_unary(Decoder& d) {
  const Type t = d.type();
  d.expect_operands(2, 2);
  if (t.kind == TypeKind::kPred) {
    d.out().op[0] = d.pred_dst(0);
    d.out().op[1] = d.pred_src(1);
    d.out().exec = exec_pred_not;
    return;
  }
  decode_operands(d, 1, t);
  switch (t.bits) {
    case 16:
      d.out().exec = exec_unary<uint16_t, uint16_t, Op>;
      break;
    case 32:
      d.out().exec = exec_unary<uint32_t, uint32_t, Op>;
      break;
    case 64:
      d.out().exec = exec_unary<uint64_t, uint64_t, Op>;
      break;
    default:
      d.unsupported("type ." + std::string(t.name));
  }
}

template <typename Op>
void decode_shift(Decoder& d) {
  const Type t = d.type();
  d.expect_operands(3, 3);
  d.out().op[0] = d.dst(0, t.bits);
  d.out().op[1] = d.src(1, t.bits);
  d.out().op[2] = d.src(2, 32);
  const bool s = t.is_signed();
  switch (t.bits) {
    case 16:
      d.out().exec = s ? exec_binary<int16_t, int16_t, uint32_t, Op>
                       : exec_binary<uint16_t, uint16_t, uint32_t, Op>;
      break;
    case 32:
      d.out().exec = s ? exec_binary<int32_t, int32_t, uint32_t, Op>
                       : exec_binary<uint32_t, uint32_t, uint32_t, Op>;
      break;
    case 64:
      d.out().exec = s ? exec_binary<int64_t, int64_t, uint32_t, Op>
                       : exec_binary<uint64_t, uint64_t, uint32_t, Op>;
      break;
    default:
      d.unsupported("type ." + std::string(t.name));
  }
}

void decode_lop3(Decoder& d) {
  if (d.type().bits != 32) d.unsupported("type");
  if (!d.mod_one_of({"and", "or", "xor"}).empty()) d.unsupported("lop3 with predicates");
  d.expect_operands(5, 5);
  d.out().op[0] = d.dst(0, 32);
  for (size_t i = 1; i < 4; ++i) d.out().op[i] = d.src(i, 32);
  d.out().imm = d.int_constant(4) & 0xFF;
  d.out().exec = exec_lop3;
}

void decode_prmt(Decoder& d) {
  if (d.type().bits != 32) d.unsupported("type");
  const std::string_view mode = d.mod_one_of({"f4e", "b4e", "rc8", "ecl", "ecr", "rc16"});
  decode_operands(d, 3, 32, 32);
  PrmtMode m = PrmtMode::kIndex;
  if (mode == "f4e") m = PrmtMode::kF4e;
  if (mode == "b4e") m = PrmtMode::kB4e;
  if (mode == "rc8") m = PrmtMode::kRc8;
  if (mode == "ecl") m = PrmtMode::kEcl;
  if (mode == "ecr") m = PrmtMode::kEcr;
  if (mode == "rc16") m = PrmtMode::kRc16;
  d.out().sub = static_cast<uint8_t>(m);
  d.out().exec = exec_prmt;
}

void decode_shf(Decoder& d) {
  const std::string_view direction = d.mod_one_of({"l", "r"});
  const std::string_view mode = d.mod_one_of({"clamp", "wrap"});
  if (direction.empty() || mode.empty()) d.error("shf needs .l or .r and .clamp or .wrap");
  if (d.type().bits != 32) d.unsupported("type");
  decode_operands(d, 3, 32, 32);
  d.out().sub = static_cast<uint8_t>((direction == "r" ? 1 : 0) | (mode == "clamp" ? 2 : 0));
  d.out().exec = exec_shf;
}

}  // namespace

void register_logic(IsaTable& t) {
  t.add({"and", decode_bitwise<And>, "9.7.8.1"});
  t.add({"or", decode_bitwise<Or>, "9.7.8.2"});
  t.add({"xor", decode_bitwise<Xor>, "9.7.8.3"});
  t.add({"not", decode_bitwise_unary<Not>, "9.7.8.4"});
  t.add({"cnot", decode_bitwise_unary<Cnot>, "9.7.8.5"});
  t.add({"lop3", decode_lop3, "9.7.8.6"});
  t.add({"shf", decode_shf, "9.7.8.7"});
  t.add({"shl", decode_shift<Shl>, "9.7.8.8"});
  t.add({"shr", decode_shift<Shr>, "9.7.8.9"});
  t.add({"prmt", decode_prmt, "9.7.9.7"});
}

}  // namespace bwgemm::emulator
