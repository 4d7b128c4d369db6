// Selection and tests of one value: selp, slct (PTX ISA 9.7.6.3, 9.7.6.4), testp (9.7.3.1).
#include <cmath>
#include <optional>

#include "emulator/isa/float_modes.h"
#include "emulator/isa/isa.h"
#include "emulator/isa/lanes.h"

namespace bwgemm::emulator {
namespace {

template <typename T>
Step exec_selp(Warp& w, const Instr& in, uint32_t mask) {
  Lanes<T> d(w, in.op[0]);
  const Lanes<T> a(w, in.op[1]), b(w, in.op[2]);
  const uint32_t p = w.pred(in.op[3]);
  for_lanes(mask, [&](int lane) { d.set(lane, (p >> lane & 1) != 0 ? a.get(lane) : b.get(lane)); });
  return Step::kNext;
}

void decode_selp(Decoder& d) {
  const Type t = d.type();
  d.expect_operands(4, 4);
  d.out().op[0] = d.dst(0, t.bits);
  d.out().op[1] = d.src(1, t);
  d.out().op[2] = d.src(2, t);
  d.out().op[3] = d.pred_src(3);
  switch (t.bits) {
    case 16:
      d.out().exec = exec_selp<uint16_t>;
      break;
    case 32:
      d.out().exec = exec_selp<uint32_t>;
      break;
    case 64:
      d.out().exec = exec_selp<uint64_t>;
      break;
    default:
      d.unsupported("type ." + std::string(t.name));
  }
}

// slct d = c >= 0 ? a : b; -0.0 counts as >= 0, NaN selects b. sub 1: .ftz, which makes a negative
// subnormal -0.0.
template <typename T, typename C>
Step exec_slct(Warp& w, const Instr& in, uint32_t mask) {
  Lanes<T> d(w, in.op[0]);
  const Lanes<T> a(w, in.op[1]), b(w, in.op[2]);
  const Lanes<C> c(w, in.op[3]);
  for_lanes(mask, [&](int lane) {
    C chooser = c.get(lane);
    if constexpr (std::is_floating_point_v<C>) {
      if (in.sub != 0) chooser = flush(chooser);
    }
    d.set(lane, chooser >= 0 ? a.get(lane) : b.get(lane));
  });
  return Step::kNext;
}

void decode_slct(Decoder& d) {
  d.out().sub = d.mod("ftz");
  const Type t = d.type(), c = d.type();
  d.expect_operands(4, 4);
  d.out().op[0] = d.dst(0, t.bits);
  d.out().op[1] = d.src(1, t);
  d.out().op[2] = d.src(2, t);
  d.out().op[3] = d.src(3, c);
  if (c.name != "s32" && c.name != "f32") d.unsupported("type ." + std::string(c.name));
  const bool real = c.name == "f32";
  switch (t.bits) {
    case 16:
      d.out().exec = real ? exec_slct<uint16_t, float> : exec_slct<uint16_t, int32_t>;
      break;
    case 32:
      d.out().exec = real ? exec_slct<uint32_t, float> : exec_slct<uint32_t, int32_t>;
      break;
    case 64:
      d.out().exec = real ? exec_slct<uint64_t, float> : exec_slct<uint64_t, int32_t>;
      break;
    default:
      d.unsupported("type ." + std::string(t.name));
  }
}

enum class Test : uint8_t { kFinite, kInfinite, kNumber, kNotANumber, kNormal, kSubnormal };

template <typename T>
Step exec_testp(Warp& w, const Instr& in, uint32_t mask) {
  const Lanes<T> a(w, in.op[1]);
  uint32_t result = 0;
  for_lanes(mask, [&](int lane) {
    const int kind = std::fpclassify(a.get(lane));
    bool yes = false;
    switch (static_cast<Test>(in.sub)) {
      case Test::kFinite:
        yes = kind != FP_NAN && kind != FP_INFINITE;
        break;
      case Test::kInfinite:
        yes = kind == FP_INFINITE;
        break;
      case Test::kNumber:
        yes = kind != FP_NAN;
        break;
      case Test::kNotANumber:
        yes = kind == FP_NAN;
        break;
      case Test::kNormal:
        yes = kind == FP_NORMAL;
        break;
      case Test::kSubnormal:
        yes = kind == FP_SUBNORMAL;
        break;
    }
    result |= static_cast<uint32_t>(yes) << lane;
  });
  w.set_pred(in.op[0], mask, result);
  return Step::kNext;
}

void decode_testp(Decoder& d) {
  static constexpr std::string_view kNames[] = {"finite",     "infinite", "number",
                                                "notanumber", "normal",   "subnormal"};
  std::optional<uint8_t> test;
  for (uint8_t i = 0; i < 6 && !test; ++i) {
    if (d.mod(kNames[i])) test = i;
  }
  if (!test) d.error("testp without a property");
  const Type t = d.type();
  d.expect_operands(2, 2);
  d.out().op[0] = d.pred_dst(0);
  d.out().op[1] = d.src(1, t);
  d.out().sub = *test;
  if (t.name == "f32")
    d.out().exec = exec_testp<float>;
  else if (t.name == "f64")
    d.out().exec = exec_testp<double>;
  else
    d.unsupported("type ." + std::string(t.name));
}

}  // namespace

void register_select(IsaTable& t) {
  t.add({"selp", decode_selp, "9.7.6.3"});
  t.add({"slct", decode_slct, "9.7.6.4"});
  t.add({"testp", decode_testp, "9.7.3.1"});
}

}  // namespace bwgemm::emulator
