// Prefetches, cache hints and fences (PTX ISA 9.7.9.15 - 9.7.9.18, 9.7.13.4).
#include <cstring>

#include "emulator/isa/isa.h"
#include "emulator/isa/lanes.h"
#include "emulator/machine/kernel_builder.h"
#include "emulator/machine/launch.h"

namespace bwgemm::emulator {
namespace {

// ---- hints without an effect on values

Step exec_nop(Warp&, const Instr&, uint32_t) { return Step::kNext; }

void decode_prefetch(Decoder& d) {
  const bool tensormap = d.mod("tensormap");
  const auto space = d.space();
  if (!tensormap && d.mod_one_of({"L1", "L2", "L2::evict_last", "L2::evict_normal"}).empty())
    d.error("prefetch without a cache level");
  d.expect_operands(1, 1);
  d.address(0, space.space);
  d.out().exec = exec_nop;
}

constexpr uint32_t kCacheLine = 128;

// What is discarded may become anything: a write of NaN patterns.
Step exec_discard(Warp& w, const Instr& in, uint32_t mask) {
  for_lanes(mask, [&](int lane) {
    const uint64_t address = w.address(in.addr, lane);
    uint8_t* line = w.global(address, kCacheLine, kCacheLine, true);
    w.note_global(address, kCacheLine, true, lane_flags(lane));
    std::memset(line, 0xFF, kCacheLine);
  });
  w.launch().progress();
  return Step::kNext;
}

Step exec_applypriority(Warp& w, const Instr& in, uint32_t mask) {
  for_lanes(mask,
            [&](int lane) { w.global(w.address(in.addr, lane), kCacheLine, kCacheLine, false); });
  return Step::kNext;
}

void decode_line(Decoder& d, ExecFn exec) {
  const auto space = d.space();
  while (!d.mod_prefix("L2").empty()) {
  }
  d.expect_operands(2, 2);
  d.out().addr = d.address(0, space.space);
  if (d.int_constant(1) != kCacheLine) d.error("the size must be 128");
  d.out().exec = exec;
}
void decode_discard(Decoder& d) { decode_line(d, exec_discard); }
void decode_applypriority(Decoder& d) { decode_line(d, exec_applypriority); }

Step exec_createpolicy(Warp& w, const Instr& in, uint32_t mask) {
  uint64_t* d = w.r64(in.op[0]);
  for_lanes(mask, [&](int lane) { d[lane] = 0; });
  return Step::kNext;
}

// A cache policy is opaque and has no effect here: zero.
void decode_createpolicy(Decoder& d) {
  d.ignore_mods({"fractional", "range", "cvt", "global"});
  while (!d.mod_prefix("L2").empty()) {
  }
  d.mod("b64");
  if (d.count() < 1) d.error("too few operands");
  d.out().op[0] = d.dst(0, 64);
  d.out().exec = exec_createpolicy;
}

// ---- fences. Values are sequentially consistent here (one instruction at a time): a fence only
// decides what counts as ordered.

// imm: FenceKind.
Step exec_fence(Warp& w, const Instr& in, uint32_t) {
  if (!w.launch().races().on()) return Step::kNext;
  w.launch().races().told(w);
  w.history.fence(static_cast<Scope>(in.sub), static_cast<FenceKind>(in.imm));
  return Step::kNext;
}

// sub: 1 of shared memory, 2 of global memory.
Step exec_proxy_fence(Warp& w, const Instr& in, uint32_t) {
  w.proxy_fence((in.sub & 1) != 0, (in.sub & 2) != 0);
  return Step::kNext;
}

Step exec_init_fence(Warp& w, const Instr&, uint32_t) {
  w.history.fence_mbarrier_init();
  return Step::kNext;
}

void decode_proxy_fence(Decoder& d) {
  const ptx::Space space = d.space().space;
  d.out().sub = space == ptx::Space::kShared ? 1 : space == ptx::Space::kGlobal ? 2 : 3;
  d.out().exec = exec_proxy_fence;
}

void decode_fence(Decoder& d) {
  d.out().exec = exec_nop;
  if (d.mod("proxy")) {
    const auto kind = d.mod_one_of({"async", "alias", "tensormap::generic", "async::generic"});
    if (kind.empty()) d.unsupported("proxy" + d.mods_left());
    d.ignore_mods({"acquire", "release", "sync_restrict::shared::cta",
                   "sync_restrict::shared::cluster", "cta", "cluster", "gpu", "sys"});
    if (kind == "async" || kind == "async::generic") decode_proxy_fence(d);
    d.space();
    d.expect_operands(0, 2);
    return;
  }
  d.out().exec = d.mod("mbarrier_init") ? exec_init_fence : exec_fence;
  const auto kind = d.mod_one_of({"sc", "acq_rel", "acquire", "release"});
  d.out().imm = static_cast<int64_t>(kind == "acquire"   ? FenceKind::kAcquire
                                     : kind == "release" ? FenceKind::kRelease
                                     : kind == "acq_rel" ? FenceKind::kBoth
                                                         : FenceKind::kSequential);
  d.ignore_mods({"sync_restrict::shared::cta", "sync_restrict::shared::cluster"});
  d.out().sub = static_cast<uint8_t>(scope_named(d.mod_one_of({"cta", "cluster", "gpu", "sys"})));
  d.expect_operands(0, 0);
}

void decode_membar(Decoder& d) {
  d.out().exec = exec_nop;
  if (d.mod("proxy")) {
    const bool async = d.mod_one_of({"async", "alias"}) == "async";
    if (async) decode_proxy_fence(d);
    d.space();
  } else {
    const auto level = d.mod_one_of({"cta", "gl", "sys", "gpu"});
    if (level.empty()) d.error("membar without a level");
    d.out().sub = static_cast<uint8_t>(scope_named(level));
    d.out().imm = static_cast<int64_t>(FenceKind::kSequential);
    d.out().exec = exec_fence;
  }
  d.expect_operands(0, 0);
}

}  // namespace

void register_fence(IsaTable& t) {
  t.add({"prefetch", decode_prefetch, "9.7.9.15"});
  t.add({"prefetchu", decode_prefetch, "9.7.9.15"});
  t.add({"applypriority", decode_applypriority, "9.7.9.16"});
  t.add({"discard", decode_discard, "9.7.9.17"});
  t.add({"createpolicy", decode_createpolicy, "9.7.9.18"});
  t.add({"fence", decode_fence, "9.7.13.4"});
  t.add({"membar", decode_membar, "9.7.13.4"});
}

}  // namespace bwgemm::emulator
