#include "emulator/machine/warp.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <utility>

#include "emulator/machine/kernel.h"
#include "emulator/machine/launch.h"
#include "emulator/machine/shuffle.h"

namespace bwgemm::emulator {

void Warp::fault(const char* fmt, ...) {
  char text[1024];
  va_list args;
  va_start(args, fmt);
  std::vsnprintf(text, sizeof text, fmt, args);
  va_end(args);
  launch_->fault(origin(), text);
}

void Warp::report(Rule rule, const std::string& message) {
  launch_->report(rule, origin(), message);
}

void Warp::tell() {
  launch_->races().told(*this);
  history.release();
}

void Warp::watch_row(Row row, RowUse use) {
  if (!launch_->watches(use == kLoaded ? Rule::kLoadWait : Rule::kWgmmaRegisters)) return;
  if (row_uses_.empty()) row_uses_.assign(kernel_->rows, 0);
  if (row_uses_[row] == 0) watched_rows_.push_back(row);
  row_uses_[row] |= use;
}

void Warp::forget_rows(int uses) {
  const auto gone = [&](Row row) {
    row_uses_[row] &= static_cast<uint8_t>(~uses);
    return row_uses_[row] == 0;
  };
  watched_rows_.erase(std::remove_if(watched_rows_.begin(), watched_rows_.end(), gone),
                      watched_rows_.end());
}

bool Warp::first_time(const Instr& in) {
  if (std::find(seen_.begin(), seen_.end(), &in) != seen_.end()) return false;
  seen_.push_back(&in);
  return true;
}

void Warp::check_rows(const Instr& in) {
  const Kernel::Rows& rows = kernel_->rows_of[static_cast<size_t>(&in - kernel_->code.data())];
  if (rows.wgmma) return;  // several of them are in order
  const auto uses = [&](Row row) { return row_uses_.empty() ? 0 : row_uses_[row]; };
  const auto wgmma = [&](const char* what) {
    report(Rule::kWgmmaRegisters,
           format("%s a register of a wgmma.mma_async that wgmma.wait_group has not waited for",
                  what));
    forget_rows(kAccumulator | kMultiplicand);
  };
  const auto load = [&](const char* what) {
    report(Rule::kLoadWait,
           format("%s a register that an earlier tcgen05.ld loads, before tcgen05.wait::ld", what));
    forget_rows(kLoaded);
  };
  bool moved = false;
  for (const Row row : rows.read) {
    if ((uses(row) & kAccumulator) != 0) return wgmma("reads");
    if ((uses(row) & kLoaded) == 0) continue;
    // Compilers name a register anew right after the load; that is no use of its value.
    if (!rows.moves) return load("uses");
    moved = true;
  }
  for (const Row row : rows.written) {
    if ((uses(row) & (kAccumulator | kMultiplicand)) != 0) return wgmma("writes");
    if ((uses(row) & kLoaded) != 0 && !rows.loads_tensor && !moved) return load("overwrites");
    if (moved) watch_row(row, kLoaded);
    if ((in.flags & kTouches) != 0 && kernel_->wgmma_rows[row]) watch_row(row, kTouched);
  }
}

uint32_t Warp::bytes_taken(const Instr& in, uint32_t mask, bool second) {
  if (in.sub != 0) return mask;  // a mode: as if bytes of both were taken
  const uint32_t* selectors = r32(in.op[3]);
  uint32_t lanes = 0;
  for_lanes(mask, [&](int lane) {
    for (int i = 0; i < 16; i += 4) {
      if ((selectors[lane] >> i & 4) == (second ? 4u : 0u)) lanes |= 1u << lane;
    }
  });
  return lanes;
}

void Warp::track(const Instr& in, uint32_t group, uint32_t mask) {
  using Tracking = Kernel::Tracking;
  const uint32_t pc = static_cast<uint32_t>(&in - kernel_->code.data());
  const Tracking& tracking = kernel_->tracking.find(pc)->second;
  // Of the operands: lanes in which some bits of one are undefined, all bits of one, all of all.
  uint32_t undefined = 0, wholly = 0, all = mask;
  const auto reads = [&](uint32_t slot, uint32_t lanes) {
    if (slot == Tracking::kOther) {
      all = 0;
      return;
    }
    all &= wholly_[slot];
    if ((undefined_[slot] & lanes) == 0) return;
    if (slot < kernel_->undefined_slots) undefined_line_ = in.line;
    undefined |= undefined_[slot] & lanes;
    wholly |= wholly_[slot] & lanes;
  };
  const uint32_t first = tracking.selects ? pred(in.op[3]) : kFullMask;
  const bool shuffles = tracking.use == Tracking::Use::kShuffles;
  if (shuffles) {  // lanes that wait for others execute it again
    const uint32_t* named = r32(in.op[4]);
    for_lanes(mask, [&](int lane) {
      if ((named[lane] & live_ & ~mask) != 0) mask &= ~(1u << lane);
    });
  }
  for (size_t i = shuffles ? 1 : 0; i < tracking.read.size(); ++i) {
    const bool chosen = tracking.selects && i < 2;
    reads(tracking.read[i], mask & (!chosen ? kFullMask : i == 0 ? first : ~first));
  }
  if (!tracking.read_back.empty() && (pred(tracking.read_back_if) & mask) != 0) {
    for (const uint32_t slot : tracking.read_back) reads(slot, mask);
  }
  // Whether a branch is taken or a store made matters to all who come to it; whether a value is
  // assigned, too.
  uint32_t unsure = 0;
  if (tracking.guard != Tracking::kOther) {
    if (tracking.use == Tracking::Use::kResult) {
      reads(tracking.guard, group);
    } else {
      unsure = undefined_[tracking.guard] & group;
    }
  }
  if (tracking.use == Tracking::Use::kResult && undefined != 0) {
    report(Rule::kUninitializedRegister,
           format("lanes 0x%08x use what comes from a register that nothing has written (line %d "
                  "reads it)",
                  undefined, undefined_line_));
  }
  switch (tracking.use) {
    case Tracking::Use::kComputes:
      break;
    case Tracking::Use::kPermutes: {
      const auto wholly_in = [&](size_t operand) {
        const uint32_t slot = tracking.read[operand];
        return slot == Tracking::kOther ? 0 : wholly_[slot] & mask;
      };
      const uint32_t taken[2] = {bytes_taken(in, mask, false), bytes_taken(in, mask, true)};
      const uint32_t choice = tracking.read[2];
      undefined = (taken[0] & wholly_in(0)) | (taken[1] & wholly_in(1)) |
                  (choice == Tracking::kOther ? 0 : undefined_[choice] & mask);
      wholly = (~taken[0] | wholly_in(0)) & (~taken[1] | wholly_in(1)) & mask;
      break;
    }
    case Tracking::Use::kPacks:
      wholly = all;
      break;
    case Tracking::Use::kMasks:
      wholly = 0;
      break;
    case Tracking::Use::kParts:
      undefined = wholly;
      break;
    case Tracking::Use::kShuffles: {
      wholly = undefined;
      const uint32_t slot = tracking.read[0];
      if (slot == Tracking::kOther || undefined_[slot] == 0) break;
      if (slot < kernel_->undefined_slots) undefined_line_ = in.line;
      const uint32_t *b = r32(in.op[2]), *c = r32(in.op[3]);
      for_lanes(mask, [&](int lane) {
        const int from = shuffle_source(static_cast<Shuffle>(in.sub), lane, b[lane], c[lane]).lane;
        undefined |= (undefined_[slot] >> from & 1) << lane;
        wholly |= (wholly_[slot] >> from & 1) << lane;
      });
      break;
    }
    case Tracking::Use::kExchanges:
      undefined = wholly = (wholly & mask) == mask ? mask : 0;
      break;
    case Tracking::Use::kReduces:
      undefined = wholly = wholly != 0 ? mask : 0;
      break;
    default:
      undefined = wholly = 0;
  }
  for (const uint32_t slot : tracking.written) {
    const bool was = undefined_[slot] != 0;
    undefined_[slot] = (undefined_[slot] & ~mask) | (undefined & mask) | unsure;
    wholly_[slot] = (wholly_[slot] & ~mask) | (wholly & mask) | unsure;
    undefined_slots_ += static_cast<uint32_t>(undefined_[slot] != 0) - static_cast<uint32_t>(was);
  }
  if (undefined_slots_ == 0) undefined_.clear();  // nothing becomes undefined later
}

// ---- Memory

Warp::SharedRef Warp::shared(uint64_t address, uint32_t bytes, uint32_t align, bool cluster) {
  if ((address & kWindowMask) == kSharedWindow) address -= kSharedWindow;
  if ((address & (align - 1)) != 0)
    fault("shared address 0x%llx is not a multiple of %u", static_cast<unsigned long long>(address),
          align);
  const uint64_t rank = address >> kSharedRankShift;
  const uint32_t offset = static_cast<uint32_t>(address) & ((1u << kSharedRankShift) - 1);
  Cta* cta = cta_;
  if (rank != cta->rank()) {
    if (!cluster || rank >= cta->cluster().size()) {
      fault("address 0x%llx is not in the shared memory of this CTA%s (its window starts at 0x%x)",
            static_cast<unsigned long long>(address), cluster ? " or of its cluster" : "",
            cta->rank() << kSharedRankShift);
    }
    cta = &cta->cluster().cta(static_cast<uint32_t>(rank));
    if (cta->exited()) {
      report(Rule::kCtaExit, format("shared memory of CTA %u, which has exited", cta->linear()));
    }
  }
  if (!cta->shared().contains(offset, bytes)) {
    fault(
        "shared address 0x%llx: %u bytes at offset 0x%x are outside the CTA's shared memory [0x%x, "
        "0x%x)",
        static_cast<unsigned long long>(address), bytes, offset, cta->shared().first(),
        cta->shared().size());
  }
  return {cta, offset};
}

uint8_t* Warp::global(uint64_t address, uint64_t bytes, uint32_t align, bool write) {
  if ((address & (align - 1)) != 0)
    fault("global address 0x%llx is not a multiple of %u", static_cast<unsigned long long>(address),
          align);
  uint8_t* pointer = launch_->memory().find(address, bytes, write);
  if (pointer == nullptr) {
    fault("%s of %llu bytes at global address 0x%llx: %s", write ? "write" : "read",
          static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(address),
          launch_->memory().describe(address).c_str());
  }
  return pointer;
}

uint8_t* Warp::local(uint64_t offset, int lane, uint32_t bytes, uint32_t align) {
  if ((offset & (align - 1)) != 0)
    fault("local address 0x%llx is not a multiple of %u", static_cast<unsigned long long>(offset),
          align);
  const uint32_t size = kernel_->local_bytes;
  if (offset > size || bytes > size - offset) {
    fault("local address 0x%llx: %u bytes are outside the thread's %u bytes",
          static_cast<unsigned long long>(offset), bytes, size);
  }
  return local_.get() + size_t{size} * static_cast<size_t>(lane) + offset;
}

const uint8_t* Warp::param(uint64_t offset, uint32_t bytes, uint32_t align) {
  if ((offset & (align - 1)) != 0)
    fault("parameter address 0x%llx is not a multiple of %u",
          static_cast<unsigned long long>(offset), align);
  const size_t size = launch_->params().size();
  if (offset > size || bytes > size - offset) {
    fault("parameter address 0x%llx: %u bytes are outside the kernel's %zu bytes of parameters",
          static_cast<unsigned long long>(offset), bytes, size);
  }
  return launch_->params().data() + offset;
}

void Warp::note_global(uint64_t address, uint64_t bytes, bool write, uint16_t flags) {
  Races& races = launch_->races();
  if (!races.on() || !launch_->memory().last_found_writable()) return;
  races.access_global(*this, address, bytes, history.stamp(current_instr_->line, flags), write,
                      origin());
}

uint8_t* Warp::generic(uint64_t address, int lane, uint32_t bytes, uint32_t align, bool write,
                       uint16_t flags, const void* values) {
  if ((flags & kAllLanes) == 0) flags |= lane_flags(lane);
  const auto same = [&](const uint8_t* at) {
    const bool unchanged = values != nullptr && std::memcmp(at, values, bytes) == 0;
    return static_cast<uint16_t>(flags | (unchanged ? kSameValue : 0));
  };
  switch (address & kWindowMask) {
    case kSharedWindow: {
      const SharedRef ref = shared(address, bytes, align, true);
      SharedMemory& memory = ref.cta->shared();
      uint8_t* at = memory.data(ref.offset);
      if (write) {
        memory.note_write(*this, ref.offset, bytes, proxy_stamp(), same(at));
      } else {
        memory.check_read(*this, ref.offset, bytes, flags);
      }
      return at;
    }
    case kLocalWindow:
      return local(address - kLocalWindow, lane, bytes, align);
    case kParamWindow:
      if (write) fault("write to the kernel's parameters");
      return const_cast<uint8_t*>(param(address - kParamWindow, bytes, align));
    default: {
      uint8_t* at = global(address, bytes, align, write);
      note_global(address, bytes, write, same(at));
      return at;
    }
  }
}

// ---- Control

Step Warp::block(WaitKey key, const WaitInfo& info) {
  LaneGroup& g = group();
  g.state = GroupState::kWaiting;
  g.key = key;
  g.deadline = 0;
  g.wait = info;
  g.since = launch_->now();
  ++launch_->stats().warps[index_].waits;
  return Step::kBlock;
}

Step Warp::block_timed(WaitKey key, const WaitInfo& info) {
  block(key, info);
  group().deadline = launch_->now() + 256 + launch_->random().below(4096);
  launch_->note_deadline(group().deadline);
  return Step::kBlock;
}

Step Warp::branch(uint32_t taken, uint32_t target) {
  LaneGroup& g = group();
  if (taken == g.mask) {
    g.pc = target;
    return Step::kJump;
  }
  LaneGroup other;
  other.mask = g.mask & ~taken;
  other.pc = g.pc + 1;
  g.mask = taken;
  g.pc = target;
  groups_.push_back(other);
  return Step::kJump;
}

Step Warp::branch_and_stay(uint32_t taken, uint32_t target, uint32_t stay) {
  const uint32_t pc = group().pc;
  const uint32_t fall = group().mask & ~taken & ~stay;
  group().mask = taken;
  group().pc = target;
  for (const auto& [mask, at] : {std::pair<uint32_t, uint32_t>{stay, pc}, {fall, pc + 1}}) {
    if (mask == 0) continue;
    LaneGroup other;
    other.mask = mask;
    other.pc = at;
    groups_.push_back(other);
  }
  return Step::kJump;
}

Step Warp::exit_lanes(uint32_t mask) {
  if (launch_->lane_exit_hook != nullptr) launch_->lane_exit_hook(*this, mask);
  LaneGroup& g = group();
  live_ &= ~mask;
  g.mask &= ~mask;
  // Those that wait for all live lanes may now be complete.
  for (LaneGroup& other : groups_) {
    if (other.state == GroupState::kConverging) other.state = GroupState::kReady;
  }
  return Step::kExit;
}

bool Warp::gathered(uint32_t members, uint32_t mask) {
  if ((mask & ~members) != 0)
    fault("lanes 0x%08x execute this without being in its membermask 0x%08x", mask, members);
  const uint32_t missing = members & live_ & ~mask;
  if (missing == 0) return true;
  // Lanes of other members may execute it beside these.
  const uint32_t idle = missing & group().mask & ~executing_;
  if (idle != 0) {
    fault(
        "the membermask 0x%08x names lanes 0x%08x that reach the instruction but do not execute it",
        members, idle);
  }
  return false;
}

bool Warp::gathered_anywhere(uint32_t members, uint32_t mask, const Instr& in) {
  if ((mask & ~members) != 0)
    fault("lanes 0x%08x execute this without being in its membermask 0x%08x", mask, members);
  const auto elsewhere = [&](const LaneGroup& g) {
    uint32_t lanes = 0;
    if (&g == &group() || g.state != GroupState::kConverging) return lanes;
    const Instr& there = kernel_->code[g.pc];
    if (there.exec != in.exec) return lanes;
    const uint32_t* named = r32(there.op[0]);
    for_lanes(g.mask,
              [&](int lane) { lanes |= static_cast<uint32_t>(named[lane] == members) << lane; });
    return lanes;
  };
  uint32_t here = mask;
  for (const LaneGroup& g : groups_) here |= elsewhere(g);
  if ((members & live_ & ~here) != 0) return false;
  for (size_t i = 0, n = groups_.size(); i < n; ++i) {
    const uint32_t lanes = elsewhere(groups_[i]);
    if (lanes == 0) continue;
    LaneGroup on = groups_[i];
    on.mask = lanes;
    ++on.pc;
    on.state = GroupState::kReady;
    if (lanes == groups_[i].mask) {
      groups_[i] = on;
    } else {
      groups_[i].mask &= ~lanes;
      groups_.push_back(on);
    }
  }
  return true;
}

Step Warp::leave(uint32_t done, uint32_t mask) {
  if (done == mask) return Step::kNext;
  if (done != 0) return branch_and_stay(done, group().pc + 1, mask & ~done);
  if (mask == live_) fault("no membermask names only lanes that name the same members");
  group().state = GroupState::kConverging;
  group().since = launch_->now();
  return Step::kBlock;
}

void Warp::proxy_fence(bool shared, bool global) {
  history.fence_proxy(shared, global);
  if (!shared) return;
  // Covers this warp's writes, and those of others that were released (arrived somewhere) before:
  // the fence may come after the barrier (PTX ISA 8.11, causality order with a proxy fence along
  // the way). That the release was observed is not checked.
  Cluster& cluster = cta_->cluster();
  for (uint32_t rank = 0; rank < cluster.size(); ++rank) {
    for (auto& warp : cluster.cta(rank).warps()) {
      if (static_cast<int32_t>((warp->proxy_released_ - warp->proxy_fenced_) << 12) > 0)
        warp->proxy_fenced_ = warp->proxy_released_;
    }
  }
  proxy_fenced_ = proxy_epoch_++;
}

AsyncGroups& Warp::cp_async_groups(int lane) {
  if (!cp_async_) cp_async_ = std::make_unique<AsyncGroups[]>(kWarpSize);
  return cp_async_[lane];
}

AsyncGroups& Warp::bulk_groups(int lane) {
  if (!bulk_) bulk_ = std::make_unique<AsyncGroups[]>(kWarpSize);
  return bulk_[lane];
}

AsyncGroups& Warp::wgmma_groups() {
  if (!wgmma_) wgmma_ = std::make_unique<AsyncGroups>();
  return *wgmma_;
}

// ---- Group selection

bool Warp::any_ready() const {
  for (const LaneGroup& g : groups_) {
    if (g.state == GroupState::kReady) return true;
  }
  return false;
}

bool Warp::select(bool random, Random& source) {
  size_t best = groups_.size();
  uint32_t seen = 0;
  for (size_t i = 0; i < groups_.size(); ++i) {
    if (groups_[i].state != GroupState::kReady) continue;
    ++seen;
    const bool better = best == groups_.size() ||
                        (random ? source.below(seen) == 0 : groups_[i].pc < groups_[best].pc);
    if (better) best = i;
  }
  if (best == groups_.size()) return false;
  current_ = best;
  return true;
}

void Warp::merge() {
  for (size_t i = 0; i < groups_.size();) {
    LaneGroup& g = group();
    LaneGroup& other = groups_[i];
    if (i == current_ || other.pc != g.pc || other.token != 0 || g.token != 0) {
      ++i;
      continue;
    }
    g.mask |= other.mask;
    g.state = GroupState::kReady;
    remove_group(i);
  }
}

void Warp::remove_group(size_t i) {
  const size_t last = groups_.size() - 1;
  if (current_ == last) {
    current_ = i;  // the last one moves to i
  }
  if (i != last) groups_[i] = groups_[last];
  groups_.pop_back();
}

}  // namespace bwgemm::emulator
