// atom and red (PTX ISA 9.7.13.5 - 9.7.13.6) on global, shared and generic addresses, scalar and
// vector.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "emulator/isa/float_modes.h"
#include "emulator/isa/isa.h"
#include "emulator/isa/lanes.h"
#include "emulator/isa/numbers.h"
#include "emulator/machine/launch.h"

namespace bwgemm::emulator {
namespace {

enum class Op : uint8_t { kAdd, kMin, kMax, kInc, kDec, kAnd, kOr, kXor, kExch, kCas };

struct Args {
  Address addr;
  ptx::Space space = ptx::Space::kGeneric;
  bool cluster = false;
  Op op = Op::kAdd;
  Type type;
  int count = 1;
  Row dst[8], value[8];
  Row compare = kNoRow;  // the value operand of cas is then the new value
  bool has_dst = false;
  bool acquire = false, release = false;
  uint16_t flags = kStrong;
};

template <typename T>
uint64_t apply_int(Op op, uint64_t old_bits, uint64_t value_bits) {
  using U = std::make_unsigned_t<T>;
  const T old = static_cast<T>(old_bits), value = static_cast<T>(value_bits);
  const U u = static_cast<U>(old), v = static_cast<U>(value);
  switch (op) {
    case Op::kAdd:
      return static_cast<U>(u + v);
    case Op::kMin:
      return static_cast<U>(std::min(old, value));
    case Op::kMax:
      return static_cast<U>(std::max(old, value));
    case Op::kInc:
      return u >= v ? U{0} : static_cast<U>(u + 1);
    case Op::kDec:
      return u == 0 || u > v ? v : static_cast<U>(u - 1);
    case Op::kAnd:
      return static_cast<U>(u & v);
    case Op::kOr:
      return static_cast<U>(u | v);
    case Op::kXor:
      return static_cast<U>(u ^ v);
    default:
      return v;
  }
}

// One 16-bit float element; min and max ignore NaN.
template <float (*kLoad)(uint32_t), uint32_t (*kStore)(float)>
uint32_t apply_half(Op op, uint32_t old_bits, uint32_t value_bits) {
  const float old = kLoad(old_bits & 0xFFFF), value = kLoad(value_bits & 0xFFFF);
  switch (op) {
    case Op::kMin:
      return kStore(std::fmin(old, value));
    case Op::kMax:
      return kStore(std::fmax(old, value));
    default:
      return kStore(old + value);
  }
}

// Sums of f32 know no subnormal numbers in global memory; elsewhere they do.
bool flushes(const Args& a, uint64_t address) {
  if (a.op != Op::kAdd || a.type.kind != TypeKind::kFloat || a.type.bits != 32 || a.type.lanes != 1)
    return false;
  return a.space == ptx::Space::kGlobal ||
         (a.space == ptx::Space::kGeneric && (address & kWindowMask) == 0);
}

uint64_t apply(const Args& a, uint64_t old, uint64_t value, bool flushed) {
  const Type t = a.type;
  if (a.op == Op::kExch) return value;
  if (t.kind == TypeKind::kBfloat || (t.kind == TypeKind::kFloat && t.bits / t.lanes == 16)) {
    uint64_t out = 0;
    for (int i = 0; i < t.lanes; ++i) {
      const uint32_t x = static_cast<uint32_t>(old >> (16 * i)),
                     y = static_cast<uint32_t>(value >> (16 * i));
      const uint32_t r = t.kind == TypeKind::kBfloat
                             ? apply_half<bf16_to_f32, f32_to_bf16_rn>(a.op, x, y)
                             : apply_half<f16_to_f32, f32_to_f16_rn>(a.op, x, y);
      out |= uint64_t{r} << (16 * i);
    }
    return out;
  }
  if (t.kind == TypeKind::kFloat) {
    if (t.bits == 32) {
      const float x = f32_of(static_cast<uint32_t>(old)), y = f32_of(static_cast<uint32_t>(value));
      return bits_of(flushed ? flush(flush(x) + flush(y)) : x + y);
    }
    return bits_of(f64_of(old) + f64_of(value));
  }
  if (t.bits == 16) return apply_int<uint16_t>(a.op, old, value);
  if (t.bits == 32)
    return t.is_signed() ? apply_int<int32_t>(a.op, old, value)
                         : apply_int<uint32_t>(a.op, old, value);
  return t.is_signed() ? apply_int<int64_t>(a.op, old, value)
                       : apply_int<uint64_t>(a.op, old, value);
}

uint64_t read_row(Warp& w, Row row, int bits, int lane) {
  return bits == 64 ? w.r64(row)[lane] : w.r32(row)[lane];
}

uint8_t* locate(Warp& w, const Args& a, uint64_t address, int lane, uint32_t bytes) {
  Races& races = w.launch().races();
  if (races.on()) {
    const uint64_t key = races.sync_key(w, address, a.space == ptx::Space::kShared);
    races.observe(w, key, scope_of(a.flags), a.acquire);
    races.publish(w, key, scope_of(a.flags), a.release, false);
    races.strong(w, key, bytes / static_cast<uint32_t>(a.count), a.count, lane,
                 a.has_dst ? StrongAccesses::Kind::kAtomic : StrongAccesses::Kind::kReduces);
  }
  if (a.space == ptx::Space::kGlobal) {
    uint8_t* at = w.global(address, bytes, bytes, true);
    w.note_global(address, bytes, true, a.flags);
    return at;
  }
  if (a.space == ptx::Space::kShared) {
    const auto ref = w.shared(address, bytes, bytes, a.cluster);
    ref.cta->shared().check_read(w, ref.offset, bytes, a.flags | kUpdates);  // it is one access
    ref.cta->shared().note_write(w, ref.offset, bytes, w.proxy_stamp(), a.flags);
    return ref.cta->shared().data(ref.offset);
  }
  return w.generic(address, lane, bytes, bytes, true, a.flags);
}

// Lanes one after the other, in lane order.
Step exec_atomic(Warp& w, const Instr& in, uint32_t mask) {
  const auto& a = *static_cast<const Args*>(in.aux);
  const uint32_t width = static_cast<uint32_t>(a.type.bits / 8),
                 bytes = width * static_cast<uint32_t>(a.count);
  if (a.release) w.tell();
  const auto lock = w.launch().lock_memory();
  bool changed = false;
  for_lanes(mask, [&](int lane) {
    const uint64_t address = w.address(a.addr, lane);
    uint8_t* at = locate(w, a, address, lane, bytes);
    const bool flushed = flushes(a, address);
    for (int i = 0; i < a.count; ++i, at += width) {
      uint64_t old = 0;
      std::memcpy(&old, at, width);
      const uint64_t value = read_row(w, a.value[i], a.type.bits, lane);
      uint64_t result;
      if (a.op == Op::kCas) {
        uint64_t expected = read_row(w, a.compare, a.type.bits, lane);
        if (width == 2) expected &= 0xFFFF;
        result = old == expected ? value : old;
      } else {
        result = apply(a, old, value, flushed);
      }
      changed = changed || std::memcmp(at, &result, width) != 0;
      std::memcpy(at, &result, width);
      if (a.has_dst && a.dst[i] != kNoRow) {
        if (a.type.bits == 64)
          w.r64(a.dst[i])[lane] = old;
        else
          w.r32(a.dst[i])[lane] = static_cast<uint32_t>(old);
      }
    }
  });
  if (changed) w.launch().progress();
  return Step::kYield;  // the kernel may be polling
}

// 128-bit exchange and compare-and-swap.
Step exec_atomic128(Warp& w, const Instr& in, uint32_t mask) {
  const auto& a = *static_cast<const Args*>(in.aux);
  if (a.release) w.tell();
  const auto lock = w.launch().lock_memory();
  bool changed = false;
  for_lanes(mask, [&](int lane) {
    uint8_t* at = locate(w, a, w.address(a.addr, lane), lane, 16);
    uint64_t old[2];
    std::memcpy(old, at, 16);
    uint64_t value[2] = {w.r128_lo(a.value[0])[lane], w.r128_hi(a.value[0])[lane]};
    if (a.op == Op::kCas &&
        (old[0] != w.r128_lo(a.compare)[lane] || old[1] != w.r128_hi(a.compare)[lane])) {
      value[0] = old[0];
      value[1] = old[1];
    }
    changed = changed || std::memcmp(at, value, 16) != 0;
    std::memcpy(at, value, 16);
    if (a.dst[0] != kNoRow) {
      w.r128_lo(a.dst[0])[lane] = old[0];
      w.r128_hi(a.dst[0])[lane] = old[1];
    }
  });
  if (changed) w.launch().progress();
  return Step::kYield;
}

void decode_atomic(Decoder& d, bool has_dst) {
  auto* a = d.make_aux<Args>();
  const auto order = d.mod_one_of({"relaxed", "acquire", "release", "acq_rel"});
  a->acquire = order == "acquire" || order == "acq_rel";
  a->release = order == "release" || order == "acq_rel";
  a->flags = strong_flags(scope_named(d.mod_one_of({"cta", "cluster", "gpu", "sys"})));
  if (a->acquire && !has_dst) d.error("red cannot acquire");
  d.ignore_mods({"noftz"});
  const auto space = d.space();
  a->space = space.space;
  a->cluster = space.cluster;
  if (a->space == ptx::Space::kConst || a->space == ptx::Space::kLocal ||
      a->space == ptx::Space::kParam)
    d.unsupported("state space");
  static constexpr std::pair<std::string_view, Op> kOps[] = {
      {"add", Op::kAdd},   {"min", Op::kMin}, {"max", Op::kMax}, {"inc", Op::kInc},
      {"dec", Op::kDec},   {"and", Op::kAnd}, {"or", Op::kOr},   {"xor", Op::kXor},
      {"exch", Op::kExch}, {"cas", Op::kCas}};
  bool found = false;
  for (const auto& [name, op] : kOps) {
    if (!found && d.mod(name)) {
      a->op = op;
      found = true;
    }
  }
  if (!found) d.error("atomic operation missing");
  if (a->op == Op::kCas) a->flags |= kCompareAndSwap;
  bool hint = false;
  for (std::string_view m = d.mod_prefix("L2::"); !m.empty(); m = d.mod_prefix("L2::"))
    hint |= m == "L2::cache_hint";
  const auto vector = d.mod_one_of({"v2", "v4", "v8"});
  a->count = vector.empty() ? 1 : vector[1] - '0';
  a->type = d.type();
  const Type t = a->type;
  a->has_dst = has_dst;
  const bool ok_float =
      t.is_float() &&
      (a->op == Op::kAdd || ((a->op == Op::kMin || a->op == Op::kMax) && t.bits / t.lanes == 16));
  const bool ok_int =
      t.is_int() && (t.bits == 32 || t.bits == 64 || (t.bits == 16 && a->op == Op::kCas));
  const bool ok_128 = t.bits == 128 && (a->op == Op::kExch || a->op == Op::kCas) && has_dst;
  if (!ok_float && !ok_int && !ok_128)
    d.unsupported("atomic operation on type ." + std::string(t.name));
  if (t.kind == TypeKind::kTf32 || t.kind == TypeKind::kE4m3 || t.kind == TypeKind::kE5m2)
    d.unsupported("type ." + std::string(t.name));
  if (a->count > 1 && (!t.is_float() || t.bits * a->count > 128 || a->op == Op::kCas))
    d.unsupported("vector atomic of this type");
  const size_t first = has_dst ? 1 : 0;
  const size_t n = first + (a->op == Op::kCas ? 3 : 2);
  d.expect_operands(n, hint ? n + 1 : n);
  a->addr = d.address(first, space.space);
  const auto elements = [&](const ptx::Operand& o, bool destination, Row* rows) {
    const auto* items = Decoder::vector_items(o);
    if (items == nullptr ? a->count != 1 && o.kind != ptx::Operand::Kind::kSink
                         : items->size() != static_cast<size_t>(a->count)) {
      d.error("the vector operand has another number of elements");
    }
    for (int i = 0; i < a->count; ++i) {
      const ptx::Operand& item = items == nullptr ? o : (*items)[static_cast<size_t>(i)];
      rows[i] = destination ? d.dst(item, t.bits, false, true) : d.src(item, t);
    }
  };
  if (has_dst) elements(d.operand(0), true, a->dst);
  if (a->op == Op::kCas) {
    a->compare = d.src(first + 1, t);
    a->value[0] = d.src(first + 2, t);
  } else {
    elements(d.operand(first + 1), false, a->value);
  }
  if (hint && d.count() == n + 1) d.src(n, 64);
  d.out().exec = t.bits == 128 ? exec_atomic128 : exec_atomic;
}

void decode_atom(Decoder& d) { decode_atomic(d, true); }
void decode_red(Decoder& d) { decode_atomic(d, false); }

}  // namespace

void register_atomic(IsaTable& t) {
  t.add({"atom", decode_atom, "9.7.13.5"});
  t.add({"red", decode_red, "9.7.13.6"});
}

}  // namespace bwgemm::emulator
