// mov, cvta, isspacep, mapa, getctarank, activemask and the registers that change during a launch
// (PTX ISA 9.7.9.1 - 9.7.9.25, 10).
#include "emulator/isa/isa.h"
#include "emulator/isa/lanes.h"
#include "emulator/machine/kernel_builder.h"
#include "emulator/machine/launch.h"

namespace bwgemm::emulator {
namespace {

template <typename T>
Step exec_mov(Warp& w, const Instr& in, uint32_t mask) {
  Lanes<T> d(w, in.op[0]);
  const Lanes<T> a(w, in.op[1]);
  for_lanes(mask, [&](int lane) { d.set(lane, a.get(lane)); });
  return Step::kNext;
}

Step exec_mov_pred(Warp& w, const Instr& in, uint32_t mask) {
  w.set_pred(in.op[0], mask, w.pred(in.op[1]));
  return Step::kNext;
}

// 128 bits: two 64-bit halves in rows r and r + 2.
Step exec_mov128(Warp& w, const Instr& in, uint32_t mask) {
  uint64_t *lo = w.r128_lo(in.op[0]), *hi = w.r128_hi(in.op[0]);
  const uint64_t *a = w.r128_lo(in.op[1]), *b = w.r128_hi(in.op[1]);
  for_lanes(mask, [&](int lane) {
    lo[lane] = a[lane];
    hi[lane] = b[lane];
  });
  return Step::kNext;
}

// A special register that is a predicate; its row holds 0 or 1.
Step exec_mov_pred_special(Warp& w, const Instr& in, uint32_t mask) {
  const uint32_t* from = w.r32(in.op[1]);
  uint32_t result = 0;
  for_lanes(mask, [&](int lane) { result |= static_cast<uint32_t>(from[lane] != 0) << lane; });
  w.set_pred(in.op[0], mask, result);
  return Step::kNext;
}

enum class Clock : uint8_t { kLow, kHigh, k64 };

// One tick of the scheduler counts as one cycle and, for %globaltimer, as one nanosecond.
Step exec_clock(Warp& w, const Instr& in, uint32_t mask) {
  const uint64_t now = w.launch().now();
  w.reads_time();
  for_lanes(mask, [&](int lane) {
    switch (static_cast<Clock>(in.sub)) {
      case Clock::kLow:
        w.r32(in.op[0])[lane] = static_cast<uint32_t>(now);
        break;
      case Clock::kHigh:
        w.r32(in.op[0])[lane] = static_cast<uint32_t>(now >> 32);
        break;
      case Clock::k64:
        w.r64(in.op[0])[lane] = now;
        break;
    }
  });
  return Step::kNext;
}

bool decode_clock(Decoder& d, Type t) {
  static constexpr std::pair<std::string_view, Clock> kNames[] = {
      {"%clock", Clock::kLow},           {"%clock_hi", Clock::kHigh},
      {"%clock64", Clock::k64},          {"%globaltimer_lo", Clock::kLow},
      {"%globaltimer_hi", Clock::kHigh}, {"%globaltimer", Clock::k64}};
  const ptx::Operand& o = d.operand(1);
  if (o.kind != ptx::Operand::Kind::kName) return false;
  for (const auto& [name, clock] : kNames) {
    if (o.name != name) continue;
    const int bits = clock == Clock::k64 ? 64 : 32;
    if (t.bits != bits) d.error("special register of another size");
    d.out().op[0] = d.dst(0, bits);
    d.out().sub = static_cast<uint8_t>(clock);
    d.out().exec = exec_clock;
    return true;
  }
  return false;
}

// Packing and unpacking: mov.b64 %rd, {%r1, %r2} and the reverse. Elements are `part` bits wide.
struct Pack {
  Row whole;
  int whole_bits;
  int part;
  std::vector<Row> parts;  // kNoRow: '_'
};

uint64_t get_part(Warp& w, Row row, int bits, int lane) {
  return bits == 64 ? w.r64(row)[lane] : w.r32(row)[lane];
}

Step exec_pack(Warp& w, const Instr& in, uint32_t mask) {
  const auto& p = *static_cast<const Pack*>(in.aux);
  for_lanes(mask, [&](int lane) {
    uint64_t words[2] = {0, 0};
    int at = 0;
    for (Row row : p.parts) {
      words[at / 64] |= get_part(w, row, p.part, lane) << (at % 64);
      at += p.part;
    }
    if (p.whole_bits == 128) {
      w.r128_lo(p.whole)[lane] = words[0];
      w.r128_hi(p.whole)[lane] = words[1];
    } else if (p.whole_bits == 64) {
      w.r64(p.whole)[lane] = words[0];
    } else {
      w.r32(p.whole)[lane] = static_cast<uint32_t>(words[0]);
    }
  });
  return Step::kNext;
}

Step exec_unpack(Warp& w, const Instr& in, uint32_t mask) {
  const auto& p = *static_cast<const Pack*>(in.aux);
  for_lanes(mask, [&](int lane) {
    uint64_t words[2] = {0, 0};
    if (p.whole_bits == 128) {
      words[0] = w.r128_lo(p.whole)[lane];
      words[1] = w.r128_hi(p.whole)[lane];
    } else {
      words[0] = get_part(w, p.whole, p.whole_bits, lane);
    }
    int at = 0;
    for (Row row : p.parts) {
      const uint64_t value = p.part == 64
                                 ? words[at / 64]
                                 : words[at / 64] >> (at % 64) & ((uint64_t{1} << p.part) - 1);
      at += p.part;
      if (row == kNoRow) continue;
      if (p.part == 64) {
        w.r64(row)[lane] = value;
      } else {
        w.r32(row)[lane] = static_cast<uint32_t>(value);
      }
    }
  });
  return Step::kNext;
}

void decode_pack(Decoder& d, Type t, const std::vector<ptx::Operand>& items, bool unpack) {
  auto* p = d.make_aux<Pack>();
  const int n = static_cast<int>(items.size());
  if (n != 2 && n != 4 && n != 1) d.error("vector of this size");
  if (t.bits / n < 8 || (n == 1 && t.bits > 64)) d.error("vector elements of this size");
  if (t.kind != TypeKind::kBits) d.error("a vector needs a .b type");
  p->whole_bits = t.bits;
  p->part = t.bits / n;
  const size_t whole = unpack ? 1 : 0;
  p->whole = unpack ? d.src(whole, t.bits) : d.dst(whole, t.bits);
  for (const ptx::Operand& item : items) {
    p->parts.push_back(unpack ? d.dst(item, p->part, false, true) : d.src(item, p->part));
  }
  d.out().exec = unpack ? exec_unpack : exec_pack;
}

void decode_mov(Decoder& d) {
  const Type t = d.type();
  d.expect_operands(2, 2);
  if (t.kind == TypeKind::kPred) {
    d.out().op[0] = d.pred_dst(0);
    const ptx::Operand& from = d.operand(1);
    if (from.kind == ptx::Operand::Kind::kName && from.name == "%is_explicit_cluster") {
      d.out().op[1] = d.builder().special_row(WarpValue::kIsExplicitCluster, 32);
      d.out().exec = exec_mov_pred_special;
      return;
    }
    d.out().op[1] = d.pred_src(1);
    d.out().exec = exec_mov_pred;
    return;
  }
  if (const auto* items = Decoder::vector_items(d.operand(0)))
    return decode_pack(d, t, *items, true);
  if (const auto* items = Decoder::vector_items(d.operand(1)))
    return decode_pack(d, t, *items, false);
  if (decode_clock(d, t)) return;
  d.out().op[0] = d.dst(0, t.bits);
  d.out().op[1] = d.src(1, t);
  switch (t.bits) {
    case 8:
      d.out().exec = exec_mov<uint8_t>;
      break;
    case 16:
      d.out().exec = exec_mov<uint16_t>;
      break;
    case 32:
      d.out().exec = exec_mov<uint32_t>;
      break;
    case 64:
      d.out().exec = exec_mov<uint64_t>;
      break;
    case 128:
      d.out().exec = exec_mov128;
      break;
    default:
      d.unsupported("type ." + std::string(t.name));
  }
}

// ---- cvta: to a window's generic address and back (imm: window base). Global and constant
// addresses are generic already.
Step exec_cvta(Warp& w, const Instr& in, uint32_t mask) {
  uint64_t* d = w.r64(in.op[0]);
  const uint64_t* a = w.r64(in.op[1]);
  const uint64_t window = static_cast<uint64_t>(in.imm);
  const bool to = in.sub != 0;
  for_lanes(mask, [&](int lane) { d[lane] = to ? a[lane] - window : a[lane] + window; });
  return Step::kNext;
}

void decode_cvta(Decoder& d) {
  d.out().sub = d.mod("to");
  const auto space = d.space();
  if (d.type().bits != 64) d.unsupported("32-bit addresses");
  d.expect_operands(2, 2);
  d.out().op[0] = d.dst(0, 64);
  d.out().op[1] = d.src(1, 64);
  uint64_t window = 0;
  switch (space.space) {
    case ptx::Space::kShared:
      window = kSharedWindow;
      break;
    case ptx::Space::kLocal:
      window = kLocalWindow;
      break;
    case ptx::Space::kParam:
      window = d.builder().in_entry() ? kParamWindow : kLocalWindow;
      break;
    case ptx::Space::kGlobal:
    case ptx::Space::kConst:
      break;
    default:
      d.error("cvta without a state space");
  }
  d.out().imm = static_cast<int64_t>(window);
  d.out().exec = exec_cvta;
}

Step exec_isspacep(Warp& w, const Instr& in, uint32_t mask) {
  const uint64_t* a = w.r64(in.op[1]);
  uint32_t result = 0;
  for_lanes(mask, [&](int lane) {
    const uint64_t window = a[lane] & kWindowMask;
    bool yes = window == static_cast<uint64_t>(in.imm);
    if (window == kSharedWindow) {
      const uint64_t rank = (a[lane] - kSharedWindow) >> kSharedRankShift;
      yes = yes && (in.sub != 0 ? rank < w.cta().cluster().size() : rank == w.cta().rank());
    }
    result |= static_cast<uint32_t>(yes) << lane;
  });
  w.set_pred(in.op[0], mask, result);
  return Step::kNext;
}

void decode_isspacep(Decoder& d) {
  const auto space = d.space();
  d.expect_operands(2, 2);
  d.out().op[0] = d.pred_dst(0);
  d.out().op[1] = d.src(1, 64);
  d.out().sub = space.cluster;
  switch (space.space) {
    case ptx::Space::kShared:
      d.out().imm = static_cast<int64_t>(kSharedWindow);
      break;
    case ptx::Space::kLocal:
      d.out().imm = static_cast<int64_t>(kLocalWindow);
      break;
    case ptx::Space::kParam:
      d.out().imm = static_cast<int64_t>(kParamWindow);
      break;
    case ptx::Space::kGlobal:
      d.out().imm = 0;
      break;
    default:
      d.unsupported("state space");
  }
  d.out().exec = exec_isspacep;
}

// ---- mapa: the same offset in the CTA with the given rank. sub 1: generic addresses.
template <typename T>
Step exec_mapa(Warp& w, const Instr& in, uint32_t mask) {
  Lanes<T> d(w, in.op[0]);
  const Lanes<T> a(w, in.op[1]);
  const uint32_t* rank = w.r32(in.op[2]);
  for_lanes(mask, [&](int lane) {
    uint64_t address = a.get(lane);
    const uint64_t window = sizeof(T) == 8 ? address & kWindowMask : 0;
    if (in.sub != 0 && window != kSharedWindow)
      w.fault("mapa of 0x%llx, which is not a shared address",
              static_cast<unsigned long long>(address));
    if (rank[lane] >= w.cta().cluster().size()) {
      w.fault("mapa with rank %u in a cluster of %u", rank[lane], w.cta().cluster().size());
    }
    const uint64_t offset = address & ((uint64_t{1} << kSharedRankShift) - 1);
    d.set(lane, static_cast<T>(window | uint64_t{rank[lane]} << kSharedRankShift | offset));
  });
  return Step::kNext;
}

void decode_mapa(Decoder& d) {
  const auto space = d.space();
  const Type t = d.type();
  d.expect_operands(3, 3);
  if (t.bits != 32 && t.bits != 64) d.unsupported("type ." + std::string(t.name));
  d.out().op[0] = d.dst(0, t.bits);
  d.out().op[1] = d.src(1, t.bits);
  d.out().op[2] = d.src(2, 32);
  d.out().sub = space.space == ptx::Space::kGeneric;
  if (d.out().sub != 0 && t.bits != 64) d.unsupported("32-bit generic addresses");
  d.out().exec = t.bits == 32 ? exec_mapa<uint32_t> : exec_mapa<uint64_t>;
}

template <typename T>
Step exec_getctarank(Warp& w, const Instr& in, uint32_t mask) {
  uint32_t* d = w.r32(in.op[0]);
  const Lanes<T> a(w, in.op[1]);
  for_lanes(mask, [&](int lane) {
    d[lane] = static_cast<uint32_t>((a.get(lane) & ~kWindowMask) >> kSharedRankShift);
  });
  return Step::kNext;
}

void decode_getctarank(Decoder& d) {
  d.space();
  const Type t = d.type();
  d.expect_operands(2, 2);
  if (t.bits != 32 && t.bits != 64) d.unsupported("type ." + std::string(t.name));
  d.out().op[0] = d.dst(0, 32);
  d.out().op[1] = d.src(1, t.bits);
  d.out().exec = t.bits == 32 ? exec_getctarank<uint32_t> : exec_getctarank<uint64_t>;
}

}  // namespace

void register_move(IsaTable& t) {
  t.add({"mov", decode_mov, "9.7.9.3"});
  t.add({"cvta", decode_cvta, "9.7.9.20"});
  t.add({"isspacep", decode_isspacep, "9.7.9.19"});
  t.add({"mapa", decode_mapa, "9.7.9.23"});
  t.add({"getctarank", decode_getctarank, "9.7.9.24"});
}

}  // namespace bwgemm::emulator
