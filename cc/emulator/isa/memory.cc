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
    const uint8_t* from = locate_load<kWhere>(w, address, lane, 16u * a.count, a.align, a.flags);
    unwritten.note(w, address, local_window(kWhere), lane, 16, a.count);
    if (a.cached) note_cached(w, address, 16u * a.count);
    for (int i = 0; i < a.count; ++i, from += 16) {
      std::memcpy(&w.r128_lo(a.rows[i])[lane], from, 8);
      std::memcpy(&w.r128_hi(a.rows[i])[lane], from + 8, 8);
    }
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
    uint64_t values[16];
    for (int i = 0; i < a.count; ++i) {
      values[2 * i] = w.r128_lo(a.rows[i])[lane];
      values[2 * i + 1] = w.r128_hi(a.rows[i])[lane];
    }
    before_store<kWhere>(w, a, address, lane, 16);
    uint8_t* to = locate_store<kWhere>(w, address, lane, 16u * a.count, a, values);
    release<kWhere>(w, a, address);
    std::memcpy(to, values, 16u * a.count);
  });
  w.launch().progress();
  return a.yields ? Step::kYield : Step::kNext;
}

template <typename T>
ExecFn load_of(Where where) {
  switch (where) {
    case Where::kGeneric:
      return exec_load<T, Where::kGeneric>;
    case Where::kGlobal:
      return exec_load<T, Where::kGlobal>;
    case Where::kShared:
      return exec_load<T, Where::kShared>;
    case Where::kSharedCluster:
      return exec_load<T, Where::kSharedCluster>;
    case Where::kLocal:
      return exec_load<T, Where::kLocal>;
    case Where::kParam:
      return exec_load<T, Where::kParam>;
  }
  return nullptr;
}
template <typename T>
ExecFn store_of(Where where) {
  switch (where) {
    case Where::kGeneric:
      return exec_store<T, Where::kGeneric>;
    case Where::kGlobal:
      return exec_store<T, Where::kGlobal>;
    case Where::kShared:
      return exec_store<T, Where::kShared>;
    case Where::kSharedCluster:
      return exec_store<T, Where::kSharedCluster>;
    case Where::kLocal:
      return exec_store<T, Where::kLocal>;
    default:
      return nullptr;
  }
}
ExecFn load128_of(Where where) {
  switch (where) {
    case Where::kGeneric:
      return exec_load128<Where::kGeneric>;
    case Where::kGlobal:
      return exec_load128<Where::kGlobal>;
    case Where::kShared:
      return exec_load128<Where::kShared>;
    case Where::kSharedCluster:
      return exec_load128<Where::kSharedCluster>;
    case Where::kLocal:
      return exec_load128<Where::kLocal>;
    case Where::kParam:
      return exec_load128<Where::kParam>;
  }
  return nullptr;
}
ExecFn store128_of(Where where) {
  switch (where) {
    case Where::kGeneric:
      return exec_store128<Where::kGeneric>;
    case Where::kGlobal:
      return exec_store128<Where::kGlobal>;
    case Where::kShared:
      return exec_store128<Where::kShared>;
    case Where::kSharedCluster:
      return exec_store128<Where::kSharedCluster>;
    case Where::kLocal:
      return exec_store128<Where::kLocal>;
    default:
      return nullptr;
  }
}

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

void decode_access(Decoder& d, bool store) {
  auto* a = d.make_aux<Access>();
  d.mod("mmio");  // with .relaxed
  const auto order = d.mod_one_of({"weak", "relaxed", "acquire", "release", "volatile"});
  const Scope scope = scope_named(d.mod_one_of({"cta", "cluster", "gpu", "sys"}));
  a->yields = !order.empty() && order != "weak";
  if (a->yields) a->flags = strong_flags(scope) | (order == "volatile" ? kVolatile : 0);
  a->acquire_release = order == "acquire" || order == "release";
  const auto space = d.space();
  a->cached = d.mod("nc");
  d.ignore_mods({"ca", "cg", "cs", "lu", "cv", "wb", "wt", "unified"});
  while (!d.mod_prefix("L1::").empty()) continue;
  bool hint = false;
  for (std::string_view m = d.mod_prefix("L2::"); !m.empty(); m = d.mod_prefix("L2::"))
    hint |= m == "L2::cache_hint";
  const auto vector = d.mod_one_of({"v2", "v4", "v8"});
  const int count = vector.empty() ? 1 : vector[1] - '0';
  const Type t = d.type();
  if (t.lanes != 1 && t.bits != 32 && t.bits != 16) d.unsupported("type ." + std::string(t.name));
  if (t.bits < 8 || t.bits * count > 256) d.unsupported("vector of this size");
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
  ExecFn exec = nullptr;
  switch (t.bits) {
    case 8:
      exec = store ? store_of<uint8_t>(where) : load_of<uint8_t>(where);
      break;
    case 16:
      exec = store ? store_of<uint16_t>(where) : load_of<uint16_t>(where);
      break;
    case 32:
      exec = store ? store_of<uint32_t>(where) : load_of<uint32_t>(where);
      break;
    case 64:
      exec = store ? store_of<uint64_t>(where) : load_of<uint64_t>(where);
      break;
    case 128:
      exec = store ? store128_of(where) : load128_of(where);
      break;
    default:
      break;
  }
  if (exec == nullptr) d.unsupported("access to this state space");
  d.out().exec = exec;
}

void decode_ld(Decoder& d) { decode_access(d, false); }
void decode_st(Decoder& d) { decode_access(d, true); }

}  // namespace

void register_memory(IsaTable& t) {
  t.add({"ld", decode_ld, "9.7.9.8"});
  t.add({"ldu", decode_ld, "9.7.9.10"});
  t.add({"st", decode_st, "9.7.9.11"});
}

}  // namespace bwgemm::emulator
