// cvt to and from pairs of 4- and 6-bit floats and of scales (PTX ISA 9.7.9.21): e2m1x2, e2m3x2,
// e3m2x2, ue8m0x2.
#include <cmath>

#include "emulator/isa/arithmetic.h"
#include "emulator/isa/lanes.h"
#include "emulator/isa/numbers.h"

namespace bwgemm::emulator {
namespace {

struct NarrowCvt {
  Type to, from;
  Rounding rounding = Rounding::kNearestEven;
  Row dst, src[2];
  bool satfinite = false, relu = false;
};

// Bits from one element of a pair to the next: 4 of e2m1, else whole bytes.
int spacing(const Type& type) { return type.bits / 2; }

FloatFormat format_of(const Type& type) {
  switch (type.kind) {
    case TypeKind::kE2m1:
      return kE2m1Format;
    case TypeKind::kE2m3:
      return kE2m3Format;
    case TypeKind::kE3m2:
      return kE3m2Format;
    case TypeKind::kBfloat:
      return kBf16Format;
    default:
      return kF16Format;
  }
}

// The exponent of |value|: powers of two from 2^-127 on, all ones is NaN. Toward zero it is the
// exponent field.
uint32_t encode_ue8m0(float value, bool up, bool saturate) {
  const uint32_t magnitude = bits_of(value) & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return 0xff;
  uint32_t exponent = magnitude >> 23;
  const uint32_t smallest = 0x00400000u;  // 2^-127, a subnormal float
  const bool between = (magnitude & 0x7fffffu) != 0 && magnitude > smallest;
  if (up && between && magnitude < 0x7f800000u) ++exponent;
  return saturate && exponent == 0xff ? 0xfe : exponent;
}

uint32_t ue8m0_to_bf16(uint32_t exponent) {
  return exponent == 0xff ? 0x7fff : exponent == 0 ? 0x0040 : exponent << 7;
}

uint32_t encode_element(const NarrowCvt& c, double value) {
  if (c.to.kind == TypeKind::kUe8m0) {
    return encode_ue8m0(static_cast<float>(value), c.rounding == Rounding::kUp, c.satfinite);
  }
  if (c.relu && value < 0) value = 0;
  return encode_float(value, format_of(c.to), c.rounding, c.satfinite);
}

// d, a, b: the value of a goes to the upper element.
Step exec_from_floats(Warp& w, const Instr& in, uint32_t mask) {
  const auto& c = *static_cast<const NarrowCvt*>(in.aux);
  const float *a = w.f32(c.src[0]), *b = w.f32(c.src[1]);
  uint32_t* d = w.r32(c.dst);
  for_lanes(mask, [&](int lane) {
    d[lane] = encode_element(c, a[lane]) << spacing(c.to) | encode_element(c, b[lane]);
  });
  return Step::kNext;
}

Step exec_from_pair(Warp& w, const Instr& in, uint32_t mask) {
  const auto& c = *static_cast<const NarrowCvt*>(in.aux);
  const uint32_t* a = w.r32(c.src[0]);
  uint32_t* d = w.r32(c.dst);
  const int step = spacing(c.from);
  for_lanes(mask, [&](int lane) {
    uint32_t out = 0;
    for (int i = 0; i < 2; ++i) {
      const uint32_t bits = a[lane] >> (step * i) & ((1u << step) - 1);
      const uint32_t element = c.from.kind == TypeKind::kUe8m0
                                   ? ue8m0_to_bf16(bits)
                                   : encode_element(c, decode_float(bits, format_of(c.from)));
      out |= element << (spacing(c.to) * i);
    }
    d[lane] = out;
  });
  return Step::kNext;
}

}  // namespace

bool is_narrow(const Type& type) {
  return type.kind == TypeKind::kE2m1 || type.kind == TypeKind::kE2m3 ||
         type.kind == TypeKind::kE3m2 || type.kind == TypeKind::kUe8m0;
}

void decode_cvt_narrow(Decoder& d, const CvtModifiers& modifiers) {
  auto* c = d.make_aux<NarrowCvt>();
  c->to = modifiers.to;
  c->from = modifiers.from;
  c->rounding = modifiers.rounding;
  c->satfinite = modifiers.satfinite;
  c->relu = modifiers.relu;
  const bool to_scale = c->to.kind == TypeKind::kUe8m0,
             from_scale = c->from.kind == TypeKind::kUe8m0;
  const bool half_pair = c->from.name == "f16x2" || c->from.name == "bf16x2";
  const bool from_wide = c->from.name == "f32" || half_pair;
  if (is_narrow(c->to) ? !from_wide || (to_scale && c->from.name == "f16x2")
                       : c->to.name != "bf16x2" && (from_scale || c->to.name != "f16x2")) {
    d.unsupported("conversion between these types");
  }
  if (to_scale ? c->rounding != Rounding::kZero && c->rounding != Rounding::kUp
               : c->rounding != Rounding::kNearestEven) {
    d.error(to_scale ? "conversion to ue8m0x2 needs .rz or .rp" : "this conversion needs .rn");
  }
  if (is_narrow(c->to) && !to_scale && !c->satfinite) {
    d.error("conversion to ." + std::string(c->to.name) + " needs .satfinite");
  }
  const bool two = c->from.name == "f32";
  d.expect_operands(two ? 3 : 2, two ? 3 : 2);
  c->dst = d.dst(0, c->to.bits);
  c->src[0] = d.src(1, c->from.bits);
  if (two) c->src[1] = d.src(2, 32);
  d.out().exec = two ? exec_from_floats : exec_from_pair;
}

}  // namespace bwgemm::emulator
