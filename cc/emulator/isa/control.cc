// Control flow: bra, brx.idx, call, ret, exit, trap, brkpt (PTX ISA 9.7.12), and hints about
// scheduling.
#include "emulator/isa/control.h"

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

Step exec_exit(Warp& w, const Instr&, uint32_t mask) {
  if (mask == w.live()) check_registers_of_group(w);
  return w.exit_lanes(mask);
}

void decode_exit(Decoder& d) {
  d.expect_operands(0, 0);
  d.builder().ends();
  d.out().exec = exec_exit;
}

// Functions keep their lanes' return addresses in a row of their own; recursion is refused when
// decoding.
Step exec_ret(Warp& w, const Instr& in, uint32_t mask) {
  const uint32_t* back = w.r32(in.op[0]);
  const uint32_t target = back[first_lane(mask)];
  uint32_t same = 0;
  for_lanes(mask, [&](int lane) { same |= static_cast<uint32_t>(back[lane] == target) << lane; });
  if (same == mask) return w.branch(mask, target);
  return w.branch_and_stay(same, target, mask & ~same);
}

void decode_ret(Decoder& d) {
  d.ignore_mods({"uni"});
  d.expect_operands(0, 0);
  d.builder().ends();
  if (d.builder().in_entry()) {
    d.out().exec = exec_exit;
  } else {
    d.out().exec = exec_ret;
    d.out().op[0] = d.builder().current().return_row;
  }
}

struct CallArgs {
  struct Copy {
    uint32_t from, to, bytes;  // local memory
  };
  struct Store {
    Row row;
    int bits;
    uint32_t offset;
  };
  std::vector<Copy> copies;   // before the call: arguments
  std::vector<Store> stores;  // arguments in registers
  std::vector<Copy> results;  // after the call
  std::vector<Store> result_registers;
  Row return_row = kNoRow;
  uint32_t return_pc = 0;
};

void copy_local(Warp& w, const std::vector<CallArgs::Copy>& copies, uint32_t mask) {
  for (const auto& c : copies) {
    for_lanes(mask, [&](int lane) {
      std::memmove(w.local(c.to, lane, c.bytes, 1), w.local(c.from, lane, c.bytes, 1), c.bytes);
    });
  }
}

Step exec_call(Warp& w, const Instr& in, uint32_t mask) {
  const auto& args = *static_cast<const CallArgs*>(in.aux);
  copy_local(w, args.copies, mask);
  for (const auto& s : args.stores) {
    for_lanes(mask, [&](int lane) {
      const uint64_t value = s.bits == 64 ? w.r64(s.row)[lane] : w.r32(s.row)[lane];
      std::memcpy(w.local(s.offset, lane, static_cast<uint32_t>(s.bits / 8), 1), &value,
                  static_cast<size_t>(s.bits / 8));
    });
  }
  uint32_t* back = w.r32(args.return_row);
  for_lanes(mask, [&](int lane) { back[lane] = args.return_pc; });
  return w.branch(mask, in.target);
}

// Stands after the call: fetches the results. A guard that was false at the call is false here too.
Step exec_return_site(Warp& w, const Instr& in, uint32_t mask) {
  const auto& args = *static_cast<const CallArgs*>(in.aux);
  copy_local(w, args.results, mask);
  for (const auto& s : args.result_registers) {
    for_lanes(mask, [&](int lane) {
      uint64_t value = 0;
      std::memcpy(&value, w.local(s.offset, lane, static_cast<uint32_t>(s.bits / 8), 1),
                  static_cast<size_t>(s.bits / 8));
      if (s.bits == 64) {
        w.r64(s.row)[lane] = value;
      } else {
        w.r32(s.row)[lane] = static_cast<uint32_t>(value);
      }
    });
  }
  return Step::kNext;
}

Step exec_nop(Warp&, const Instr&, uint32_t) { return Step::kNext; }

std::vector<ptx::Operand> call_list(const ptx::Operand& o) {
  if (o.kind == ptx::Operand::Kind::kList) return o.items;
  return {o};
}

