#include "emulator/machine/kernel_builder.h"

#include <algorithm>

#include "emulator/isa/control.h"
#include "emulator/isa/isa.h"
#include "emulator/machine/undefined.h"

namespace bwgemm::emulator {
namespace {

struct SpecialName {
  std::string_view name;
  WarpValue what;
};
constexpr SpecialName kSpecials[] = {
    {"%tid.x", WarpValue::kTidX},
    {"%tid.y", WarpValue::kTidY},
    {"%tid.z", WarpValue::kTidZ},
    {"%ntid.x", WarpValue::kNtidX},
    {"%ntid.y", WarpValue::kNtidY},
    {"%ntid.z", WarpValue::kNtidZ},
    {"%ctaid.x", WarpValue::kCtaidX},
    {"%ctaid.y", WarpValue::kCtaidY},
    {"%ctaid.z", WarpValue::kCtaidZ},
    {"%nctaid.x", WarpValue::kNctaidX},
    {"%nctaid.y", WarpValue::kNctaidY},
    {"%nctaid.z", WarpValue::kNctaidZ},
    {"%laneid", WarpValue::kLaneid},
    {"%warpid", WarpValue::kWarpid},
    {"%nwarpid", WarpValue::kNwarpid},
    {"%smid", WarpValue::kSmid},
    {"%nsmid", WarpValue::kNsmid},
    {"%gridid", WarpValue::kGridid},
    {"%clusterid.x", WarpValue::kClusteridX},
    {"%clusterid.y", WarpValue::kClusteridY},
    {"%clusterid.z", WarpValue::kClusteridZ},
    {"%nclusterid.x", WarpValue::kNclusteridX},
    {"%nclusterid.y", WarpValue::kNclusteridY},
    {"%nclusterid.z", WarpValue::kNclusteridZ},
    {"%cluster_ctaid.x", WarpValue::kClusterCtaidX},
    {"%cluster_ctaid.y", WarpValue::kClusterCtaidY},
    {"%cluster_ctaid.z", WarpValue::kClusterCtaidZ},
    {"%cluster_nctaid.x", WarpValue::kClusterNctaidX},
    {"%cluster_nctaid.y", WarpValue::kClusterNctaidY},
    {"%cluster_nctaid.z", WarpValue::kClusterNctaidZ},
    {"%cluster_ctarank", WarpValue::kClusterCtarank},
    {"%cluster_nctarank", WarpValue::kClusterNctarank},
    {"%is_explicit_cluster", WarpValue::kIsExplicitCluster},
    {"%lanemask_eq", WarpValue::kLanemaskEq},
    {"%lanemask_le", WarpValue::kLanemaskLe},
    {"%lanemask_lt", WarpValue::kLanemaskLt},
    {"%lanemask_ge", WarpValue::kLanemaskGe},
    {"%lanemask_gt", WarpValue::kLanemaskGt},
    // Where a driver keeps the address that cooperative groups look for.
    {"%envreg1", WarpValue::kGridWorkspaceHigh},
    {"%envreg2", WarpValue::kGridWorkspaceLow},
    {"%dynamic_smem_size", WarpValue::kDynamicSmemSize},
    {"%total_smem_size", WarpValue::kTotalSmemSize},
    {"%aggr_smem_size", WarpValue::kAggrSmemSize},
    {"%reserved_smem_offset_begin", WarpValue::kReservedSmemBegin},
    {"%reserved_smem_offset_end", WarpValue::kReservedSmemEnd},
    {"%reserved_smem_offset_cap", WarpValue::kReservedSmemEnd},
    {"%reserved_smem_offset_0", WarpValue::kReservedSmem0},
    {"%reserved_smem_offset_1", WarpValue::kReservedSmem1},
};

constexpr uint32_t kMaxLocalBytes = 1 << 20;
constexpr uint32_t kMaxRows = 1 << 20;

uint64_t round_up(uint64_t value, uint64_t align) { return (value + align - 1) & ~(align - 1); }

}  // namespace

Row KernelBuilder::new_row(int bits) {
  const Row row = kernel_.rows;
  kernel_.rows += bits <= 32 ? 1 : bits == 64 ? 2 : 4;
  if (kernel_.rows > kMaxRows)
    throw Error(ErrorKind::kUnsupported, statement_ ? statement_->line : 0, "too many registers");
  return row;
}

Row KernelBuilder::constant(uint64_t value, int bits) {
  auto& pool = bits == 64 ? constants64_ : constants32_;
  if (bits != 64) value &= 0xFFFFFFFFu;
  const auto [it, fresh] = pool.try_emplace(value, 0);
  if (fresh) {
    it->second = new_row(bits == 64 ? 64 : 32);
    kernel_.inits.push_back(
        {it->second, WarpValue::kConstant, static_cast<uint8_t>(bits == 64 ? 64 : 32), value});
  }
  return it->second;
}

Row KernelBuilder::special_row(WarpValue what, int bits) {
  const auto [it, fresh] = specials_.try_emplace(static_cast<uint64_t>(what) * 128 + bits, 0);
  if (fresh) {
    it->second = new_row(bits);
    kernel_.inits.push_back({it->second, what, static_cast<uint8_t>(bits), 0});
  }
  return it->second;
}

Row KernelBuilder::symbol_address(const Symbol& symbol, int64_t addend, int bits) {
  const uint64_t value = symbol.value + static_cast<uint64_t>(addend);
  if (symbol.kind != Symbol::Kind::kShared) return constant(value, bits);
  // An offset in shared memory is far below 2^56.
  const uint64_t key = value << 8 | uint64_t{symbol.dynamic} << 7 | static_cast<uint64_t>(bits);
  const auto [it, fresh] = addresses_.try_emplace(key, 0);
  if (fresh) {
    it->second = new_row(bits);
    if (symbol.dynamic) dynamic_inits_.push_back(kernel_.inits.size());
    kernel_.inits.push_back(
        {it->second, WarpValue::kSharedAddress, static_cast<uint8_t>(bits), value});
  }
  return it->second;
}

uint32_t KernelBuilder::allocate_local(uint64_t bytes, uint64_t align, int line) {
  const uint64_t offset = round_up(kernel_.local_bytes, std::max<uint64_t>(align, 1));
  if (offset + bytes > kMaxLocalBytes)
    throw Error(ErrorKind::kUnsupported, line, "more than 1 MiB of local memory");
  kernel_.local_bytes = static_cast<uint32_t>(offset + bytes);
  return static_cast<uint32_t>(offset);
}

uint64_t KernelBuilder::allocate_shared(const ptx::Variable& variable) {
  const auto [it, fresh] = shared_offsets_.try_emplace(&variable, 0);
  if (fresh) {
    const uint64_t offset = round_up(kernel_.static_shared_bytes, variable.align);
    if (offset + variable.bytes > 16 << 20)
      throw Error(ErrorKind::kUnsupported, variable.line, "too much static shared memory");
    kernel_.static_shared_bytes = static_cast<uint32_t>(offset + variable.bytes);
    it->second = offset;
    kernel_.shared_symbols.push_back({std::string(variable.name), static_cast<uint32_t>(offset),
                                      static_cast<uint32_t>(variable.bytes)});
  }
  return it->second;
}

KernelBuilder::Symbol KernelBuilder::resolve(std::string_view name) {
  using Kind = Symbol::Kind;
  const ptx::Function& f = *current_->function;
  Symbol symbol;
  for (int scope = statement_->scope; scope >= 0; scope = f.scopes[scope].parent) {
    auto& known = current_->symbols[scope];
    if (const auto it = known.find(name); it != known.end()) return it->second;
    const ptx::Scope& s = f.scopes[scope];
    const ptx::RegDecl* decl = nullptr;
    if (const auto it = s.regs.find(name); it != s.regs.end()) {
      decl = &it->second;
    } else if (!s.reg_families.empty()) {
      size_t digits = name.size();
      while (digits > 0 && name[digits - 1] >= '0' && name[digits - 1] <= '9') --digits;
      // A family name may itself end in digits; the longest stem with a declaration that covers the
      // number wins.
      for (size_t stem = name.size() - 1; digits < name.size() && stem >= digits && stem > 0;
           --stem) {
        const auto family = s.reg_families.find(name.substr(0, stem));
        if (family == s.reg_families.end()) continue;
        uint64_t number = 0;
        bool small = name.size() - stem <= 8 && (name[stem] != '0' || name.size() - stem == 1);
        for (size_t i = stem; i < name.size() && small; ++i)
          number = number * 10 + static_cast<uint64_t>(name[i] - '0');
        if (!small || number >= s.family_counts.find(name.substr(0, stem))->second) continue;
        decl = &family->second;
        break;
      }
    }
    if (decl != nullptr) {
      symbol.bits = decl->bits;
      if (decl->bits == 1) {
        symbol.kind = Kind::kPredicate;
        symbol.index = kernel_.preds++;
      } else {
        symbol.kind = Kind::kRegister;
        symbol.index = new_row(decl->bits);
      }
      return known[name] = symbol;
    }
    if (const auto it = s.variables.find(name); it != s.variables.end()) {
      const ptx::Variable& variable = it->second;
      if (variable.space == ptx::Space::kShared) {
        symbol.kind = Kind::kShared;
        symbol.value = allocate_shared(variable);
      } else if (variable.space == ptx::Space::kLocal || variable.space == ptx::Space::kParam) {
        symbol.kind = Kind::kLocal;
        symbol.value = allocate_local(variable.bytes, variable.align, variable.line);
      } else {
        throw Error(ErrorKind::kUnsupported, variable.line,
                    "global or constant variable inside a function");
      }
      return known[name] = symbol;
    }
  }
  auto& outer = current_->symbols[0];
  for (size_t i = 0; i < f.params.size(); ++i) {
    if (f.params[i].name != name) continue;
    symbol.kind = f.is_entry ? Kind::kParam : Kind::kLocal;
    symbol.value = current_->param_offsets[i];
    return outer[name] = symbol;
  }
  for (size_t i = 0; i < f.returns.size(); ++i) {
    if (f.returns[i].name != name) continue;
    symbol.kind = Kind::kLocal;
    symbol.value = current_->return_offsets[i];
    return outer[name] = symbol;
  }
  if (!name.empty() && name[0] == '%') {
    for (const SpecialName& special : kSpecials) {
      if (special.name != name) continue;
      symbol.kind = Kind::kSpecial;
      symbol.bits = special.what == WarpValue::kGridid ? 64 : 32;
      symbol.special = special.what;
      kernel_.uses_reserved_shared |= special.what >= WarpValue::kReservedSmemBegin;
      return symbol;
    }
  }
  const ptx::Module& ast = module_.ast();
  if (const auto it = ast.variable_index.find(name); it != ast.variable_index.end()) {
    const ptx::Variable& variable = ast.variables[it->second];
    if (variable.space == ptx::Space::kShared) {
      symbol.kind = Kind::kShared;
      if (variable.is_extern && variable.bytes == 0) {
        symbol.dynamic = true;
        kernel_.uses_dynamic_shared = true;
        dynamic_name_ = variable.name;
        kernel_.dynamic_align =
            std::max<uint32_t>(kernel_.dynamic_align, static_cast<uint32_t>(variable.align));
      } else {
        symbol.value = allocate_shared(variable);
      }
    } else {
      symbol.kind = Kind::kGlobal;
      symbol.value = reinterpret_cast<uintptr_t>(module_.variable(name));
      if (symbol.value == 0)
        throw Error(ErrorKind::kUnsupported, variable.line,
                    "extern variable '" + std::string(name) + "' is not defined");
    }
    return outer[name] = symbol;
  }
  if (const ptx::Function* function = find_function(name)) {
    symbol.kind = Kind::kFunction;
    symbol.value = function_address(*function);
  }
  return symbol;
}

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
  if (std::find(call_path_.begin(), call_path_.end(), function.name) != call_path_.end()) {
    throw Error(ErrorKind::kUnsupported, function.line,
                format("line %d: unsupported recursive function '%s'", function.line,
                       std::string(function.name).c_str()));
  }
  if (by_name_.count(function.name) != 0) return;
  if (depth > 64) throw Error(ErrorKind::kUnsupported, function.line, "calls nested too deeply");
  call_path_.push_back(function.name);
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
  by_name_[function.name] = info.get();
  functions_.push_back(std::move(info));
  for (const ptx::Statement& s : function.body) {
    if (s.parts[0] != "call") continue;
    for (const ptx::Operand& o : s.operands) {
      const ptx::Function* callee =
          o.kind == ptx::Operand::Kind::kName ? find_function(o.name) : nullptr;
      if (callee != nullptr && callee->has_body) lay_out(*callee, depth + 1);
    }
    note_pointer_call(function, s);
  }
  call_path_.pop_back();
}

