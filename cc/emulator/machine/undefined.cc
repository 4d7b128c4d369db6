#include "emulator/machine/undefined.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>

namespace bwgemm::emulator {
namespace {

// Registers and predicates in one numbering: rows, then predicates.
using Id = uint32_t;

constexpr Id kNone = ~Id{0};

struct Access {
  std::vector<Id> read, written;  // `read` with the guard
  Id guard = kNone;               // what is written may not be
};

std::vector<Access> accesses_of(const Kernel& kernel) {
  std::vector<Access> accesses;
  for (size_t pc = 0; pc < kernel.code.size(); ++pc) {
    const Kernel::Rows& rows = kernel.rows_of[pc];
    const Instr& in = kernel.code[pc];
    Access access{rows.read, rows.written, kNone};
    access.read.insert(access.read.end(), rows.read_back.begin(), rows.read_back.end());
    for (const Pred p : rows.preds_read) access.read.push_back(kernel.rows + p);
    for (const Pred p : rows.preds_written) access.written.push_back(kernel.rows + p);
    if (in.guarded) access.guard = kernel.rows + (in.guard & ~kPredNot);
    accesses.push_back(std::move(access));
  }
  return accesses;
}

struct Block {
  uint32_t begin = 0, end = 0;
  std::vector<uint32_t> next;
  std::vector<Id> exposed, defined;  // read before a write in the block; written in it
};

std::vector<Block> blocks_of(const Kernel& kernel) {
  const uint32_t size = static_cast<uint32_t>(kernel.code.size());
  std::vector<bool> leads(size + 1, false);
  leads[0] = true;
  for (uint32_t pc = 0; pc < size; ++pc) {
    const Kernel::Flow& flow = kernel.flow_of[pc];
    for (const uint32_t target : flow.jumps) leads[target] = true;
    if (!flow.jumps.empty() || !flow.next) leads[pc + 1] = true;
  }
  std::vector<Block> blocks;
  std::vector<uint32_t> block_at(size + 1, 0);
  for (uint32_t pc = 0; pc < size; ++pc) {
    if (leads[pc]) {
      if (!blocks.empty()) blocks.back().end = pc;
      blocks.push_back({pc, size, {}, {}, {}});
    }
    block_at[pc] = static_cast<uint32_t>(blocks.size()) - 1;
  }
  for (Block& block : blocks) {
    const Kernel::Flow& flow = kernel.flow_of[block.end - 1];
    for (const uint32_t target : flow.jumps) block.next.push_back(block_at[target]);
    if (flow.next && block.end < size) block.next.push_back(block_at[block.end]);
  }
  return blocks;
}

// Of each block, what it reads before it writes it.
void expose(const Kernel& kernel, const std::vector<Access>& accesses, std::vector<Block>* blocks) {
  std::vector<uint32_t> defined_in(kernel.rows + kernel.preds, 0);  // number of the block, from 1
  uint32_t number = 0;
  for (Block& block : *blocks) {
    ++number;
    for (uint32_t pc = block.begin; pc < block.end; ++pc) {
      const Access& access = accesses[pc];
      for (const Id id : access.read) {
        if (defined_in[id] != number) block.exposed.push_back(id);
      }
      if (access.guard != kNone) continue;
      for (const Id id : access.written) {
        if (defined_in[id] == number) continue;
        defined_in[id] = number;
        block.defined.push_back(id);
      }
    }
  }
}

// Live at the entry: what a path reads that has not written it.
std::vector<Id> undefined_at_entry(const Kernel& kernel, const std::vector<Block>& blocks) {
  std::unordered_map<Id, uint32_t> index;  // of what is exposed anywhere; nothing else matters
  std::vector<Id> ids;
  for (const Block& block : blocks) {
    for (const Id id : block.exposed) {
      if (index.emplace(id, static_cast<uint32_t>(ids.size())).second) ids.push_back(id);
    }
  }
  const size_t words = (ids.size() + 63) / 64;
  const auto set = [&](std::vector<uint64_t>* bits, Id id) {
    const auto at = index.find(id);
    if (at != index.end()) (*bits)[at->second / 64] |= uint64_t{1} << (at->second % 64);
  };
  std::vector<std::vector<uint64_t>> live(blocks.size()), defined(blocks.size());
  for (size_t b = 0; b < blocks.size(); ++b) {
    live[b].assign(words, 0);
    defined[b].assign(words, 0);
    for (const Id id : blocks[b].exposed) set(&live[b], id);
    for (const Id id : blocks[b].defined) set(&defined[b], id);
  }
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t b = blocks.size(); b-- > 0;) {
      for (const uint32_t next : blocks[b].next) {
        for (size_t w = 0; w < words; ++w) {
          const uint64_t more = live[next][w] & ~defined[b][w] & ~live[b][w];
          live[b][w] |= more;
          changed = changed || more != 0;
        }
      }
    }
  }
  std::vector<Id> found;
  for (size_t i = 0; i < ids.size(); ++i) {
    const bool is_false = ids[i] == kernel.rows;  // the predicate that is always false
    if (!is_false && (live[0][i / 64] >> (i % 64) & 1) != 0) found.push_back(ids[i]);
  }
  return found;
}

