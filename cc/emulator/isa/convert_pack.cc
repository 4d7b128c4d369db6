// cvt.pack (PTX ISA 9.7.9.22).
#include <algorithm>

#include "emulator/isa/arithmetic.h"
#include "emulator/isa/lanes.h"

namespace bwgemm::emulator {
namespace {

struct CvtPack {
  Type to, from;
  Row dst, src[3];
};

// cvt.pack.sat.convertType.abType.cType d, a, b, c: saturated a and b below the kept low part of c.
Step exec_cvt_pack(Warp& w, const Instr& in, uint32_t mask) {
  const auto& c = *static_cast<const CvtPack*>(in.aux);
  const int bits = c.to.bits;
  uint32_t* d = w.r32(c.dst);
  const uint32_t *a = w.r32(c.src[0]), *b = w.r32(c.src[1]);
  const uint32_t* rest = c.src[2] == kNoRow ? nullptr : w.r32(c.src[2]);
  const auto clip = [&](uint32_t raw) {
    const int64_t value = c.from.is_signed() ? int64_t{static_cast<int32_t>(raw)} : int64_t{raw};
    const int64_t top = (int64_t{1} << (c.to.is_signed() ? bits - 1 : bits)) - 1;
    const int64_t bottom = c.to.is_signed() ? -top - 1 : 0;
    return static_cast<uint32_t>(std::clamp(value, bottom, top)) & ((1u << bits) - 1);
  };
  for_lanes(mask, [&](int lane) {
    const uint32_t pair = clip(a[lane]) << bits | clip(b[lane]);
    d[lane] = rest == nullptr ? pair : rest[lane] << (2 * bits) | pair;
  });
  return Step::kNext;
}

}  // namespace

void decode_cvt_pack(Decoder& d) {
  auto* c = d.make_aux<CvtPack>();
  if (!d.mod("sat")) d.error("cvt.pack needs .sat");
  c->to = d.type();
  c->from = d.type();
  if (c->from.bits != 32 || !c->from.is_int() || !c->to.is_int() ||
      (c->to.bits != 8 && c->to.bits != 16))
    d.unsupported("conversion between these types");
  const bool third = c->to.bits == 8;
  if (third) d.mod("b32");
  d.expect_operands(third ? 4 : 3, third ? 4 : 3);
  c->dst = d.dst(0, 32);
  c->src[0] = d.src(1, 32);
  c->src[1] = d.src(2, 32);
  c->src[2] = third ? d.src(3, 32) : kNoRow;
  d.out().exec = exec_cvt_pack;
}

}  // namespace bwgemm::emulator
