// Stores that signal an mbarrier: st.async, red.async (PTX ISA 9.7.9.12, 9.7.13.7). An asynchronous
// write to a CTA of the cluster completes bytes on an mbarrier of the same CTA.
#include <algorithm>
#include <cstring>

#include "emulator/isa/isa.h"
#include "emulator/isa/lanes.h"
#include "emulator/machine/launch.h"
#include "emulator/machine/mbarrier.h"

namespace bwgemm::emulator {
namespace {

enum class AsyncKind : uint8_t { kStore, kAdd, kMin, kMax, kInc, kDec, kAnd, kOr, kXor };

struct AsyncArgs {
  Address to, barrier;
  Row rows[4];
  int count = 1, bits = 32;
  bool is_signed = false;
  AsyncKind kind = AsyncKind::kStore;
};

template <typename T>
T reduce(AsyncKind kind, T old, T value, bool is_signed) {
  using S = std::make_signed_t<T>;
  switch (kind) {
    case AsyncKind::kAdd:
      return static_cast<T>(old + value);
    case AsyncKind::kMin:
      return is_signed ? static_cast<T>(std::min(static_cast<S>(old), static_cast<S>(value)))
                       : std::min(old, value);
    case AsyncKind::kMax:
      return is_signed ? static_cast<T>(std::max(static_cast<S>(old), static_cast<S>(value)))
                       : std::max(old, value);
    case AsyncKind::kInc:
      return old >= value ? T{0} : static_cast<T>(old + 1);
    case AsyncKind::kDec:
      return old == 0 || old > value ? value : static_cast<T>(old - 1);
    case AsyncKind::kAnd:
      return static_cast<T>(old & value);
    case AsyncKind::kOr:
      return static_cast<T>(old | value);
    case AsyncKind::kXor:
      return static_cast<T>(old ^ value);
    case AsyncKind::kStore:
      break;
  }
  return value;
}

class AsyncStore : public AsyncOp {
 public:
  bool step(Launch& launch) override {
    uint8_t* to = cta->shared().data(offset);
    for (uint32_t i = 0; i < bytes; i += width) {
      if (width == 4) {
        uint32_t old, value;
        std::memcpy(&old, to + i, 4);
        std::memcpy(&value, data + i, 4);
        value = reduce(kind, old, value, is_signed);
        std::memcpy(to + i, &value, 4);
      } else {
        uint64_t old, value;
        std::memcpy(&old, to + i, 8);
        std::memcpy(&value, data + i, 8);
        value = reduce(kind, old, value, is_signed);
        std::memcpy(to + i, &value, 8);
      }
    }
    if (kind == AsyncKind::kStore) cta->shared().end_async_write(offset, bytes, origin.line);
    launch.races().close(record, *cta, *barrier_cta, barrier_offset);
    mbarrier_complete_tx(launch, *barrier_cta, barrier_offset, bytes, origin);
    return true;
  }
  Cta* cta = nullptr;
  Cta* barrier_cta = nullptr;
  uint32_t offset = 0, barrier_offset = 0, bytes = 0, width = 4;
  AsyncKind kind = AsyncKind::kStore;
  bool is_signed = false;
  Stamp record;
  uint8_t data[32];
};

Step exec_async(Warp& w, const Instr& in, uint32_t mask) {
  const auto& a = *static_cast<const AsyncArgs*>(in.aux);
  const uint32_t width = static_cast<uint32_t>(a.bits / 8),
                 bytes = width * static_cast<uint32_t>(a.count);
  for_lanes(mask, [&](int lane) {
    auto op = std::make_unique<AsyncStore>();
    const auto to = w.shared(w.address(a.to, lane), bytes, bytes, true);
    const auto barrier = w.shared(w.address(a.barrier, lane), 8, 8, true);
    if (to.cta != barrier.cta) w.fault("the mbarrier is in another CTA than the data");
    op->cta = to.cta;
    op->offset = to.offset;
    op->barrier_cta = barrier.cta;
    op->barrier_offset = barrier.offset;
    op->bytes = bytes;
    op->width = width;
    op->kind = a.kind;
    op->is_signed = a.is_signed;
    op->trace_arg = bytes;
    for (int i = 0; i < a.count; ++i) {
      if (width == 4)
        std::memcpy(op->data + 4 * i, &w.r32(a.rows[i])[lane], 4);
      else
        std::memcpy(op->data + 8 * i, &w.r64(a.rows[i])[lane], 8);
    }
    Races& races = w.launch().races();
    if (races.on()) op->record = races.open(w, *to.cta, *barrier.cta, barrier.offset);
    op->record.flags |= kUnfenced;
    if (a.kind == AsyncKind::kStore) {
      to.cta->shared().begin_async_write(w.launch(), to.offset, bytes, w.origin(), op->record);
    } else {
      Stamp reduction = op->record;
      reduction.flags |= kStrong;
      races.access(w, *to.cta, to.offset, bytes, reduction, true, w.origin());
    }
    w.launch().submit(w, std::move(op));
  });
  return Step::kNext;
}

void decode_async(Decoder& d, bool reduction) {
  auto* a = d.make_aux<AsyncArgs>();
  if (d.count() == 2) d.unsupported("form without an mbarrier, of global memory");
  d.ignore_mods({"weak", "relaxed", "cluster", "shared", "shared::cta", "shared::cluster",
                 "mbarrier::complete_tx::bytes"});
  if (reduction) {
    static constexpr std::pair<std::string_view, AsyncKind> kOps[] = {
        {"add", AsyncKind::kAdd}, {"min", AsyncKind::kMin}, {"max", AsyncKind::kMax},
        {"inc", AsyncKind::kInc}, {"dec", AsyncKind::kDec}, {"and", AsyncKind::kAnd},
        {"or", AsyncKind::kOr},   {"xor", AsyncKind::kXor}};
    for (const auto& [name, kind] : kOps) {
      if (d.mod(name)) a->kind = kind;
    }
    if (a->kind == AsyncKind::kStore) d.error("red.async without an operation");
  }
  const auto vector = d.mod_one_of({"v2", "v4"});
  a->count = vector.empty() ? 1 : vector[1] - '0';
  const Type t = d.type();
  if (t.bits != 32 && t.bits != 64) d.unsupported("type ." + std::string(t.name));
  if (t.is_float() && reduction) d.unsupported("type ." + std::string(t.name));
  if (a->count * t.bits > 128) d.unsupported("vector of this size");
  a->bits = t.bits;
  a->is_signed = t.is_signed();
  d.expect_operands(3, 3);
  a->to = d.address(0, ptx::Space::kShared);
  a->barrier = d.address(2, ptx::Space::kShared);
  const auto* items = Decoder::vector_items(d.operand(1));
  if (items == nullptr ? a->count != 1 : items->size() != static_cast<size_t>(a->count))
    d.error("the vector operand has another number of elements");
  for (int i = 0; i < a->count; ++i)
    a->rows[i] = d.src(items == nullptr ? d.operand(1) : (*items)[static_cast<size_t>(i)], t.bits);
  d.out().exec = exec_async;
}
void decode_st_async(Decoder& d) { decode_async(d, false); }
void decode_red_async(Decoder& d) { decode_async(d, true); }

}  // namespace

void register_async_store(IsaTable& t) {
  t.add({"st.async", decode_st_async, "9.7.9.12"});
  t.add({"red.async", decode_red_async, "9.7.13.7"});
}

}  // namespace bwgemm::emulator
