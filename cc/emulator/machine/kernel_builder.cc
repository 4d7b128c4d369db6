#include "emulator/machine/kernel_builder.h"

#include <algorithm>

#include "emulator/isa/control.h"
#include "emulator/isa/forms.h"
#include "emulator/isa/isa.h"
#include "emulator/machine/targets.h"
#include "emulator/machine/undefined.h"

namespace bwgemm::emulator {

uint32_t KernelBuilder::label(std::string_view name, int line) {
  const ptx::Function& f = *current_->function;
  for (int scope = statement_->scope; scope >= 0; scope = f.scopes[scope].parent) {
    if (const auto it = f.scopes[scope].labels.find(name); it != f.scopes[scope].labels.end()) {
      return current_->statement_pc[it->second];
    }
  }
  throw Error(ErrorKind::kParse, line, "unknown label '" + std::string(name) + "'");
}

const std::vector<std::string_view>* KernelBuilder::branch_targets(std::string_view name) const {
  const ptx::Function& f = *current_->function;
  for (int scope = statement_->scope; scope >= 0; scope = f.scopes[scope].parent) {
    if (const auto it = f.scopes[scope].branch_targets.find(name);
        it != f.scopes[scope].branch_targets.end())
      return &it->second;
  }
  return nullptr;
}

const KernelBuilder::FunctionInfo* KernelBuilder::function_info(std::string_view name) const {
  const auto it = by_name_.find(name);
  return it == by_name_.end() ? nullptr : it->second;
}

const ptx::Function* KernelBuilder::find_function(std::string_view name) const {
  const auto& index = module_.ast().function_index;
  const auto it = index.find(name);
  return it == index.end() ? nullptr : it->second;
}

void KernelBuilder::lay_out(const ptx::Function& function, int depth) {
  if (by_name_.count(function.name) != 0) return;
  if (depth > 64) throw Error(ErrorKind::kUnsupported, function.line, "calls nested too deeply");
  auto info = std::make_unique<FunctionInfo>();
  info->function = &function;
  info->symbols.resize(function.scopes.size());
  uint32_t pc = 0;
  for (const ptx::Statement& s : function.body) {
    info->statement_pc.push_back(pc);
    pc += s.parts[0] == "call" ? 2 : 1;
  }
  info->statement_pc.push_back(pc);
  if (!function.is_entry) {
    info->return_row = new_row(32);
    for (const ptx::Variable& p : function.params)
      info->param_offsets.push_back(allocate_local(p.bytes, p.align, p.line));
    for (const ptx::Variable& p : function.returns)
      info->return_offsets.push_back(allocate_local(p.bytes, p.align, p.line));
  } else {
    uint64_t offset = 0;
    for (const ptx::Variable& p : function.params) {
      offset = round_up(offset, p.align);
      if (offset + p.bytes > 65536)
        throw Error(ErrorKind::kParse, p.line, "more than 64 KiB of parameters");
      info->param_offsets.push_back(static_cast<uint32_t>(offset));
      kernel_.params.push_back({std::string(p.name), static_cast<uint32_t>(offset),
                                static_cast<uint32_t>(p.bytes), static_cast<uint32_t>(p.align)});
      offset += p.bytes;
    }
    kernel_.param_bytes = static_cast<uint32_t>(offset);
  }
  FunctionInfo& laid_out = *info;
  by_name_[function.name] = info.get();
  functions_.push_back(std::move(info));
  for (const ptx::Statement& s : function.body) {
    if (s.parts[0] != "call") continue;
    for (const ptx::Operand& o : s.operands) {
      const ptx::Function* callee =
          o.kind == ptx::Operand::Kind::kName ? find_function(o.name) : nullptr;
      if (callee == nullptr || !callee->has_body) continue;
      if (callee->is_entry) {
        throw Error(ErrorKind::kParse, s.line,
                    "call of '" + std::string(callee->name) + "', which is a kernel");
      }
      laid_out.callees.push_back(callee->name);
      lay_out(*callee, depth + 1);
    }
    note_pointer_call(function, s);
  }
}

namespace {

// Of a local variable, of a generic address, or of a function's parameter, which is local, too.
bool loads_local(const std::vector<std::string_view>& parts) {
  const auto elsewhere = [](std::string_view part) {
    return part == "global" || part == "const" || part.substr(0, 6) == "shared";
  };
  return (parts[0] == "ld" || parts[0] == "ldu") &&
         std::none_of(parts.begin(), parts.end(), elsewhere);
}

}  // namespace

void KernelBuilder::build(const ptx::Function& entry) {
  kernel_.name = std::string(entry.name);
  kernel_.module = &module_.ast();
  kernel_.preds = 1;  // predicate 0 is always false
  kernel_.static_shared_bytes = kSharedReserved;
  kernel_.max_threads = entry.max_threads;
  kernel_.max_registers = entry.max_registers;
  kernel_.min_ctas = static_cast<uint32_t>(entry.min_ctas);
  std::copy(entry.required_ntid, entry.required_ntid + 3, kernel_.required_ntid);
  std::copy(entry.required_cluster, entry.required_cluster + 3, kernel_.required_cluster);
  try {
    if (!entry.has_body) throw Error(ErrorKind::kParse, entry.line, "entry without a body");
    lay_out(entry, 0);
    if (uses_pointers_) lay_out_pointed_to();
  } catch (const Error& error) {
    throw with_line(error);
  }
  find_recursive_functions();
  uint32_t base = 0;
  for (auto& info : functions_) {
    info->base = base;
    for (uint32_t& pc : info->statement_pc) pc += base;
    base = info->statement_pc.back() + 1;  // + the implicit return at the end
  }
  kernel_.code.resize(base);
  kernel_.rows_of.resize(base);
  kernel_.flow_of.resize(base);
  for (auto& info : functions_) decode_function(*info);
  place_stack();
  const uint64_t dynamic_base = round_up(kernel_.static_shared_bytes, kernel_.dynamic_align);
  if (kernel_.uses_dynamic_shared)
    kernel_.static_shared_bytes = static_cast<uint32_t>(dynamic_base);
  if (!dynamic_name_.empty()) {
    kernel_.shared_symbols.push_back(
        {std::string(dynamic_name_), static_cast<uint32_t>(dynamic_base), ~uint32_t{0}});
  }
  for (size_t i : dynamic_inits_) kernel_.inits[i].value += dynamic_base;
  find_undefined_registers(kernel_);
  find_wgmma_registers();
}

void KernelBuilder::find_wgmma_registers() {
  const auto is_wgmma = [](const Kernel::Rows& rows) { return rows.wgmma; };
  if (std::none_of(kernel_.rows_of.begin(), kernel_.rows_of.end(), is_wgmma)) return;
  kernel_.wgmma_rows.assign(kernel_.rows, false);
  for (const Kernel::Rows& rows : kernel_.rows_of) {
    if (!rows.wgmma) continue;
    for (const Row row : rows.read) kernel_.wgmma_rows[row] = true;
    for (const Row row : rows.written) kernel_.wgmma_rows[row] = true;
  }
  for (size_t pc = 0; pc < kernel_.code.size(); ++pc) {
    const Kernel::Rows& rows = kernel_.rows_of[pc];
    if (rows.wgmma) continue;
    for (const Row row : rows.written) {
      if (kernel_.wgmma_rows[row]) kernel_.code[pc].flags |= kTouches;
    }
  }
}

Error KernelBuilder::with_line(const Error& error) const {
  return Error(error.kind, error.line,
               format("line %d: %s: %s", error.line, error.what(),
                      kernel_.module->quoted_line(error.line).c_str()));
}

void KernelBuilder::decode_function(FunctionInfo& info) {
  current_ = &info;
  if (info.recursive != nullptr) info.recursive->first_pred = kernel_.preds;
  for (size_t i = 0; i < info.function->body.size(); ++i) {
    statement_ = &info.function->body[i];
    pc_ = info.statement_pc[i];
    try {
      decode_statement(*statement_, &kernel_.code[pc_]);
    } catch (const Error& error) {
      throw with_line(error);
    }
  }
  pc_ = info.statement_pc.back();
  Instr& end = kernel_.code[pc_];
  end.line = info.function->body.empty() ? info.function->line : info.function->body.back().line;
  end.name = "ret";
  decode_implicit_return(*this, &end);
  ends();
  if (info.recursive != nullptr) info.recursive->end_pred = kernel_.preds;
}

void KernelBuilder::decode_statement(const ptx::Statement& statement, Instr* out) {
  size_t parts = 0;
  const IsaEntry* entry = IsaTable::instance().find(statement.parts, &parts);
  if (entry == nullptr) {
    throw Error(ErrorKind::kUnsupported, statement.line,
                "unsupported instruction '" + std::string(statement.mnemonic) + "'");
  }
  if (const auto need = lacking_target(module_.ast().target, statement); !need.empty()) {
    throw Error(ErrorKind::kParse, statement.line,
                format("'%s' needs .target %s, not %s", std::string(statement.mnemonic).c_str(),
                       std::string(need).c_str(), module_.ast().target.c_str()));
  }
  out->line = statement.line;
  auto name = std::make_shared<std::string>(statement.mnemonic);
  out->name = name->c_str();
  keep(name);
  Decoder decoder(*this, statement, parts, *out);
  if (!statement.guard.empty()) {
    ptx::Operand guard;
    guard.kind = ptx::Operand::Kind::kName;
    guard.name = statement.guard;
    guard.negated = statement.guard_negated;
    out->guard = decoder.pred_src(guard);
    out->guarded = true;
  }
  entry->decode(decoder);
  Kernel::Rows& rows = kernel_.rows_of[pc_];
  rows.moves = statement.parts[0] == "mov";
  rows.unpacks = rows.moves && !statement.operands.empty() &&
                 Decoder::vector_items(statement.operands[0]) != nullptr;
  const bool second = statement.parts.size() > 1;
  rows.wgmma = second && statement.parts[0] == "wgmma" && statement.parts[1] == "mma_async";
  rows.loads_tensor = second && statement.parts[0] == "tcgen05" && statement.parts[1] == "ld";
  rows.loads_local = loads_local(statement.parts);
  if (!decoder.no_mods_left()) decoder.unsupported("modifier '" + decoder.mods_left() + "'");
  const double version = module_.ast().version;
  if (!has_form(statement, parts, version)) {
    decoder.error(
        format("PTX %.1f has no form '%s'", version, std::string(statement.mnemonic).c_str()));
  }
}

}  // namespace bwgemm::emulator
