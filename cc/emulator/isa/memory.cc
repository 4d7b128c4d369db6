// Loads and stores (PTX ISA 9.7.9.8 - 9.7.9.11).
#include <cstring>

#include "emulator/isa/isa.h"
#include "emulator/isa/lanes.h"
#include "emulator/isa/unwritten.h"
#include "emulator/machine/kernel_builder.h"
#include "emulator/machine/launch.h"

namespace bwgemm::emulator {
namespace {

enum class Where : uint8_t { kGeneric, kGlobal, kShared, kSharedCluster, kLocal, kParam };
// Addresses that lead to local memory are in this window; of other spaces none do.
constexpr uint64_t local_window(Where where) {
  return where == Where::kLocal ? 0 : where == Where::kGeneric ? kLocalWindow : ~uint64_t{0};
}

struct Access {
  Address addr;
  Row rows[8];
  uint8_t reg_bits[8];  // width of the register (not less than the type's)
  uint8_t count = 1;
  bool is_signed = false;
  bool yields = false;           // synchronising or volatile: the kernel may be polling
  uint8_t align = 1;             // bytes: the whole vector
  uint16_t flags = 0;            // StampFlags
  bool acquire_release = false;  // .acquire, .release
  bool cached = false;           // .nc
};

template <Where kWhere>
const uint8_t* locate_load(Warp& w, uint64_t address, int lane, uint32_t bytes, uint32_t align,
                           uint16_t flags) {
  if constexpr (kWhere == Where::kGlobal) {
    const uint8_t* at = w.global(address, bytes, align, false);
    w.note_global(address, bytes, false, static_cast<uint16_t>(flags | lane_flags(lane)));
    return at;
  }
  if constexpr (kWhere == Where::kLocal) return w.local(address, lane, bytes, align);
  if constexpr (kWhere == Where::kParam) return w.param(address, bytes, align);
  if constexpr (kWhere == Where::kShared || kWhere == Where::kSharedCluster) {
    const auto ref = w.shared(address, bytes, align, kWhere == Where::kSharedCluster);
    ref.cta->shared().check_read(w, ref.offset, bytes,
                                 static_cast<uint16_t>(flags | lane_flags(lane)));
    return ref.cta->shared().data(ref.offset);
  }
  return w.generic(address, lane, bytes, align, false, flags);
}

// Before the values are stored: a store that changes nothing is told apart.
template <Where kWhere>
uint8_t* locate_store(Warp& w, uint64_t address, int lane, uint32_t bytes, const Access& a,
                      const void* values) {
  const auto flags = [&](const uint8_t* at) {
    const int same = std::memcmp(at, values, bytes) == 0 ? kSameValue : 0;
    return static_cast<uint16_t>(a.flags | same | lane_flags(lane));
  };
  if constexpr (kWhere == Where::kGlobal) {
    uint8_t* at = w.global(address, bytes, a.align, true);
    w.note_global(address, bytes, true, flags(at));
    return at;
  }
  if constexpr (kWhere == Where::kLocal) return w.stored_local(address, lane, bytes, a.align);
  if constexpr (kWhere == Where::kShared || kWhere == Where::kSharedCluster) {
    const auto ref = w.shared(address, bytes, a.align, kWhere == Where::kSharedCluster);
    SharedMemory& memory = ref.cta->shared();
    memory.note_write(w, ref.offset, bytes, w.proxy_stamp(), flags(memory.data(ref.offset)));
    return memory.data(ref.offset);
  }
  return w.generic(address, lane, bytes, a.align, true, a.flags, values);
}

template <Where kWhere>
uint64_t sync_key(Warp& w, uint64_t address) {
  return w.launch().races().sync_key(w, address,
                                     kWhere == Where::kShared || kWhere == Where::kSharedCluster);
}

// A strong access also synchronises: a load before it reads, a store when others may see it.
template <Where kWhere>
void acquire(Warp& w, const Access& a, uint64_t address, int lane, uint32_t width) {
  if ((a.flags & kStrong) == 0) return;
  w.launch().fence_memory();
  Races& races = w.launch().races();
  if (!races.on()) return;
  const uint64_t key = sync_key<kWhere>(w, address);
  races.observe(w, key, scope_of(a.flags), a.acquire_release);
  races.strong(w, key, width, a.count, lane, StrongAccesses::Kind::kLoad);
}
template <Where kWhere>
void before_store(Warp& w, const Access& a, uint64_t address, int lane, uint32_t width) {
  if ((a.flags & kStrong) == 0 || !w.launch().races().on()) return;
  w.launch().races().strong(w, sync_key<kWhere>(w, address), width, a.count, lane,
                            StrongAccesses::Kind::kStore);
}
template <Where kWhere>
void release(Warp& w, const Access& a, uint64_t address) {
  if ((a.flags & kStrong) == 0) return;
  w.launch().fence_memory();
  Races& races = w.launch().races();
  if (races.on())
    races.publish(w, sync_key<kWhere>(w, address), scope_of(a.flags), a.acquire_release, true);
}

// ld.global.nc.
void note_cached(Warp& w, uint64_t address, uint32_t bytes) {
  if ((address & kWindowMask) != 0 || !w.launch().memory().last_found_writable()) return;
  w.launch().races().read_cached(w, address, bytes, w.origin());
}

template <typename T>
uint64_t extend(T value, bool is_signed) {
  using Signed = std::make_signed_t<T>;
  return is_signed ? static_cast<uint64_t>(int64_t{static_cast<Signed>(value)}) : uint64_t{value};
}

template <typename T, Where kWhere>
Step exec_load(Warp& w, const Instr& in, uint32_t mask) {
  const auto& a = *static_cast<const Access*>(in.aux);
  const uint32_t bytes = static_cast<uint32_t>(sizeof(T)) * a.count;
  Unwritten unwritten;
  for_lanes(mask, [&](int lane) {
    const uint64_t address = w.address(a.addr, lane);
    acquire<kWhere>(w, a, address, lane, sizeof(T));
    const uint8_t* from = locate_load<kWhere>(w, address, lane, bytes, a.align, a.flags);
    unwritten.note(w, address, local_window(kWhere), lane, sizeof(T), a.count);
    if (a.cached) note_cached(w, address, bytes);
    for (int i = 0; i < a.count; ++i, from += sizeof(T)) {
      T value;
      std::memcpy(&value, from, sizeof(T));
      const Row row = a.rows[i];
      if (row == kNoRow) continue;
      if (sizeof(T) == 8 || a.reg_bits[i] == 64) {
        w.r64(row)[lane] = extend(value, a.is_signed);
      } else if (a.reg_bits[i] == 16) {
        w.r32(row)[lane] = static_cast<uint16_t>(extend(value, a.is_signed));
      } else {
        w.r32(row)[lane] = static_cast<uint32_t>(extend(value, a.is_signed));
      }
    }
  });
  unwritten.tell(w, in, a.rows, a.count);
  if (kWhere == Where::kGlobal || kWhere == Where::kGeneric) {
    w.launch().stats().global_load_bytes +=
        uint64_t{bytes} * static_cast<uint64_t>(__builtin_popcount(mask));
  }
  return a.yields ? Step::kYield : Step::kNext;
}

template <typename T, Where kWhere>
Step exec_store(Warp& w, const Instr& in, uint32_t mask) {
  const auto& a = *static_cast<const Access*>(in.aux);
  const uint32_t bytes = static_cast<uint32_t>(sizeof(T)) * a.count;
  if (a.acquire_release) w.tell();
  bool changed = false;
  for_lanes(mask, [&](int lane) {
    const uint64_t address = w.address(a.addr, lane);
    T values[8];
    for (int i = 0; i < a.count; ++i) {
      values[i] =
          static_cast<T>(a.reg_bits[i] == 64 ? w.r64(a.rows[i])[lane] : w.r32(a.rows[i])[lane]);
    }
    before_store<kWhere>(w, a, address, lane, sizeof(T));
    uint8_t* to = locate_store<kWhere>(w, address, lane, bytes, a, values);
    release<kWhere>(w, a, address);
    changed = changed || std::memcmp(to, values, bytes) != 0;
    std::memcpy(to, values, bytes);
  });
  if (kWhere == Where::kGlobal || kWhere == Where::kGeneric) {
    w.launch().stats().global_store_bytes +=
        uint64_t{bytes} * static_cast<uint64_t>(__builtin_popcount(mask));
  }
  if (kWhere != Where::kLocal && changed) w.launch().progress();
  return a.yields ? Step::kYield : Step::kNext;
}

template <Where kWhere>
Step exec_load128(Warp& w, const Instr& in, uint32_t mask) {
  const auto& a = *static_cast<const Access*>(in.aux);
  Unwritten unwritten;
  for_lanes(mask, [&](int lane) {
    const uint64_t address = w.address(a.addr, lane);
    acquire<kWhere>(w, a, address, lane, 16);
    const uint8_t* from = locate_load<kWhere>(w, address, lane, 16, a.align, a.flags);
    unwritten.note(w, address, local_window(kWhere), lane, 16, 1);
    if (a.cached) note_cached(w, address, 16);
    std::memcpy(&w.r128_lo(a.rows[0])[lane], from, 8);
    std::memcpy(&w.r128_hi(a.rows[0])[lane], from + 8, 8);
  });
  unwritten.tell(w, in, a.rows, a.count);
  return a.yields ? Step::kYield : Step::kNext;
}

template <Where kWhere>
Step exec_store128(Warp& w, const Instr& in, uint32_t mask) {
  const auto& a = *static_cast<const Access*>(in.aux);
  if (a.acquire_release) w.tell();
  for_lanes(mask, [&](int lane) {
    const uint64_t address = w.address(a.addr, lane);
    const uint64_t values[2] = {w.r128_lo(a.rows[0])[lane], w.r128_hi(a.rows[0])[lane]};
    before_store<kWhere>(w, a, address, lane, 16);
    uint8_t* to = locate_store<kWhere>(w, address, lane, 16, a, values);
    release<kWhere>(w, a, address);
    std::memcpy(to, values, 16);
  });
  w.launch().progress();
  return a.yields ? Step::kYield : Step::kNext;
}

// By Where. Parameters are not stored.
template <typename T>
constexpr ExecFn kLoads[] = {exec_load<T, Where::kGeneric>, exec_load<T, Where::kGlobal>,
                             exec_load<T, Where::kShared>,  exec_load<T, Where::kSharedCluster>,
                             exec_load<T, Where::kLocal>,   exec_load<T, Where::kParam>};
template <typename T>
constexpr ExecFn kStores[] = {exec_store<T, Where::kGeneric>, exec_store<T, Where::kGlobal>,
                              exec_store<T, Where::kShared>,  exec_store<T, Where::kSharedCluster>,
                              exec_store<T, Where::kLocal>,   nullptr};
constexpr ExecFn kLoads128[] = {exec_load128<Where::kGeneric>, exec_load128<Where::kGlobal>,
                                exec_load128<Where::kShared>,  exec_load128<Where::kSharedCluster>,
                                exec_load128<Where::kLocal>,   exec_load128<Where::kParam>};
constexpr ExecFn kStores128[] = {
    exec_store128<Where::kGeneric>, exec_store128<Where::kGlobal>,
    exec_store128<Where::kShared>,  exec_store128<Where::kSharedCluster>,
    exec_store128<Where::kLocal>,   nullptr};

// Which memory an access of .param names: the kernel's parameters, or (in functions, and around
// calls) local memory.
Where param_where(Decoder& d, const ptx::Operand& address) {
  if (address.kind != ptx::Operand::Kind::kAddress || address.items.empty())
    d.error("expected an address in brackets");
  const ptx::Operand& base = address.items[0];
  if (base.kind == ptx::Operand::Kind::kName) {
    const auto symbol = d.builder().resolve(base.name);
    if (symbol.kind == KernelBuilder::Symbol::Kind::kLocal) return Where::kLocal;
    if (symbol.kind == KernelBuilder::Symbol::Kind::kParam) return Where::kParam;
  }
  return d.builder().in_entry() ? Where::kParam : Where::kLocal;
}

// The most bits that an access has: 128, or 256 of global memory in elements of 32 or 64.
int most_bits(const Type& type, ptx::Space space, bool uniform) {
  const bool global = space == ptx::Space::kGlobal || space == ptx::Space::kGeneric;
  return global && !uniform && (type.bits == 32 || type.bits == 64) ? 256 : 128;
}

// uniform: ldu.
void decode_access(Decoder& d, bool store, bool uniform) {
  auto* a = d.make_aux<Access>();
  d.mod("mmio");  // with .relaxed
  const auto order = d.mod_one_of({"weak", "relaxed", "acquire", "release", "volatile"});
  const Scope scope = scope_named(d.mod_one_of({"cta", "cluster", "gpu", "sys"}));
  a->yields = !order.empty() && order != "weak";
  if (a->yields) a->flags = strong_flags(scope) | (order == "volatile" ? kVolatile : 0);
  a->acquire_release = order == "acquire" || order == "release";
  const auto space = d.space();
  a->cached = d.mod("nc");
  d.ignore_mods({"ca", "cg", "cs", "lu", "cv", "wb", "wt"});
  while (!d.mod_prefix("L1::").empty()) continue;
  bool hint = false, evicts = false;
  for (std::string_view m = d.mod_prefix("L2::"); !m.empty(); m = d.mod_prefix("L2::")) {
    hint |= m == "L2::cache_hint";
    evicts |= m.substr(0, 9) == "L2::evict";
  }
  const auto vector = d.mod_one_of({"v2", "v4", "v8"});
  const int count = vector.empty() ? 1 : vector[1] - '0';
  const Type t = d.type();
  if (t.bits < 8 || t.bits * count > most_bits(t, space.space, uniform))
    d.unsupported("vector of this size");
  if (evicts && t.bits * count != 256) d.error("'.L2::evict_*' belongs to vectors of 256 bits");
  d.expect_operands(2, hint ? 3 : 2);
  const ptx::Operand& memory = d.operand(store ? 0 : 1);
  const ptx::Operand& value = d.operand(store ? 1 : 0);
  if (hint) d.src(2, 64);
  Where where = Where::kGeneric;
  switch (space.space) {
    case ptx::Space::kGlobal:
    case ptx::Space::kConst:
      where = Where::kGlobal;
      break;
    case ptx::Space::kShared:
      where = space.cluster ? Where::kSharedCluster : Where::kShared;
      break;
    case ptx::Space::kLocal:
      where = Where::kLocal;
      break;
    case ptx::Space::kParam:
      where = param_where(d, memory);
      break;
    default:
      break;
  }
  a->addr = d.address(memory, space.space);
  a->count = static_cast<uint8_t>(count);
  a->align = static_cast<uint8_t>(t.bits / 8 * count);
  a->is_signed = t.is_signed();
  const auto* items = Decoder::vector_items(value);
  if (items == nullptr ? count != 1 : items->size() != static_cast<size_t>(count))
    d.error("the vector operand has another number of elements");
  for (int i = 0; i < count; ++i) {
    const ptx::Operand& item = items == nullptr ? value : (*items)[static_cast<size_t>(i)];
    if (store) {
      a->rows[i] = d.src(item, t, true);
      const int bits = d.source_bits(item);
      a->reg_bits[i] = static_cast<uint8_t>(bits != 0 ? bits : t.bits == 64 ? 64 : 32);
    } else {
      a->rows[i] = d.dst(item, t.bits, true, true);
      a->reg_bits[i] =
          static_cast<uint8_t>(item.kind == ptx::Operand::Kind::kSink ? t.bits : d.reg_bits(item));
      if (t.bits == 128 && a->rows[i] == kNoRow) d.error("'_' in a 128-bit load");
    }
    if (t.bits < 128 && a->reg_bits[i] > 64)
      d.error("128-bit register in an access of another size");
  }
  d.out().addr = a->addr;
  const auto at = static_cast<size_t>(where);
  ExecFn exec = nullptr;
  switch (t.bits) {
    case 8:
      exec = (store ? kStores<uint8_t> : kLoads<uint8_t>)[at];
      break;
    case 16:
      exec = (store ? kStores<uint16_t> : kLoads<uint16_t>)[at];
      break;
    case 32:
      exec = (store ? kStores<uint32_t> : kLoads<uint32_t>)[at];
      break;
    case 64:
      exec = (store ? kStores<uint64_t> : kLoads<uint64_t>)[at];
      break;
    case 128:
      exec = (store ? kStores128 : kLoads128)[at];
      break;
    default:
      break;
  }
  if (exec == nullptr) d.unsupported("access to this state space");
  d.out().exec = exec;
}

void decode_ld(Decoder& d) { decode_access(d, false, false); }
void decode_ldu(Decoder& d) { decode_access(d, false, true); }
void decode_st(Decoder& d) { decode_access(d, true, false); }

}  // namespace

void register_memory(IsaTable& t) {
  t.add({"ld", decode_ld, "9.7.9.8"});
  t.add({"ldu", decode_ldu, "9.7.9.10"});
  t.add({"st", decode_st, "9.7.9.11"});
}

}  // namespace bwgemm::emulator
