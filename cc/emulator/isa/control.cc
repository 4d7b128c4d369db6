// Control flow: bra, brx.idx, exit, trap, brkpt (PTX ISA 9.7.12), and hints about
// scheduling.
#include "emulator/isa/control.h"

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

}  // namespace

Step exec_exit(Warp& w, const Instr&, uint32_t mask) {
  if (mask == w.live()) check_registers_at_exit(w);
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
  t.add({"griddepcontrol", decode_griddepcontrol, "9.7.13.13"});
}

}  // namespace bwgemm::emulator
