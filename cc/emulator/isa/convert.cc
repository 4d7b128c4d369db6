// cvt (PTX ISA 9.7.9.21).
#include <algorithm>
#include <cmath>
#include <limits>

#include "emulator/isa/arithmetic.h"
#include "emulator/isa/isa.h"
#include "emulator/isa/lanes.h"
#include "emulator/isa/numbers.h"

namespace bwgemm::emulator {
namespace {

struct Cvt {
  Type to, from;
  Row dst, src[2];
  int dst_bits = 32;  // width of the destination register
  int src_bits = 32;
  Rounding rounding = Rounding::kZero;
  bool to_integer = false;  // .rni and friends: round a float to an integral value
  bool ftz = false, sat = false, satfinite = false, relu = false;
};

uint64_t read(Warp& w, Row row, int bits, int lane) {
  return bits == 64 ? w.r64(row)[lane] : w.r32(row)[lane];
}
void write(Warp& w, Row row, int bits, int lane, uint64_t value) {
  if (bits == 64) {
    w.r64(row)[lane] = value;
  } else {
    w.r32(row)[lane] = static_cast<uint32_t>(bits == 16 ? value & 0xFFFF : value);
  }
}

uint64_t low_bits(uint64_t value, int bits) {
  return bits == 64 ? value : value & ((uint64_t{1} << bits) - 1);
}
uint64_t sign_extend(uint64_t value, int bits) {
  return bits == 64
             ? value
             : static_cast<uint64_t>(static_cast<int64_t>(value << (64 - bits)) >> (64 - bits));
}

double round_integral(double value, Rounding mode) {
  switch (mode) {
    case Rounding::kZero:
      return std::trunc(value);
    case Rounding::kDown:
      return std::floor(value);
    case Rounding::kUp:
      return std::ceil(value);
    default:
      return std::nearbyint(value);  // the host rounds to nearest even
  }
}

// ---- integer to integer
Step exec_int_int(Warp& w, const Instr& in, uint32_t mask) {
  const auto& c = *static_cast<const Cvt*>(in.aux);
  for_lanes(mask, [&](int lane) {
    uint64_t value = low_bits(read(w, c.src[0], c.src_bits, lane), c.from.bits);
    if (c.from.is_signed()) value = sign_extend(value, c.from.bits);
    if (c.sat) {
      if (c.from.is_signed()) {
        const int64_t v = static_cast<int64_t>(value);
        if (c.to.is_signed()) {
          const int64_t top = c.to.bits == 64 ? INT64_MAX : (int64_t{1} << (c.to.bits - 1)) - 1;
          value = static_cast<uint64_t>(std::clamp<int64_t>(v, -top - 1, top));
        } else {
          const uint64_t top = c.to.bits == 64 ? UINT64_MAX : (uint64_t{1} << c.to.bits) - 1;
          value = v < 0 ? 0 : std::min(value, top);
        }
      } else {
        const uint64_t top = (c.to.bits == 64 ? UINT64_MAX : (uint64_t{1} << c.to.bits) - 1) >>
                             (c.to.is_signed() ? 1 : 0);
        value = std::min(value, top);
      }
    }
    value = low_bits(value, c.to.bits);
    // A wider register gets the value extended as the type says.
    if (c.to.is_signed()) value = sign_extend(value, c.to.bits);
    write(w, c.dst, c.dst_bits, lane, value);
  });
  return Step::kNext;
}

template <typename D, typename A>
Step exec_plain(Warp& w, const Instr& in, uint32_t mask) {
  Lanes<D> d(w, in.op[0]);
  const Lanes<A> a(w, in.op[1]);
  for_lanes(mask, [&](int lane) { d.set(lane, static_cast<D>(a.get(lane))); });
  return Step::kNext;
}

// ---- from any float type to double, exactly
double load_float(const Cvt& c, uint64_t bits) {
  if (c.from.kind == TypeKind::kBfloat) return bf16_to_f32(static_cast<uint32_t>(bits & 0xFFFF));
  if (c.from.bits == 16) return f16_to_f32(static_cast<uint32_t>(bits & 0xFFFF));
  if (c.from.bits == 32) {
    const float value = f32_of(static_cast<uint32_t>(bits));
    return c.ftz && std::fpclassify(value) == FP_SUBNORMAL ? std::copysign(0.0f, value) : value;
  }
  return f64_of(bits);
}

// Rounds a double to float with the given mode.
float narrow(double value, Rounding mode) {
  float out = static_cast<float>(value);
  if (mode == Rounding::kNearestEven || std::isnan(value) || static_cast<double>(out) == value)
    return out;
  const bool above = static_cast<double>(out) > value;
  if (std::isinf(value)) return out;
  const bool want_down = mode == Rounding::kDown || (mode == Rounding::kZero && value > 0);
  if (want_down && above) out = std::nextafter(out, -INFINITY);
  if (!want_down && !above) out = std::nextafter(out, INFINITY);
  return out;
}

uint64_t store_float(const Cvt& c, double value) {
  if (c.sat) value = value > 0 ? std::min(value, 1.0) : 0.0;
  if (c.relu && value < 0) value = 0;
  switch (c.to.kind) {
    case TypeKind::kBfloat:
      return encode_float(value, kBf16Format, c.rounding, c.satfinite);
    case TypeKind::kE4m3:
      return encode_float(value, kE4m3Format, c.rounding, true);
    case TypeKind::kE5m2:
      return encode_float(value, kE5m2Format, c.rounding, true);
    case TypeKind::kTf32: {
      if (c.satfinite && std::fabs(value) > 0x1.ffcp127)
        return bits_of(std::copysign(f32_of(0x7F7FE000u), static_cast<float>(value)));
      return f32_to_tf32(static_cast<float>(value), c.rounding);
    }
    default:
      break;
  }
  const int bits = c.to.bits / c.to.lanes;
  if (bits == 16) return encode_float(value, kF16Format, c.rounding, c.satfinite);
  if (bits == 32) {
    float out = narrow(value, c.rounding);
    if (std::isnan(out)) return 0x7FFFFFFF;
    if (c.ftz && std::fpclassify(out) == FP_SUBNORMAL) out = std::copysign(0.0f, out);
    return bits_of(out);
  }
  return bits_of(value);
}

Step exec_float_float(Warp& w, const Instr& in, uint32_t mask) {
  const auto& c = *static_cast<const Cvt*>(in.aux);
  for_lanes(mask, [&](int lane) {
    double value = load_float(c, read(w, c.src[0], c.src_bits, lane));
    if (c.to_integer) value = round_integral(value, c.rounding);
    write(w, c.dst, c.dst_bits, lane, store_float(c, value));
  });
  return Step::kNext;
}

Step exec_float_int(Warp& w, const Instr& in, uint32_t mask) {
  const auto& c = *static_cast<const Cvt*>(in.aux);
  for_lanes(mask, [&](int lane) {
    const double value = load_float(c, read(w, c.src[0], c.src_bits, lane));
    const double integral = round_integral(value, c.rounding);
    uint64_t out;
    const int bits = c.to.bits;
    // Conversions saturate; NaN gives 0 (of f64 and for 64-bit results the top bit alone).
    if (std::isnan(value)) {
      out = bits == 64 || c.from.bits == 64 ? uint64_t{1} << (bits - 1) : 0;
    } else if (c.to.is_signed()) {
      const double top = std::ldexp(1.0, bits - 1);
      if (integral >= top)
        out = (uint64_t{1} << (bits - 1)) - 1;
      else if (integral < -top)
        out = static_cast<uint64_t>(INT64_MIN >> (64 - bits));
      else
        out = static_cast<uint64_t>(static_cast<int64_t>(integral));
    } else {
      if (integral >= std::ldexp(1.0, bits))
        out = bits == 64 ? UINT64_MAX : (uint64_t{1} << bits) - 1;
      else
        out = integral <= 0 ? 0 : static_cast<uint64_t>(integral);
    }
    out = low_bits(out, bits);
    if (c.to.is_signed()) out = sign_extend(out, bits);
    write(w, c.dst, c.dst_bits, lane, out);
  });
  return Step::kNext;
}

Step exec_int_float(Warp& w, const Instr& in, uint32_t mask) {
  const auto& c = *static_cast<const Cvt*>(in.aux);
  for_lanes(mask, [&](int lane) {
    uint64_t raw = low_bits(read(w, c.src[0], c.src_bits, lane), c.from.bits);
    bool negative = false;
    if (c.from.is_signed()) {
      raw = sign_extend(raw, c.from.bits);
      negative = static_cast<int64_t>(raw) < 0;
      if (negative) raw = 0 - raw;
    }
    // 64-bit integers do not fit a double: keep the lost bits as a sticky last bit, so that the one
    // rounding that follows is right.
    double value;
    if (raw >> 53 != 0 && c.to.bits != 64) {
      value = static_cast<double>((raw >> 11 << 11) | uint64_t{(raw & 0x7FF) != 0} << 11);
    } else if (raw >> 53 != 0) {
      value = static_cast<double>(raw);
      if (c.rounding != Rounding::kNearestEven) {
        const unsigned __int128 back = static_cast<unsigned __int128>(value);
        const bool away = c.rounding == (negative ? Rounding::kDown : Rounding::kUp);
        if (back > raw && !away) value = std::nextafter(value, 0.0);
        if (back < raw && away) value = std::nextafter(value, INFINITY);
      }
    } else {
      value = static_cast<double>(raw);
    }
    write(w, c.dst, c.dst_bits, lane, store_float(c, negative ? -value : value));
  });
  return Step::kNext;
}

// ---- two sources packed: cvt.rn.bf16x2.f32 d, a, b puts a into the high half.
Step exec_pack_float(Warp& w, const Instr& in, uint32_t mask) {
  const auto& c = *static_cast<const Cvt*>(in.aux);
  const int bits = c.to.bits / 2;
  for_lanes(mask, [&](int lane) {
    const uint64_t high = store_float(c, load_float(c, read(w, c.src[0], 32, lane)));
    const uint64_t low = store_float(c, load_float(c, read(w, c.src[1], 32, lane)));
    write(w, c.dst, c.dst_bits, lane, high << bits | low);
  });
  return Step::kNext;
}
template <uint32_t (*kRound)(float)>
Step exec_pack_fast(Warp& w, const Instr& in, uint32_t mask) {
  uint32_t* d = w.r32(in.op[0]);
  const float *a = w.f32(in.op[1]), *b = w.f32(in.op[2]);
  for_lanes(mask, [&](int lane) { d[lane] = kRound(a[lane]) << 16 | kRound(b[lane]); });
  return Step::kNext;
}
uint32_t round_bf16(float value) { return f32_to_bf16_rn(value); }
uint32_t round_f16(float value) { return f32_to_f16_rn(value); }

// Two elements to two elements: e4m3x2 <-> f16x2.
Step exec_pair(Warp& w, const Instr& in, uint32_t mask) {
  const auto& c = *static_cast<const Cvt*>(in.aux);
  const int from = c.from.bits / 2, to = c.to.bits / 2;
  for_lanes(mask, [&](int lane) {
    const uint64_t raw = read(w, c.src[0], c.src_bits, lane);
    uint64_t out = 0;
    for (int i = 0; i < 2; ++i) {
      const uint32_t bits = static_cast<uint32_t>(raw >> (from * i)) & ((1u << from) - 1);
      double value;
      if (c.from.kind == TypeKind::kE4m3)
        value = decode_float(bits, kE4m3Format);
      else if (c.from.kind == TypeKind::kE5m2)
        value = decode_float(bits, kE5m2Format);
      else if (c.from.kind == TypeKind::kBfloat)
        value = bf16_to_f32(bits);
      else
        value = f16_to_f32(bits);
      out |= store_float(c, value) << (to * i);
    }
    write(w, c.dst, c.dst_bits, lane, out);
  });
  return Step::kNext;
}

bool is_fp8(Type t) { return t.kind == TypeKind::kE4m3 || t.kind == TypeKind::kE5m2; }

Rounding take_rounding(Decoder& d, bool* given, bool* integral) {
  static constexpr std::pair<std::string_view, Rounding> kFloat[] = {
      {"rn", Rounding::kNearestEven},
      {"rz", Rounding::kZero},
      {"rm", Rounding::kDown},
      {"rp", Rounding::kUp},
      {"rna", Rounding::kNearestAway}};
  static constexpr std::pair<std::string_view, Rounding> kIntegral[] = {
      {"rni", Rounding::kNearestEven},
      {"rzi", Rounding::kZero},
      {"rmi", Rounding::kDown},
      {"rpi", Rounding::kUp}};
  *given = true;
  *integral = false;
  for (const auto& [name, mode] : kFloat) {
    if (d.mod(name)) return mode;
  }
  *integral = true;
  for (const auto& [name, mode] : kIntegral) {
    if (d.mod(name)) return mode;
  }
  *given = *integral = false;
  return Rounding::kNearestEven;
}

constexpr char kNeedsRounding[] = "a conversion to a float of fewer bits needs a rounding mode";

void decode_cvt(Decoder& d) {
  auto* c = d.make_aux<Cvt>();
  if (d.mod("rs")) d.unsupported("stochastic rounding");
  bool rounded, integral;
  c->rounding = take_rounding(d, &rounded, &integral);
  c->ftz = d.mod("ftz");
  c->satfinite = d.mod("satfinite");
  c->sat = d.mod("sat");
  c->relu = d.mod("relu");
  c->to = d.type();
  c->from = d.type();
  c->to_integer = integral;
  const Type to = c->to, from = c->from;
  if (is_narrow(to) || is_narrow(from))
    return decode_cvt_narrow(d, {to, from, c->rounding, c->satfinite, c->relu});
  if (to.kind == TypeKind::kPred || from.kind == TypeKind::kPred || to.bits > 64 || from.bits > 64)
    d.unsupported("type .pred or .b128");
  if (to.lanes == 4 || from.lanes == 4) d.unsupported("four-element conversion");
  if (to.lanes == 2 && from.lanes == 1) {
    if (from.name != "f32") d.unsupported("type ." + std::string(from.name));
    if (!rounded) d.error(kNeedsRounding);
    d.expect_operands(3, 3);
    c->dst_bits = to.bits;
    c->dst = d.out().op[0] = d.dst(0, to.bits);
    c->src[0] = d.out().op[1] = d.src(1, 32);
    c->src[1] = d.out().op[2] = d.src(2, 32);
    const bool plain =
        c->rounding == Rounding::kNearestEven && !c->relu && !c->satfinite && !c->ftz && !c->sat;
    if (plain && to.name == "bf16x2")
      d.out().exec = exec_pack_fast<round_bf16>;
    else if (plain && to.name == "f16x2")
      d.out().exec = exec_pack_fast<round_f16>;
    else
      d.out().exec = exec_pack_float;
    return;
  }
  d.expect_operands(2, 2);
  c->dst = d.dst(0, to.bits, true);
  c->dst_bits = std::max(d.reg_bits(d.operand(0)), 16);
  c->src[0] = d.src(1, from, true);
  const int src_bits = d.source_bits(d.operand(1));
  c->src_bits = src_bits != 0 ? src_bits : from.bits == 64 ? 64 : 32;
  if (c->dst_bits > 64 || c->src_bits > 64) d.unsupported("128-bit register in cvt");
  if (to.lanes == 2 || from.lanes == 2) {
    if (to.lanes != from.lanes || (!is_fp8(to) && !is_fp8(from)))
      d.unsupported("conversion between these types");
    if (!rounded) d.error(kNeedsRounding);
    d.out().exec = exec_pair;
    return;
  }
  if (is_fp8(to) || is_fp8(from)) d.unsupported("conversion of a single 8-bit float");
  const bool from_float = from.is_float(), to_float = to.is_float();
  d.out().op[0] = c->dst;
  d.out().op[1] = c->src[0];
  if (from_float && to_float) {
    if (!rounded && (to.bits < from.bits || to.kind == TypeKind::kTf32)) d.error(kNeedsRounding);
    d.out().exec = exec_float_float;
    if (from.name == "bf16" && to.name == "f32" && c->dst_bits == 32 && !integral && !c->sat &&
        !c->ftz && !c->relu) {
      d.out().exec = [](Warp& w, const Instr& in, uint32_t mask) {
        uint32_t* out = w.r32(in.op[0]);
        const uint32_t* a = w.r32(in.op[1]);
        for_lanes(mask, [&](int lane) { out[lane] = a[lane] << 16; });
        return Step::kNext;
      };
    }
    return;
  }
  if (from_float) {
    if (!rounded) d.error("a conversion from float to integer needs a rounding mode");
    d.out().exec = exec_float_int;
    return;
  }
  if (to_float) {
    if (!rounded) d.error("a conversion from integer to float needs a rounding mode");
    d.out().exec = exec_int_float;
    return;
  }
  d.out().exec = exec_int_int;
  if (!c->sat && c->dst_bits == to.bits && c->src_bits == from.bits) {
    const bool s = from.is_signed();
    if (to.bits == 64 && from.bits == 32)
      d.out().exec = s ? exec_plain<uint64_t, int32_t> : exec_plain<uint64_t, uint32_t>;
    if (to.bits == 32 && from.bits == 64) d.out().exec = exec_plain<uint32_t, uint64_t>;
    if (to.bits == 32 && from.bits == 16)
      d.out().exec = s ? exec_plain<uint32_t, int16_t> : exec_plain<uint32_t, uint16_t>;
  }
}

}  // namespace

void register_convert(IsaTable& t) {
  t.add({"cvt", decode_cvt, "9.7.9.21"});
  t.add({"cvt.pack", decode_cvt_pack, "9.7.9.22"});
}

}  // namespace bwgemm::emulator