bool starts_with(std::string_view text, std::string_view prefix) {
  return text.substr(0, prefix.size()) == prefix;
}

// Conversions of integers to shorter ones take the low bits.
bool narrows(std::string_view name) {
  if (!starts_with(name, "cvt.")) return false;
  const auto bits_at = [&](size_t dot) {
    const std::string_view type = name.substr(dot + 1);
    if (type.empty() || (type[0] != 'u' && type[0] != 's')) return 0;
    return type[1] == '8' ? 8 : type[1] == '1' ? 16 : type[1] == '3' ? 32 : 64;
  };
  const size_t last = name.rfind('.');
  const size_t before = name.rfind('.', last - 1);
  const int from = bits_at(last), to = bits_at(before);
  return to != 0 && to < from;
}

Kernel::Tracking::Use use_of(const Kernel& kernel, size_t pc, const Access& access) {
  const std::string_view name = kernel.code[pc].name;
  using Use = Kernel::Tracking::Use;
  // Parameters of calls and the stack hold padding, too.
  if (starts_with(name, "st.param") || starts_with(name, "st.local")) return Use::kComputes;
  for (const char* prefix :
       {"st", "ld", "red.", "atom.", "bra", "brx", "ret", "exit", "trap", "bar", "cp.", "mbarrier.",
        "tcgen05.", "multimem.", "wmma.load", "wmma.store"}) {
    if (starts_with(name, prefix)) return Use::kResult;
  }
  // Of packed registers, parts may be undefined.
  if (starts_with(name, "bfe.")) return Use::kParts;
  if (starts_with(name, "mov.")) {
    return kernel.rows_of[pc].unpacks ? Use::kParts
           : access.read.size() > 1   ? Use::kPacks
                                      : Use::kComputes;
  }
  if (narrows(name)) return Use::kParts;
  for (const char* prefix : {"and.b", "shl", "shr"}) {
    if (starts_with(name, prefix)) return Use::kTakes;
  }
  for (const char* prefix : {"or.b", "xor.b", "lop3", "shf.", "bfi", "bmsk"}) {
    if (starts_with(name, prefix)) return Use::kMasks;
  }
  if (starts_with(name, "shfl")) return Use::kShuffles;
  if (starts_with(name, "vote")) return Use::kExchanges;
  if (starts_with(name, "redux")) return Use::kReduces;
  if (starts_with(name, "prmt")) return Use::kPermutes;
  if (starts_with(name, "dp2a")) return Use::kHalves;
  for (const char* prefix : {"match", "activemask", "elect"}) {
    if (starts_with(name, prefix)) return Use::kOpaque;
  }
  return Use::kComputes;
}

bool follows(Kernel::Tracking::Use use) {
  return use != Kernel::Tracking::Use::kResult && use != Kernel::Tracking::Use::kOpaque;
}

}  // namespace

