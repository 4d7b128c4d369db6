// Where a kernel's names lead: registers, constants, special registers, variables.
#include <algorithm>

#include "emulator/machine/kernel_builder.h"

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

}  // namespace

Row KernelBuilder::new_row(int bits) {
  const Row row = kernel_.rows;
  kernel_.rows += bits <= 32 ? 1 : bits == 64 ? 2 : 4;
  if (kernel_.rows > kMaxRows)
    throw Error(ErrorKind::kUnsupported, statement_ ? statement_->line : 0, "too many registers");
  if (current_ != nullptr && current_->recursive != nullptr) {
    RecursiveFunction& function = *current_->recursive;
    if (bits <= 32) function.words.push_back(row);
    if (bits >= 64) function.double_words.push_back(row);
    if (bits == 128) function.double_words.push_back(row + 2);
  }
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
  if (symbol.framed) {
    if (bits != 64)
      throw Error(ErrorKind::kUnsupported, statement_->line,
                  "unsupported 32-bit address of a variable of a recursive function");
    const Row row = new_row(64);
    current_->recursive->addresses.emplace_back(row, value);
    return row;
  }
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
      // number wins. Numbers have at most 8 digits.
      const size_t shortest = std::max(digits, name.size() - std::min<size_t>(name.size(), 8));
      for (size_t stem = name.size() - 1; digits < name.size() && stem >= shortest && stem > 0;
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
        symbol.framed = current_->recursive != nullptr && variable.space == ptx::Space::kLocal;
        symbol.value = symbol.framed
                           ? allocate_framed(variable)
                           : allocate_local(variable.bytes, variable.align, variable.line);
        if (variable.space == ptx::Space::kLocal && !symbol.framed) {
          kernel_.local_variables.push_back(
              {static_cast<uint32_t>(symbol.value), static_cast<uint32_t>(variable.bytes)});
        }
        if (current_->recursive != nullptr && !symbol.framed) {
          current_->recursive->params.push_back(
              {static_cast<uint32_t>(symbol.value), static_cast<uint32_t>(variable.bytes)});
        }
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

}  // namespace bwgemm::emulator
