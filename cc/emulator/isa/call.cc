// Calls of functions, by name and through pointers, and returns (PTX ISA 9.7.12.5, 9.7.12.6).
#include <cstring>

#include "emulator/isa/calls.h"
#include "emulator/isa/control.h"
#include "emulator/isa/isa.h"
#include "emulator/isa/lanes.h"
#include "emulator/machine/launch.h"

namespace bwgemm::emulator {
namespace {

using FunctionInfo = KernelBuilder::FunctionInfo;

// Functions keep their lanes' return addresses in a row of their own. Recursion through pointers is
// refused: where one leads to a function that has not returned. In kernels with pointers a row is 0
// while its function does not run (sub 1). Recursive functions (sub 2) say who has returned.
Step exec_ret(Warp& w, const Instr& in, uint32_t mask) {
  uint32_t* back = w.r32(in.op[0]);
  const uint32_t target = back[first_lane(mask)];
  uint32_t same = 0;
  for_lanes(mask, [&](int lane) { same |= static_cast<uint32_t>(back[lane] == target) << lane; });
  if ((in.sub & 1) != 0) for_lanes(same, [&](int lane) { back[lane] = 0; });
  if ((in.sub & 2) != 0) w.call_stack().returned |= same;
  if (same == mask) return w.branch(mask, target);
  return w.branch_and_stay(same, target, mask & ~same);
}

void decode_ret(Decoder& d) {
  d.ignore_mods({"uni"});
  d.expect_operands(0, 0);
  d.builder().ends();
  decode_implicit_return(d.builder(), &d.out());
}

void copy_local(Warp& w, const std::vector<Passing::Copy>& copies, uint32_t mask) {
  for (const auto& c : copies) {
    for_lanes(mask, [&](int lane) {
      std::memmove(w.local(c.to, lane, c.bytes, 1), w.local(c.from, lane, c.bytes, 1), c.bytes);
    });
  }
}

}  // namespace

void pass_arguments(Warp& w, const Passing& p, uint32_t mask, uint32_t return_pc) {
  copy_local(w, p.arguments, mask);
  for (const auto& s : p.argument_registers) {
    for_lanes(mask, [&](int lane) {
      const uint64_t value = s.bits == 64 ? w.r64(s.row)[lane] : w.r32(s.row)[lane];
      std::memcpy(w.local(s.offset, lane, static_cast<uint32_t>(s.bits / 8), 1), &value,
                  static_cast<size_t>(s.bits / 8));
    });
  }
  uint32_t* back = w.r32(p.return_row);
  for_lanes(mask, [&](int lane) { back[lane] = return_pc; });
}

namespace {

void fetch_results(Warp& w, const Passing& p, uint32_t mask) {
  copy_local(w, p.results, mask);
  for (const auto& s : p.result_registers) {
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
}

// In kernels that call through pointers.
void refuse_recursion(Warp& w, const Instr& in, const Passing& p, uint32_t mask) {
  const uint32_t* back = w.r32(p.return_row);
  for_lanes(mask, [&](int lane) {
    if (back[lane] == 0 && p.callee == nullptr) return;
    throw Error(ErrorKind::kUnsupported, in.line,
                format("line %d: unsupported recursive call of '%s'", in.line, p.name.c_str()));
  });
}

// sub 1: it may be recursive.
Step exec_call(Warp& w, const Instr& in, uint32_t mask) {
  const auto& p = *static_cast<const Passing*>(in.aux);
  if (in.sub != 0) refuse_recursion(w, in, p, mask);
  pass_arguments(w, p, mask, static_cast<uint32_t>(in.imm));
  return w.branch(mask, in.target);
}

// Stands after the call: fetches the results. A guard that was false at the call is false here too.
Step exec_return_site(Warp& w, const Instr& in, uint32_t mask) {
  fetch_results(w, *static_cast<const Passing*>(in.aux), mask);
  return Step::kNext;
}

struct PointerCall {
  std::vector<std::pair<uint64_t, Passing>> functions;  // by address
  Row chosen = kNoRow;                                  // which of them each lane has called
};

Step exec_pointer_call(Warp& w, const Instr& in, uint32_t mask) {
  const auto& call = *static_cast<const PointerCall*>(in.aux);
  const uint64_t* pointers = w.r64(in.op[0]);
  const uint64_t pointer = pointers[first_lane(mask)];
  uint32_t index = 0;
  while (index < call.functions.size() && call.functions[index].first != pointer) ++index;
  if (index == call.functions.size())
    w.fault("call of 0x%llx, which is no function with these parameters and results",
            static_cast<unsigned long long>(pointer));
  const Passing& p = call.functions[index].second;
  uint32_t same = 0;
  for_lanes(mask,
            [&](int lane) { same |= static_cast<uint32_t>(pointers[lane] == pointer) << lane; });
  refuse_recursion(w, in, p, same);
  pass_arguments(w, p, same, static_cast<uint32_t>(in.imm));
  for_lanes(same, [&](int lane) { w.r32(call.chosen)[lane] = index; });
  if (same == mask) return w.branch(mask, p.begin);
  return w.branch_and_stay(same, p.begin, mask & ~same);
}

Step exec_pointer_return_site(Warp& w, const Instr& in, uint32_t mask) {
  const auto& call = *static_cast<const PointerCall*>(in.aux);
  const uint32_t* chosen = w.r32(call.chosen);
  for (uint32_t left = mask; left != 0;) {
    const uint32_t index = chosen[first_lane(left)];
    uint32_t same = 0;
    for_lanes(left,
              [&](int lane) { same |= static_cast<uint32_t>(chosen[lane] == index) << lane; });
    fetch_results(w, call.functions[index].second, same);
    left &= ~same;
  }
  return Step::kNext;
}

Step exec_nop(Warp&, const Instr&, uint32_t) { return Step::kNext; }

uint32_t local_offset(Decoder& d, const ptx::Operand& o) {
  const auto symbol = d.builder().resolve(o.name);
  if (symbol.kind != KernelBuilder::Symbol::Kind::kLocal)
    d.error("'" + std::string(o.name) + "' is not a .param variable");
  return static_cast<uint32_t>(symbol.value);
}

bool is_register(Decoder& d, const ptx::Operand& o) {
  return o.kind != ptx::Operand::Kind::kName ||
         d.builder().resolve(o.name).kind == KernelBuilder::Symbol::Kind::kRegister;
}

struct Call {
  std::vector<ptx::Operand> results, arguments;
  ptx::Operand function;       // its name, or the register with its address
  std::string_view prototype;  // behind the arguments; empty: none
};

Call parse_call(Decoder& d) {
  const auto& ops = d.statement().operands;
  Call call;
  size_t at = 0;
  if (at < ops.size() && ops[at].kind == ptx::Operand::Kind::kList) call.results = ops[at++].items;
  if (at >= ops.size() || ops[at].kind != ptx::Operand::Kind::kName)
    d.error("call without a function");
  call.function = ops[at++];
  if (at < ops.size() && ops[at].kind == ptx::Operand::Kind::kList)
    call.arguments = ops[at++].items;
  if (at < ops.size() && ops[at].kind == ptx::Operand::Kind::kName) call.prototype = ops[at++].name;
  if (at < ops.size()) d.error("too many operands");
  return call;
}

Passing passing(Decoder& d, const Call& call, const FunctionInfo& info) {
  const ptx::Function& callee = *info.function;
  const auto in_register = [&](uint64_t bytes) {
    if (bytes != 1 && bytes != 2 && bytes != 4 && bytes != 8)
      d.error("an argument or result of this size must be a .param variable");
    return static_cast<int>(bytes * 8);
  };
  Passing p;
  for (size_t i = 0; i < call.arguments.size(); ++i) {
    const uint32_t bytes = static_cast<uint32_t>(callee.params[i].bytes);
    const ptx::Operand& from = call.arguments[i];
    if (is_register(d, from)) {
      const int bits = in_register(bytes);
      p.argument_registers.push_back({d.src(from, bits), bits, info.param_offsets[i]});
    } else {
      p.arguments.push_back({local_offset(d, from), info.param_offsets[i], bytes});
    }
  }
  for (size_t i = 0; i < call.results.size(); ++i) {
    const uint32_t bytes = static_cast<uint32_t>(callee.returns[i].bytes);
    const ptx::Operand& to = call.results[i];
    if (to.kind == ptx::Operand::Kind::kSink) continue;
    if (is_register(d, to)) {
      const int bits = in_register(bytes);
      p.result_registers.push_back({d.dst(to, bits), bits, info.return_offsets[i]});
    } else {
      p.results.push_back({info.return_offsets[i], local_offset(d, to), bytes});
    }
  }
  p.name = std::string(callee.name);
  p.begin = info.base;
  p.return_row = info.return_row;
  p.callee = info.recursive;
  p.stack_row = d.builder().stack_row();
  if (d.builder().leads_to(info, d.builder().current().function->name))
    p.caller = d.builder().current().recursive;
  return p;
}

// Two instructions: the second fetches the results.
void emit(Decoder& d, ExecFn exec, ExecFn site) {
  d.out().exec = exec;
  d.out().imm = d.builder().pc() + 1;
  (&d.out())[1] = d.out();
  (&d.out())[1].exec = site;
}

void decode_pointer_call(Decoder& d, const Call& call) {
  KernelBuilder& b = d.builder();
  const ptx::Prototype* prototype = b.prototype(call.prototype);
  d.out().op[0] = d.src(call.function, 64);
  auto* aux = d.make_aux<PointerCall>();
  for (const FunctionInfo* info : b.pointed_to()) {
    const ptx::Function& f = *info->function;
    if (call.arguments.size() != f.params.size() || call.results.size() != f.returns.size())
      continue;
    if (!fits(prototype, f)) continue;
    aux->functions.emplace_back(function_address(f), passing(d, call, *info));
    b.jumps_to(info->base);
  }
  aux->chosen = b.new_row(32);
  emit(d, exec_pointer_call, exec_pointer_return_site);
}

void decode_call(Decoder& d) {
  d.ignore_mods({"uni"});
  KernelBuilder& b = d.builder();
  const Call call = parse_call(d);
  const std::string_view name = call.function.name;
  const ptx::Function* callee = b.find_function(name);
  if (callee == nullptr && d.reg_bits(call.function) == 0)
    d.error("call of unknown function '" + std::string(name) + "'");
  if (callee == nullptr) return decode_pointer_call(d, call);
  if (call.arguments.size() != callee->params.size() ||
      call.results.size() != callee->returns.size()) {
    d.error("call of '" + std::string(name) + "' with the wrong number of arguments or results");
  }
  if (!callee->has_body) {
    std::vector<uint32_t> argument_offsets, result_offsets;
    for (const ptx::Operand& o : call.arguments) {
      if (!is_register(d, o)) argument_offsets.push_back(local_offset(d, o));
    }
    for (const ptx::Operand& o : call.results) {
      if (o.kind != ptx::Operand::Kind::kSink && !is_register(d, o))
        result_offsets.push_back(local_offset(d, o));
    }
    decode_extern_call(d, name, std::move(argument_offsets), std::move(result_offsets));
    return emit(d, d.out().exec, exec_nop);
  }
  const FunctionInfo* info = b.function_info(name);
  if (info == nullptr) d.error("call of unknown function '" + std::string(name) + "'");
  *d.make_aux<Passing>() = passing(d, call, *info);
  d.out().target = info->base;
  d.out().sub = b.uses_pointers();
  b.jumps_to(info->base);
  if (info->recursive == nullptr) return emit(d, exec_call, exec_return_site);
  emit(d, exec_recursive_call, exec_recursive_return_site);
  (&d.out())[1].guarded = false;  // it knows who has called: the guard may be another one by then
}

}  // namespace

void decode_implicit_return(const KernelBuilder& builder, Instr* out) {
  if (builder.in_entry()) {
    out->exec = exec_exit;
  } else {
    out->exec = exec_ret;
    out->op[0] = builder.current().return_row;
    out->sub = static_cast<uint8_t>(builder.uses_pointers() |
                                    (builder.current().recursive != nullptr) << 1);
  }
}

void register_call(IsaTable& t) {
  t.add({"call", decode_call, "9.7.12.5"});
  t.add({"ret", decode_ret, "9.7.12.6"});
}

}  // namespace bwgemm::emulator