void decode_call(Decoder& d) {
  d.ignore_mods({"uni"});
  KernelBuilder& b = d.builder();
  const auto& ops = d.statement().operands;
  size_t at = 0;
  std::vector<ptx::Operand> results, arguments;
  if (at < ops.size() && ops[at].kind == ptx::Operand::Kind::kList) results = call_list(ops[at++]);
  if (at >= ops.size() || ops[at].kind != ptx::Operand::Kind::kName)
    d.error("call without a function");
  const std::string_view name = ops[at++].name;
  if (at < ops.size() && ops[at].kind == ptx::Operand::Kind::kList)
    arguments = call_list(ops[at++]);
  const ptx::Function* callee = b.find_function(name);
  if (callee == nullptr) d.unsupported("indirect call through '" + std::string(name) + "'");
  if (at < ops.size()) d.error("too many operands");
  if (arguments.size() != callee->params.size() || results.size() != callee->returns.size()) {
    d.error("call of '" + std::string(name) + "' with the wrong number of arguments or results");
  }
  const auto local_offset = [&](const ptx::Operand& o) -> uint32_t {
    const auto symbol = b.resolve(o.name);
    if (symbol.kind != KernelBuilder::Symbol::Kind::kLocal)
      d.error("'" + std::string(o.name) + "' is not a .param variable");
    return static_cast<uint32_t>(symbol.value);
  };
  const auto is_register = [&](const ptx::Operand& o) {
    return o.kind != ptx::Operand::Kind::kName ||
           b.resolve(o.name).kind == KernelBuilder::Symbol::Kind::kRegister;
  };
  if (!callee->has_body) {
    std::vector<uint32_t> argument_offsets, result_offsets;
    for (const ptx::Operand& o : arguments) {
      if (!is_register(o)) argument_offsets.push_back(local_offset(o));
    }
    for (const ptx::Operand& o : results) {
      if (o.kind != ptx::Operand::Kind::kSink && !is_register(o))
        result_offsets.push_back(local_offset(o));
    }
    decode_extern_call(d, name, std::move(argument_offsets), std::move(result_offsets));
    (&d.out())[1] = d.out();
    (&d.out())[1].exec = exec_nop;
    return;
  }
  const auto* info = b.function_info(name);
  if (info == nullptr) d.error("call of unknown function '" + std::string(name) + "'");
  auto* args = d.make_aux<CallArgs>();
  for (size_t i = 0; i < arguments.size(); ++i) {
    const uint32_t bytes = static_cast<uint32_t>(callee->params[i].bytes);
    if (is_register(arguments[i])) {
      if (bytes != 1 && bytes != 2 && bytes != 4 && bytes != 8)
        d.error("argument of this size must be a .param variable");
      args->stores.push_back({d.src(arguments[i], static_cast<int>(bytes * 8)),
                              static_cast<int>(bytes * 8), info->param_offsets[i]});
    } else {
      args->copies.push_back({local_offset(arguments[i]), info->param_offsets[i], bytes});
    }
  }
  for (size_t i = 0; i < results.size(); ++i) {
    const uint32_t bytes = static_cast<uint32_t>(callee->returns[i].bytes);
    if (results[i].kind == ptx::Operand::Kind::kSink) continue;
    if (is_register(results[i])) {
      if (bytes != 1 && bytes != 2 && bytes != 4 && bytes != 8)
        d.error("result of this size must be a .param variable");
      args->result_registers.push_back({d.dst(results[i], static_cast<int>(bytes * 8)),
                                        static_cast<int>(bytes * 8), info->return_offsets[i]});
    } else {
      args->results.push_back({info->return_offsets[i], local_offset(results[i]), bytes});
    }
  }
  args->return_row = info->return_row;
  args->return_pc = b.pc() + 1;
  d.out().exec = exec_call;
  d.out().target = info->base;
  b.jumps_to(info->base);
  Instr& site = (&d.out())[1];
  site = d.out();
  site.exec = exec_return_site;
}

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
// nothing to wait for.
void decode_griddepcontrol(Decoder& d) {
  if (d.mod_one_of({"launch_dependents", "wait"}).empty())
    d.error("griddepcontrol needs .wait or .launch_dependents");
  d.expect_operands(0, 0);
  d.out().exec = exec_nop;
}

constexpr uint32_t kSmRegisters = 65536;

// sub: 1: .inc; imm: the count. How many registers a thread has at the launch is the assembler's
// choice: unknown until the first setmaxnreg.
Step exec_setmaxnreg(Warp& w, const Instr& in, uint32_t) {
  const uint32_t count = static_cast<uint32_t>(in.imm), before = w.max_registers;
  if (before != 0 && (in.sub != 0 ? count < before : count > before))
    w.fault("setmaxnreg.%s to %u registers from %u", in.sub != 0 ? "inc" : "dec", count, before);
  w.max_registers = count;
  uint32_t total = 0;
  for (const auto& warp : w.cta().warps()) {
    if (warp->live() != 0) total += warp->max_registers * kWarpSize;
  }
  if (total > kSmRegisters)
    w.fault("setmaxnreg: the CTA would have %u registers, a multiprocessor has %u", total,
            kSmRegisters);
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
  d.out().flags |= kConverge;
}

void decode_pmevent(Decoder& d) {
  d.mod("mask");
  d.expect_operands(1, 1);
  d.out().exec = exec_nop;
}

}  // namespace

void decode_implicit_return(const KernelBuilder::FunctionInfo& function, Instr* out) {
  out->name = "ret";
  if (function.function->is_entry) {
    out->exec = exec_exit;
  } else {
    out->exec = exec_ret;
    out->op[0] = function.return_row;
  }
}

void register_control(IsaTable& t) {
  t.add({"bra", decode_bra, "9.7.12.3"});
  t.add({"brx.idx", decode_brx, "9.7.12.4"});
  t.add({"call", decode_call, "9.7.12.5"});
  t.add({"ret", decode_ret, "9.7.12.6"});
  t.add({"exit", decode_exit, "9.7.12.7"});
  t.add({"trap", decode_trap, "9.7.19.4"});
  t.add({"brkpt", decode_trap, "9.7.19.1"});
  t.add({"nanosleep", decode_nanosleep, "9.7.19.2"});
  t.add({"pmevent", decode_pmevent, "9.7.19.3"});
  t.add({"setmaxnreg", decode_setmaxnreg, "9.7.19.5"});
  t.add({"griddepcontrol", decode_griddepcontrol, "9.7.13.13"});
}

}  // namespace bwgemm::emulator
