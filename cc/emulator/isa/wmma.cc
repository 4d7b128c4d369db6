// wmma.load, wmma.store, wmma.mma (PTX ISA 9.7.14.4). Which lane holds which element of a fragment
// is not for programs to know: here, element e of a row-major matrix is in lane e % 32. Where the
// registers have room for every element twice, they hold it twice.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "emulator/isa/isa.h"
#include "emulator/isa/lanes.h"
#include "emulator/isa/numbers.h"
#include "emulator/machine/launch.h"
#include "emulator/tensor/number_formats.h"

namespace bwgemm::emulator {
namespace {

struct Shape {
  std::string_view name;
  int m, n, k;
};
constexpr Shape kShapes[] = {{"m16n16k16", 16, 16, 16},
                             {"m32n8k16", 32, 8, 16},
                             {"m8n32k16", 8, 32, 16},
                             {"m16n16k8", 16, 16, 8},
                             {"m8n8k4", 8, 8, 4}};

constexpr int kMostRegisters = 8;

// A matrix in registers.
struct Fragment {
  NumberFormat element = NumberFormat::kF16;
  int rows = 0, columns = 0, registers = 0;
  Row row[kMostRegisters];

  int bits() const { return format_bits(element); }
  int per_register() const { return std::max(1, 32 / bits()); }
  int per_lane() const { return rows * columns / kWarpSize; }

