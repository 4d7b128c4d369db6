// Control flow: bra, brx.idx, exit, trap, brkpt (PTX ISA 9.7.12), and hints about
// scheduling.
#include "emulator/isa/control.h"

#include <algorithm>
#include <cstring>

#include "emulator/isa/isa.h"
#include "emulator/isa/lanes.h"
#include "emulator/machine/launch.h"

namespace bwgemm::emulator {
namespace {

Step exec_bra(Warp& w, const Instr& in, uint32_t mask) { return w.branch(mask, in.target); }

void decode_bra(Decoder& d) {
  d.ignore_mods({"uni"});
  d.expect_operands(1, 1);
  d.out().exec = exec_bra;
  d.out().target = d.label(d.operand(0));
  d.builder().jumps_to(d.out().target);
  d.builder().ends();
}

struct BranchTable {
  std::vector<uint32_t> targets;
};

Step exec_brx(Warp& w, const Instr& in, uint32_t mask) {
  const auto& table = *static_cast<const BranchTable*>(in.aux);
  const uint32_t* index = w.r32(in.op[0]);
  const uint32_t choice = index[first_lane(mask)];
  if (choice >= table.targets.size())
    w.fault("brx.idx with index %u of %zu targets", choice, table.targets.size());
  uint32_t same = 0;
  for_lanes(mask, [&](int lane) { same |= static_cast<uint32_t>(index[lane] == choice) << lane; });
  if (same == mask) return w.branch(mask, table.targets[choice]);
  // The other lanes stay here and run the instruction again, each choice on its own.
  return w.branch_and_stay(same, table.targets[choice], mask & ~same);
}

void decode_brx(Decoder& d) {
  d.ignore_mods({"uni"});
  d.expect_operands(2, 2);
  d.out().op[0] = d.src(0, 32);
  const auto* names = d.operand(1).kind == ptx::Operand::Kind::kName
                          ? d.builder().branch_targets(d.operand(1).name)
                          : nullptr;
  if (names == nullptr) d.error("brx.idx needs the name of a .branchtargets list");
  auto* table = d.make_aux<BranchTable>();
  for (std::string_view name : *names) {
    table->targets.push_back(d.builder().label(name, d.line()));
    d.builder().jumps_to(table->targets.back());
  }
  d.builder().ends();
  d.out().exec = exec_brx;
}

// setmaxnreg is for all warps of a warpgroup. Called for each warp that exits.
void check_registers_of_group(Warp& w) {
  constexpr size_t kGroup = 4;
  auto& warps = w.cta().warps();
  const size_t first = w.index() / kGroup * kGroup;
  if (first + kGroup > warps.size()) return;
  for (size_t i = first; i < first + kGroup; ++i) {
    const Warp& other = *warps[i];
    const bool exited = other.live() == 0 || i == w.index();
    if (exited && (other.max_registers == 0) != (w.max_registers == 0))
      w.fault("some warps of a warpgroup have executed setmaxnreg, others exit without it");
  }
}

constexpr uint32_t kSmRegisters = 65536, kLeastRegisters = 24;

// The most registers that a thread can be given at the launch: a multiple of 8 up to 256.
uint32_t most_registers(const Cta& cta) {
  const uint32_t threads = static_cast<uint32_t>(cta.warps().size()) * kWarpSize;
  return std::min(kSmRegisters / threads / 8 * 8, 256u);
}

// The warps of a CTA only exchange what they were given at the launch, and an .inc waits for what
// others give back. A warp that exits without setmaxnreg has given nothing back.
void check_registers_of_cta(Warp& w, bool exits) {
  const Cta& cta = w.cta();
  uint32_t total = 0;
  for (const auto& warp : cta.warps()) {
    const bool over = warp->live() == 0 || (exits && warp.get() == &w);
    total += warp->max_registers != 0 ? warp->max_registers
             : over                   ? cta.most_registers
                                      : kLeastRegisters;
  }
  const uint32_t most = cta.most_registers * static_cast<uint32_t>(cta.warps().size());
  if (total > most)
    w.fault("setmaxnreg: the CTA would have %u registers, its launch gives it at most %u",
            total * kWarpSize, most * kWarpSize);
}

}  // namespace

Step exec_exit(Warp& w, const Instr&, uint32_t mask) {
  if (mask == w.live()) {
    check_registers_of_group(w);
    if (w.max_registers == 0 && w.cta().most_registers != 0) check_registers_of_cta(w, true);
  }
  return w.exit_lanes(mask);
}

namespace {

void decode_exit(Decoder& d) {
  d.expect_operands(0, 0);
  d.builder().ends();
  d.out().exec = exec_exit;
}

Step exec_nop(Warp&, const Instr&, uint32_t) { return Step::kNext; }

Step exec_trap(Warp& w, const Instr& in, uint32_t) { w.fault("%s executed", in.name); }

void decode_trap(Decoder& d) {
  d.expect_operands(0, 0);
  d.out().exec = exec_trap;
}

std::string describe_sleep(const Warp&, const WaitInfo&) { return "time to pass (nanosleep)"; }

// nanosleep lets others run; how long is up to the scheduler.
Step exec_nanosleep(Warp& w, const Instr&, uint32_t) {
  if (w.timed_out()) return Step::kNext;
  WaitInfo info;
  info.describe = describe_sleep;
  info.name = "nanosleep";
  return w.block_timed(wait_key(&w, 0x51ee), info);
}

void decode_nanosleep(Decoder& d) {
  d.mod("u32");
  d.expect_operands(1, 1);
  d.src(0, 32);
  d.out().exec = exec_nanosleep;
}

// Programmatic dependent launch: launches are complete before the next one starts, so there is
// nothing to wait for, but for what it orders.
Step exec_grid_wait(Warp& w, const Instr&, uint32_t) {
  w.launch().races().wait_for_grids(w);
  return Step::kNext;
}

Step exec_launch_dependents(Warp& w, const Instr&, uint32_t mask) {
  w.history.triggered |= mask;
  return Step::kNext;
}

void decode_griddepcontrol(Decoder& d) {
  const auto mode = d.mod_one_of({"launch_dependents", "wait"});
  if (mode.empty()) d.error("griddepcontrol needs .wait or .launch_dependents");
  d.expect_operands(0, 0);
  d.out().exec = mode == "wait" ? exec_grid_wait : exec_launch_dependents;
}

// sub: 1: .inc; imm: the count. How many registers a thread has at the launch is the assembler's
// choice: at least what a first .dec leaves it, at most what a first .inc gives it.
Step exec_setmaxnreg(Warp& w, const Instr& in, uint32_t) {
  const uint32_t count = static_cast<uint32_t>(in.imm), before = w.max_registers;
  const bool more = in.sub != 0;
  Cta& cta = w.cta();
  if (cta.most_registers == 0) cta.most_registers = most_registers(cta);
  const uint32_t least = before != 0 ? before : cta.least_registers;
  const uint32_t most = before != 0 ? before : cta.most_registers;
  if (more ? count < least : count > most)
    w.fault("setmaxnreg.%s to %u registers from %s%u", more ? "inc" : "dec", count,
            before != 0 ? ""
            : more      ? "at least "
                        : "at most ",
            more ? least : most);
  if (before == 0) {
    uint32_t& bound = more ? cta.most_registers : cta.least_registers;
    bound = more ? std::min(bound, count) : std::max(bound, count);
  }
  w.max_registers = count;
  check_registers_of_cta(w, false);
  return Step::kNext;
}

// setmaxnreg only moves registers between warps; the register count must be a multiple of 8 from 24
// to 256 (PTX ISA 9.7.19.5).
void decode_setmaxnreg(Decoder& d) {
  const auto direction = d.mod_one_of({"inc", "dec"});
  if (direction.empty()) d.error("setmaxnreg needs .inc or .dec");
  d.out().sub = direction == "inc";
  d.ignore_mods({"sync", "aligned", "u32"});
  d.expect_operands(1, 1);
  const int64_t count = d.int_constant(0);
  if (count < 24 || count > 256 || count % 8 != 0)
    d.error("register count must be a multiple of 8 from 24 to 256");
  d.out().imm = count;
  d.out().exec = exec_setmaxnreg;
  d.out().flags |= kConverge | kWholeWarp;
}

void decode_pmevent(Decoder& d) {
  d.mod("mask");
  d.expect_operands(1, 1);
  d.out().exec = exec_nop;
}

}  // namespace

void register_control(IsaTable& t) {
  t.add({"bra", decode_bra, "9.7.12.3"});
  t.add({"brx.idx", decode_brx, "9.7.12.4"});
  t.add({"exit", decode_exit, "9.7.12.7"});
  t.add({"trap", decode_trap, "9.7.19.4"});
  t.add({"brkpt", decode_trap, "9.7.19.1"});
  t.add({"nanosleep", decode_nanosleep, "9.7.19.2"});
  t.add({"pmevent", decode_pmevent, "9.7.19.3"});
  t.add({"setmaxnreg", decode_setmaxnreg, "9.7.19.5"});
  t.add({"griddepcontrol", decode_griddepcontrol, "9.7.13.13"});
}

}  // namespace bwgemm::emulator