void find_undefined_registers(Kernel& kernel) {
  if (kernel.code.empty()) return;
  std::vector<Block> blocks = blocks_of(kernel);
  const std::vector<Access> accesses = accesses_of(kernel);
  expose(kernel, accesses, &blocks);
  const std::vector<Id> roots = undefined_at_entry(kernel, blocks);
  for (const Id id : roots) {
    if (id < kernel.rows) kernel.undefined_rows.push_back(static_cast<Row>(id));
  }
  std::unordered_map<Id, uint32_t> slots;
  for (const Id id : roots) slots.emplace(id, static_cast<uint32_t>(slots.size()));
  kernel.undefined_slots = static_cast<uint32_t>(slots.size());
  const uint32_t size = static_cast<uint32_t>(kernel.code.size());
  // What a shuffle takes from a lane that does not execute it is undefined, too.
  for (uint32_t pc = 0; pc < size; ++pc) {
    if (use_of(kernel, pc, accesses[pc]) == Kernel::Tracking::Use::kShuffles)
      slots.emplace(kernel.code[pc].op[0], static_cast<uint32_t>(slots.size()));
  }
  // So are bytes of local variables that nothing has written.
  const bool has_locals = !kernel.local_variables.empty();
  for (uint32_t pc = 0; pc < size && has_locals; ++pc) {
    if (!kernel.rows_of[pc].loads_local) continue;
    for (const Row row : kernel.rows_of[pc].written)
      slots.emplace(row, static_cast<uint32_t>(slots.size()));
  }
  if (slots.empty()) return;
  for (bool changed = true; changed;) {
    changed = false;
    for (uint32_t pc = 0; pc < size; ++pc) {
      if (!follows(use_of(kernel, pc, accesses[pc]))) continue;
      const Access& access = accesses[pc];
      const auto followed = [&](Id id) { return slots.count(id) != 0; };
      if (std::none_of(access.read.begin(), access.read.end(), followed)) continue;
      for (const Id id : access.written)
        changed |= slots.emplace(id, static_cast<uint32_t>(slots.size())).second;
    }
  }
  kernel.tracked_slots = static_cast<uint32_t>(slots.size());
  const auto slot_of = [&](Id id) {
    const auto at = slots.find(id);
    return at == slots.end() ? Kernel::Tracking::kOther : at->second;
  };
  for (uint32_t pc = 0; pc < size; ++pc) {
    Instr& in = kernel.code[pc];
    const Access& access = accesses[pc];
    Kernel::Tracking tracking;
    tracking.use = use_of(kernel, pc, access);
    tracking.selects = starts_with(in.name, "selp.");
    tracking.guard = slot_of(access.guard);
    bool followed = tracking.guard != Kernel::Tracking::kOther;
    const bool by_operand = tracking.use == Kernel::Tracking::Use::kPermutes ||
                            tracking.use == Kernel::Tracking::Use::kHalves;
    const bool shuffles = tracking.use == Kernel::Tracking::Use::kShuffles;
    if (tracking.selects) tracking.read = {slot_of(in.op[1]), slot_of(in.op[2])};
    if (shuffles) tracking.read = {slot_of(in.op[1])};
    if (by_operand) tracking.read = {slot_of(in.op[1]), slot_of(in.op[2]), slot_of(in.op[3])};
    const std::vector<Row>& back = kernel.rows_of[pc].read_back;
    tracking.read_back_if = kernel.rows_of[pc].read_back_if;
    for (const Id id : access.read) {
      followed |= slot_of(id) != Kernel::Tracking::kOther;
      if (std::find(back.begin(), back.end(), id) != back.end()) {
        tracking.read_back.push_back(slot_of(id));
      } else if (id != access.guard && !by_operand && !(shuffles && id == in.op[1]) &&
                 (!tracking.selects || id >= kernel.rows)) {
        tracking.read.push_back(slot_of(id));
      }
    }
    for (const Id id : access.written) {
      if (slot_of(id) == Kernel::Tracking::kOther) continue;
      followed = true;
      tracking.written.push_back(slot_of(id));
    }
    if (!followed) continue;
    in.flags |= kTracked;
    kernel.tracking.emplace(pc, std::move(tracking));
  }
}

}  // namespace bwgemm::emulator