  uint64_t get(Warp& w, int e) const {
    if (bits() == 64) return w.r64(row[e / kWarpSize])[e % kWarpSize];
    const int slot = e / kWarpSize;
    const uint32_t word = w.r32(row[slot / per_register()])[e % kWarpSize];
    return bits() == 32 ? word : word >> (bits() * (slot % per_register())) & ((1u << bits()) - 1);
  }
  void set(Warp& w, int e, uint64_t value) const {
    for (int slot = e / kWarpSize; slot < registers * per_register(); slot += per_lane()) {
      const int lane = e % kWarpSize;
      if (bits() == 64) {
        w.r64(row[slot])[lane] = value;
      } else if (bits() == 32) {
        w.r32(row[slot])[lane] = static_cast<uint32_t>(value);
      } else {
        const int shift = bits() * (slot % per_register());
        const uint32_t field = ((1u << bits()) - 1) << shift;
        uint32_t& word = w.r32(row[slot / per_register()])[lane];
        word = (word & ~field) | (static_cast<uint32_t>(value) << shift & field);
      }
    }
  }
};

struct Access {
  Fragment fragment;
  Address addr;
  ptx::Space space = ptx::Space::kGeneric;
  bool by_column = false;
  Row stride = kNoRow;  // elements between rows, or columns; absent: they are dense
};

uint8_t* locate(Warp& w, const Access& a, uint64_t address, uint32_t bytes, const void* stored) {
  const bool write = stored != nullptr;
  if (a.space == ptx::Space::kGeneric)
    return w.generic(address, 0, bytes, bytes, write, kAllLanes, stored);
  if (a.space == ptx::Space::kShared) {
    const auto ref = w.shared(address, bytes, bytes, false);
    SharedMemory& memory = ref.cta->shared();
    if (write) {
      memory.note_write(w, ref.offset, bytes, w.proxy_stamp(), kAllLanes);
    } else {
      memory.check_read(w, ref.offset, bytes, kAllLanes);
    }
    return memory.data(ref.offset);
  }
  uint8_t* at = w.global(address, bytes, bytes, write);
  w.note_global(address, bytes, write, kAllLanes);
  return at;
}

template <bool kStore>
Step exec_access(Warp& w, const Instr& in, uint32_t mask) {
  const auto& a = *static_cast<const Access*>(in.aux);
  if (mask != kFullMask) w.fault("%s needs all 32 lanes", in.name);
  const Fragment& f = a.fragment;
  const uint64_t base = w.address(a.addr, 0);
  const int64_t dense = a.by_column ? f.rows : f.columns;
  const int64_t stride = a.stride == kNoRow ? dense : static_cast<int32_t>(w.r32(a.stride)[0]);
  const uint32_t bytes = static_cast<uint32_t>(f.bits() / 8);
  for (int e = 0; e < f.rows * f.columns; ++e) {
    const int row = e / f.columns, column = e % f.columns;
    const int64_t at = a.by_column ? column * stride + row : row * stride + column;
    const uint64_t address = base + static_cast<uint64_t>(at) * bytes;
    uint64_t value = kStore ? f.get(w, e) : 0;
    uint8_t* memory = locate(w, a, address, bytes, kStore ? &value : nullptr);
    if (kStore) {
      std::memcpy(memory, &value, bytes);
    } else {
      std::memcpy(&value, memory, bytes);
      f.set(w, e, value);
    }
  }
  if (kStore) w.launch().progress();
  return Step::kNext;
}

struct Product {
  Fragment a, b, c, d;
  bool saturate = false;
};

uint64_t result_of(const Product& p, double sum, uint64_t addend) {
  const NumberFormat e = p.d.element;
  if (e == NumberFormat::kS32) {
    const int64_t exact = static_cast<int64_t>(sum) + static_cast<int32_t>(addend);
    return static_cast<uint64_t>(p.saturate ? std::clamp<int64_t>(exact, INT32_MIN, INT32_MAX)
                                            : exact);
  }
  const float value = static_cast<float>(sum + decode_exactly(p.c.element, addend));
  return e == NumberFormat::kF16 ? f32_to_f16_rn(value) : bits_of(value);
}

Step exec_product(Warp& w, const Instr& in, uint32_t mask) {
  const auto& p = *static_cast<const Product*>(in.aux);
  if (mask != kFullMask) w.fault("wmma.mma needs all 32 lanes");
  const int m = p.d.rows, n = p.d.columns, k = p.a.columns;
  std::array<double, 32 * 16> a{}, b{};
  for (int e = 0; e < m * k; ++e)
    a[static_cast<size_t>(e)] = decode_exactly(p.a.element, p.a.get(w, e));
  for (int e = 0; e < k * n; ++e)
    b[static_cast<size_t>(e)] = decode_exactly(p.b.element, p.b.get(w, e));
  for (int e = 0; e < m * n; ++e) {
    const uint64_t addend = p.c.get(w, e);
    const bool wide = p.d.element == NumberFormat::kF64;
    double sum = wide ? f64_of(addend) : 0;
    for (int i = 0; i < k; ++i) {
      const double x = a[static_cast<size_t>(e / n * k + i)];
      const double y = b[static_cast<size_t>(i * n + e % n)];
      sum = wide ? std::fma(x, y, sum) : sum + x * y;
    }
    p.d.set(w, e, wide ? bits_of(sum) : result_of(p, sum, addend));
  }
  Stats& stats = w.launch().stats();
  stats.mma_flops += uint64_t{2} * static_cast<uint64_t>(m) * static_cast<uint64_t>(n * k);
  ++stats.mma_instructions;
  ++w.launch().warp_stats(w.origin()).mma;
  return Step::kNext;
}

const Shape& take_shape(Decoder& d) {
  for (const Shape& shape : kShapes) {
    if (d.mod(shape.name)) return shape;
  }
  d.unsupported("shape" + d.mods_left());
}

NumberFormat take_element(Decoder& d) {
  const std::string_view name = d.next_mod();
  const auto found = format_named(
      name, {NumberFormat::kF16, NumberFormat::kBF16, NumberFormat::kTF32, NumberFormat::kF32,
             NumberFormat::kF64, NumberFormat::kS8, NumberFormat::kU8, NumberFormat::kS32});
  if (!found) d.unsupported("type ." + std::string(name));
  d.mod(name);
  return *found;
}

// The matrix "a", "b", "c" or "d" of this shape, in the registers of an operand.
Fragment fragment(Decoder& d, char which, const Shape& shape, NumberFormat element, size_t operand,
                  bool destination) {
  Fragment f;
  f.element = element;
  f.rows = which == 'b' ? shape.k : shape.m;
  f.columns = which == 'a' ? shape.k : shape.n;
  const ptx::Operand& o = d.operand(operand);
  const auto* items = Decoder::vector_items(o);
  f.registers = items == nullptr ? 1 : static_cast<int>(items->size());
  const int slots = f.registers * f.per_register();
  if (f.registers > kMostRegisters || slots < f.per_lane() || slots % f.per_lane() != 0)
    d.error(format("operand %zu has %d registers, which do not fit this shape", operand + 1,
                   f.registers));
  for (int i = 0; i < f.registers; ++i) {
    const ptx::Operand& item = items == nullptr ? o : (*items)[static_cast<size_t>(i)];
    const int bits = element == NumberFormat::kF64 ? 64 : 32;
    f.row[i] = destination ? d.dst(item, bits) : d.src(item, bits);
  }
  return f;
}

void take_sync(Decoder& d) {
  if (!d.mod("sync") || !d.mod("aligned")) d.error("needs .sync.aligned");
  d.out().flags |= kConverge | kWholeWarp;
}

template <bool kStore>
void decode_access(Decoder& d) {
  take_sync(d);
  const std::string_view which = d.mod_one_of({"a", "b", "c", "d"});
  if (which.empty() || (which == "d") != kStore) d.error("needs .a, .b or .c, of a store .d");
  const std::string_view layout = d.mod_one_of({"row", "col"});
  if (layout.empty()) d.error("needs .row or .col");
  const Shape& shape = take_shape(d);
  const auto space = d.space();
  if (space.cluster || (space.space != ptx::Space::kGeneric && space.space != ptx::Space::kShared &&
                        space.space != ptx::Space::kGlobal))
    d.unsupported("state space");
  const NumberFormat element = take_element(d);
  d.expect_operands(2, 3);
  auto* a = d.make_aux<Access>();
  a->fragment = fragment(d, which[0], shape, element, kStore ? 1 : 0, !kStore);
  a->addr = d.address(d.operand(kStore ? 0 : 1), space.space);
  a->space = space.space;
  a->by_column = layout == "col";
  if (d.count() == 3) a->stride = d.src(2, 32);
  d.out().exec = exec_access<kStore>;
}

void decode_product(Decoder& d) {
  take_sync(d);
  for (int i = 0; i < 2; ++i) {  // those that A and B were loaded with
    if (d.mod_one_of({"row", "col"}).empty()) d.error("needs the layouts of A and B");
  }
  const Shape& shape = take_shape(d);
  auto* p = d.make_aux<Product>();
  p->saturate = d.mod("satfinite");
  d.mod("rn");
  d.expect_operands(4, 4);
  // D, A, B, C; of two types D and C, and the others are f16.
  const NumberFormat first = take_element(d), second = take_element(d);
  NumberFormat types[4] = {first, NumberFormat::kF16, NumberFormat::kF16, second};
  if (!d.next_mod().empty()) {
    types[1] = second;
    types[2] = take_element(d);
    types[3] = take_element(d);
  }
  for (const NumberFormat e : types) {
    if (is_integer(e) != is_integer(types[0]) ||
        (e == NumberFormat::kF64) != (types[0] == NumberFormat::kF64))
      d.unsupported("combination of types");
  }
  const bool accumulates = types[0] == NumberFormat::kF16 || types[0] == NumberFormat::kF32 ||
                           types[0] == NumberFormat::kF64 || types[0] == NumberFormat::kS32;
  if (!accumulates || format_bits(types[1]) != format_bits(types[2]))
    d.unsupported("combination of types");
  p->d = fragment(d, 'd', shape, types[0], 0, true);
  p->a = fragment(d, 'a', shape, types[1], 1, false);
  p->b = fragment(d, 'b', shape, types[2], 2, false);
  p->c = fragment(d, 'c', shape, types[3], 3, false);
  d.out().exec = exec_product;
}

}  // namespace

void register_wmma(IsaTable& t) {
  t.add({"wmma.load", decode_access<false>, "9.7.14.4.3"});
  t.add({"wmma.store", decode_access<true>, "9.7.14.4.4"});
  t.add({"wmma.mma", decode_product, "9.7.14.4.5"});
}

}  // namespace bwgemm::emulator
