// What a warp reads of registers: values on their way, and undefined ones.
#include <algorithm>

#include "emulator/machine/kernel.h"
#include "emulator/machine/launch.h"
#include "emulator/machine/shuffle.h"
#include "emulator/machine/warp.h"

namespace bwgemm::emulator {

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
  if (rows.wgmma) return;  // knows itself what others of them it may follow
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

void Warp::start_tracking() {
  undefined_.assign(kernel_->tracked_slots, 0);
  wholly_ = undefined_;
  shuffled_.assign(kernel_->tracked_slots, false);
  undefined_slots_ = 0;
}

void Warp::undefines(const Instr& in, Row row, uint32_t lanes, Rule rule) {
  if (!launch_->watches(rule)) return;
  if (undefined_.empty()) start_tracking();
  const size_t pc = static_cast<size_t>(&in - kernel_->code.data());
  const std::vector<Row>& rows = kernel_->rows_of[pc].written;
  const auto index = std::find(rows.begin(), rows.end(), row) - rows.begin();
  const uint32_t slot =
      kernel_->tracking.find(static_cast<uint32_t>(pc))->second.written[static_cast<size_t>(index)];
  undefined_slots_ += static_cast<uint32_t>(undefined_[slot] == 0);
  undefined_[slot] |= lanes;
  wholly_[slot] |= lanes;
  shuffled_[slot] = rule == Rule::kShuffleSource;
  (shuffled_[slot] ? shuffle_line_ : undefined_line_) = in.line;
}

void Warp::track(const Instr& in, uint32_t group, uint32_t mask) {
  using Tracking = Kernel::Tracking;
  const uint32_t pc = static_cast<uint32_t>(&in - kernel_->code.data());
  const Tracking& tracking = kernel_->tracking.find(pc)->second;
  // Of the operands: lanes in which some bits of one are undefined, all bits of one, all of all.
  uint32_t undefined = 0, wholly = 0, all = mask;
  bool shuffled = false;
  const auto reads = [&](uint32_t slot, uint32_t lanes) {
    if (slot == Tracking::kOther) {
      all = 0;
      return;
    }
    all &= wholly_[slot];
    if ((undefined_[slot] & lanes) == 0) return;
    if (slot < kernel_->undefined_slots) undefined_line_ = in.line;
    shuffled = shuffled || shuffled_[slot];
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
    uint32_t lanes = mask & (!chosen ? kFullMask : i == 0 ? first : ~first);
    // What is undefined in part counts as defined: it may be the other half that is not.
    if (tracking.use == Tracking::Use::kHalves && i == 1 && tracking.read[i] != Tracking::kOther)
      lanes &= wholly_[tracking.read[i]];
    reads(tracking.read[i], lanes);
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
      shuffled = shuffled || (unsure != 0 && shuffled_[tracking.guard]);
    }
  }
  if (tracking.use == Tracking::Use::kResult && undefined != 0 && shuffled) {
    report(
        Rule::kShuffleSource,
        format("lanes 0x%08x use what a shuffle has read of a lane that does not execute it (line "
               "%d)",
               undefined, shuffle_line_));
  } else if (tracking.use == Tracking::Use::kResult && undefined != 0) {
    report(Rule::kUninitializedRegister,
           format("lanes 0x%08x use what comes from a register or local variable that nothing has "
                  "written (line %d reads it)",
                  undefined, undefined_line_));
  }
  switch (tracking.use) {
    case Tracking::Use::kComputes:
    case Tracking::Use::kHalves:
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
    case Tracking::Use::kTakes:
      undefined = wholly;
      wholly = 0;
      break;
    case Tracking::Use::kShuffles: {
      wholly = undefined;
      const uint32_t slot = tracking.read[0];
      if (slot == Tracking::kOther || undefined_[slot] == 0) break;
      if (slot < kernel_->undefined_slots) undefined_line_ = in.line;
      shuffled = shuffled || shuffled_[slot];
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
    shuffled_[slot] = undefined_[slot] != 0 && (shuffled_[slot] || shuffled);
    undefined_slots_ += static_cast<uint32_t>(undefined_[slot] != 0) - static_cast<uint32_t>(was);
  }
  if (undefined_slots_ == 0) undefined_.clear();  // until a shuffle makes something undefined
}

}  // namespace bwgemm::emulator
