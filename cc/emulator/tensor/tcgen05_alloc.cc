// tcgen05.alloc, .dealloc and .relinquish_alloc_permit: PTX ISA 9.7.16.7.1.
#include <cstring>

#include "emulator/tensor/register.h"
#include "emulator/tensor/tensor_state.h"

namespace bwgemm::emulator {
namespace {

std::string describe_alloc(const Warp&, const WaitInfo& info) {
  const TensorMemory& memory = tmem_of(*info.cta);
  int free = 0;
  for (int column = 0; column < kTmemColumns; column += 32) free += memory.is_free(column, 32) * 32;
  std::string text = format("tcgen05.alloc of %u columns: %d columns free on SM %u",
                            static_cast<unsigned>(info.a), free, info.cta->sm().index);
  if (info.b) text += ", the peer CTA's tcgen05.alloc has not been executed";
  return text;
}

Step wait_for_columns(Warp& warp, int columns, bool peer_missing) {
  Cta& cta = warp.cta();
  WaitInfo info;
  info.describe = describe_alloc;
  info.name = "tcgen05.alloc";
  info.cta = &cta;
  info.a = static_cast<uint64_t>(columns);
  info.b = peer_missing;
  return warp.block(wait_key(&tmem_of(cta)), info);
}

// First column for this CTA's half of a pair's allocation, or -1 while it has to wait.
int allocate_pair(Warp& warp, const CtaSet& set, int columns, bool* peer_missing) {
  Cta& cta = warp.cta();
  const int self = static_cast<int>(cta.rank() & 1);
  PairAllocation& pair = tensor_of(cta.cluster()).pairs[cta.rank() / 2];
  if (warp.token() == 0) {
    if (pair.columns[self] != 0) warp.fault("two warps of a CTA execute tcgen05.alloc at once");
    pair.columns[self] = columns;
    warp.token() = 1;
    warp.launch().progress();
  }
  *peer_missing = pair.columns[1 - self] == 0 && pair.granted[self] < 0;
  if (pair.granted[self] < 0) {
    if (*peer_missing) return -1;
    if (pair.columns[0] != pair.columns[1]) {
      warp.fault("the CTAs of a pair allocate different sizes: %d and %d columns", pair.columns[0],
                 pair.columns[1]);
    }
    // Both SMs have to give the same columns: the instruction hands one address to both.
    TensorMemory& first = tmem_of(*set.ctas[0]);
    TensorMemory& second = tmem_of(*set.ctas[1]);
    int column = 0;
    while (column < kTmemColumns &&
           !(first.is_free(column, columns) && second.is_free(column, columns))) {
      column += columns;
    }
    if (column >= kTmemColumns) return -1;
    first.allocate(column, columns, set.ctas[0]);
    second.allocate(column, columns, set.ctas[1]);
    pair.granted[0] = pair.granted[1] = column;
    for (Cta* member : set.ctas) warp.launch().wake(wait_key(&tmem_of(*member)));
  }
  const int column = pair.granted[self];
  pair.granted[self] = -1;
  pair.columns[self] = 0;
  return column;
}

Step exec_alloc(Warp& warp, const Instr& in, uint32_t mask) {
  Cta& cta = warp.cta();
  const CtaSet set = cta_set(warp, in.sub);
  const uint32_t wanted = uniform(warp, in.op[0], mask, "the number of columns");
  if (!TensorMemory::valid_size(wanted)) {
    warp.fault("tcgen05.alloc of %u columns: must be a power of two from 32 to 512", wanted);
  }
  if (tensor_of(cta).relinquished) {
    warp.fault("tcgen05.alloc after tcgen05.relinquish_alloc_permit");
  }
  const int columns = static_cast<int>(wanted);
  const int lane = first_lane(mask);
  const Warp::SharedRef to = warp.shared(warp.address(in.addr, lane), 4, 4, false);
  TensorMemory& memory = tmem_of(cta);
  int column;
  bool peer_missing = false;
  if (set.count == 2) {
    column = allocate_pair(warp, set, columns, &peer_missing);
  } else {
    column = memory.first_fit(columns);
    if (column >= 0) memory.allocate(column, columns, &cta);
  }
  if (column < 0) return wait_for_columns(warp, columns, peer_missing);
  const uint32_t address = static_cast<uint32_t>(column);
  cta.shared().note_write(warp, to.offset, 4, warp.proxy_stamp(), kAllLanes | kUnfenced);
  std::memcpy(cta.shared().data(to.offset), &address, 4);
  return Step::kNext;
}

void decode_alloc(Decoder& d) {
  d.expect_operands(2, 2);
  d.out().sub = decode_cta_group(d);
  d.ignore_mods({"sync", "aligned", "shared::cta", "b32"});
  d.out().flags |= kConverge | kWholeWarp;
  d.out().addr = d.address(0, ptx::Space::kShared);
  d.out().op[0] = d.src(1, 32);
  d.out().exec = exec_alloc;
}

Step exec_dealloc(Warp& warp, const Instr& in, uint32_t mask) {
  Cta& cta = warp.cta();
  const CtaSet set = cta_set(warp, in.sub);
  const TmemAddress address(uniform(warp, in.op[0], mask, "the tensor memory address"));
  const uint32_t columns = uniform(warp, in.op[1], mask, "the number of columns");
  if (!TensorMemory::valid_size(columns)) {
    warp.fault("tcgen05.dealloc of %u columns: must be a power of two from 32 to 512", columns);
  }
  if (address.lane != 0) warp.fault("tcgen05.dealloc of an address in lane %d", address.lane);
  TensorMemory& memory = tmem_of(cta);
  const std::string problem = memory.deallocate(address.column, static_cast<int>(columns), &cta);
  if (!problem.empty()) warp.fault("tcgen05.dealloc: %s", problem.c_str());
  const TmemRegion region{0, kTmemLanes, address.column, static_cast<int>(columns)};
  for (int i = 0; i < set.count; ++i) check_free(warp, *set.ctas[i], region);
  warp.launch().wake(wait_key(&memory));
  return Step::kNext;
}

void decode_dealloc(Decoder& d) {
  d.expect_operands(2, 2);
  d.out().sub = decode_cta_group(d);
  d.ignore_mods({"sync", "aligned", "b32"});
  d.out().flags |= kConverge | kWholeWarp;
  d.out().op[0] = d.src(0, 32);
  d.out().op[1] = d.src(1, 32);
  d.out().exec = exec_dealloc;
}

Step exec_relinquish(Warp& warp, const Instr& in, uint32_t) {
  cta_set(warp, in.sub);
  tensor_of(warp.cta()).relinquished = true;
  return Step::kNext;
}

void decode_relinquish(Decoder& d) {
  d.expect_operands(0, 0);
  d.out().sub = decode_cta_group(d);
  d.ignore_mods({"sync", "aligned"});
  d.out().flags |= kConverge | kWholeWarp;
  d.out().exec = exec_relinquish;
}

}  // namespace

void register_tcgen05_alloc(IsaTable& table) {
  table.add({"tcgen05.alloc", decode_alloc, "9.7.16.7.1"});
  table.add({"tcgen05.dealloc", decode_dealloc, "9.7.16.7.1"});
  table.add({"tcgen05.relinquish_alloc_permit", decode_relinquish, "9.7.16.7.1"});
}

}  // namespace bwgemm::emulator
