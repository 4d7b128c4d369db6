// SIMD video instructions (PTX ISA 9.7.18.9 - 9.7.18.12): two half-words or four bytes side by
// side. Selectors and masks of their operands are not implemented: compilers emit none.
#include <algorithm>
#include <cstdlib>

#include "emulator/isa/arithmetic.h"
#include "emulator/isa/isa.h"
#include "emulator/isa/lanes.h"

namespace bwgemm::emulator {
namespace {

struct Add {
  static int f(int a, int b) { return a + b; }
};
struct Sub {
  static int f(int a, int b) { return a - b; }
};
struct Average {  // halves are rounded away from zero
  static int f(int a, int b) { return a + b >= 0 ? (a + b + 1) >> 1 : (a + b) >> 1; }
};
struct AbsDiff {
  static int f(int a, int b) { return std::abs(a - b); }
};
struct Min {
  static int f(int a, int b) { return std::min(a, b); }
};
struct Max {
  static int f(int a, int b) { return std::max(a, b); }
};

enum Flags : uint8_t { kSignedD = 1, kSignedA = 2, kSignedB = 4, kSaturate = 8, kAccumulate = 16 };

int extract(uint32_t word, int index, int bits, bool is_signed) {
  const uint32_t field = word << (32 - bits * (index + 1));
  return is_signed ? static_cast<int32_t>(field) >> (32 - bits)
                   : static_cast<int>(field >> (32 - bits));
}

template <int kCount, typename Op>
Step exec_video(Warp& w, const Instr& in, uint32_t mask) {
  constexpr int kBits = 32 / kCount;
  constexpr uint32_t kField = (uint32_t{1} << kBits) - 1;
  uint32_t* d = w.r32(in.op[0]);
  const uint32_t *a = w.r32(in.op[1]), *b = w.r32(in.op[2]), *c = w.r32(in.op[3]);
  const bool is_signed = (in.sub & kSignedD) != 0;
  const int least = is_signed ? -(1 << (kBits - 1)) : 0;
  const int most = is_signed ? (1 << (kBits - 1)) - 1 : static_cast<int>(kField);
  for_lanes(mask, [&](int lane) {
    uint32_t merged = 0, sum = c[lane];
    for (int i = 0; i < kCount; ++i) {
      int t = Op::f(extract(a[lane], i, kBits, (in.sub & kSignedA) != 0),
                    extract(b[lane], i, kBits, (in.sub & kSignedB) != 0));
      if ((in.sub & kSaturate) != 0) t = std::clamp(t, least, most);
      merged |= (static_cast<uint32_t>(t) & kField) << (kBits * i);
      sum += static_cast<uint32_t>(t);
    }
    d[lane] = (in.sub & kAccumulate) != 0 ? sum : merged;
  });
  return Step::kNext;
}

// Of r1.b3210 and r1.h10.
bool has_selector(const ptx::Operand& operand) {
  if (operand.kind != ptx::Operand::Kind::kName) return false;
  const size_t dot = operand.name.rfind('.');
  if (dot == std::string_view::npos || dot + 2 >= operand.name.size()) return false;
  const std::string_view selector = operand.name.substr(dot + 1);
  return (selector[0] == 'b' || selector[0] == 'h') &&
         selector.find_first_not_of("0123456789", 1) == std::string_view::npos;
}

template <int kCount, typename Op>
void decode_video(Decoder& d) {
  for (size_t i = 0; i < d.count(); ++i) {
    if (has_selector(d.operand(i)))
      d.unsupported("selector or mask '" + std::string(d.operand(i).name) + "'");
  }
  uint8_t flags = 0;
  for (const uint8_t flag : {kSignedD, kSignedA, kSignedB}) {
    const Type t = d.type();
    if (t.name != "u32" && t.name != "s32") d.unsupported("type ." + std::string(t.name));
    if (t.is_signed()) flags |= flag;
  }
  if (d.mod("sat")) flags |= kSaturate;
  if (d.mod("add")) flags |= kAccumulate;
  if ((flags & kSaturate) != 0 && (flags & kAccumulate) != 0) d.error(".sat with .add");
  d.expect_operands(4, 4);
  d.out().op[0] = d.dst(0, 32);
  for (size_t i = 1; i < 3; ++i) d.out().op[i] = d.src(i, 32);
  // Without .add and a mask, nothing of the last one remains.
  d.out().op[3] = (flags & kAccumulate) != 0 ? d.src(3, 32) : d.out().op[1];
  d.out().sub = flags;
  d.out().exec = exec_video<kCount, Op>;
}

}  // namespace

void register_video(IsaTable& t) {
  t.add({"vadd2", decode_video<2, Add>, "9.7.18.9"});
  t.add({"vsub2", decode_video<2, Sub>, "9.7.18.9"});
  t.add({"vavrg2", decode_video<2, Average>, "9.7.18.9"});
  t.add({"vabsdiff2", decode_video<2, AbsDiff>, "9.7.18.9"});
  t.add({"vmin2", decode_video<2, Min>, "9.7.18.9"});
  t.add({"vmax2", decode_video<2, Max>, "9.7.18.9"});
  t.add({"vadd4", decode_video<4, Add>, "9.7.18.11"});
  t.add({"vsub4", decode_video<4, Sub>, "9.7.18.11"});
  t.add({"vavrg4", decode_video<4, Average>, "9.7.18.11"});
  t.add({"vabsdiff4", decode_video<4, AbsDiff>, "9.7.18.11"});
  t.add({"vmin4", decode_video<4, Min>, "9.7.18.11"});
  t.add({"vmax4", decode_video<4, Max>, "9.7.18.11"});
}

}  // namespace bwgemm::emulator