void KernelBuilder::build(const ptx::Function& entry) {
  kernel_.name = std::string(entry.name);
  kernel_.module = &module_.ast();
  kernel_.preds = 1;  // predicate 0 is always false
  kernel_.static_shared_bytes = kSharedReserved;
  kernel_.max_threads = entry.max_threads;
  std::copy(entry.required_ntid, entry.required_ntid + 3, kernel_.required_ntid);
  std::copy(entry.required_cluster, entry.required_cluster + 3, kernel_.required_cluster);
  if (!entry.has_body) throw Error(ErrorKind::kParse, entry.line, "entry without a body");
  lay_out(entry, 0);
  if (uses_pointers_) lay_out_pointed_to();
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

void KernelBuilder::decode_function(FunctionInfo& info) {
  current_ = &info;
  for (size_t i = 0; i < info.function->body.size(); ++i) {
    statement_ = &info.function->body[i];
    pc_ = info.statement_pc[i];
    try {
      decode_statement(*statement_, &kernel_.code[pc_]);
    } catch (const Error& error) {
      const std::string text(kernel_.module->line_text(error.line).substr(0, 160));
      throw Error(error.kind, error.line,
                  format("line %d: %s: %s", error.line, error.what(), text.c_str()));
    }
  }
  pc_ = info.statement_pc.back();
  Instr& end = kernel_.code[pc_];
  end.line = info.function->body.empty() ? info.function->line : info.function->body.back().line;
  end.name = "ret";
  decode_implicit_return(*this, &end);
  ends();
}

void KernelBuilder::decode_statement(const ptx::Statement& statement, Instr* out) {
  size_t parts = 0;
  const IsaEntry* entry = IsaTable::instance().find(statement.parts, &parts);
  if (entry == nullptr) {
    throw Error(ErrorKind::kUnsupported, statement.line,
                "unsupported instruction '" + std::string(statement.mnemonic) + "'");
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
  if (!decoder.no_mods_left()) decoder.unsupported("modifier '" + decoder.mods_left() + "'");
}

}  // namespace bwgemm::emulator
