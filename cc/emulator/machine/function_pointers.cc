// Calls through pointers: where they may lead.
#include "emulator/machine/kernel_builder.h"

namespace bwgemm::emulator {
namespace {

bool same_sizes(const std::vector<ptx::Variable>& a, const std::vector<ptx::Variable>& b) {
  bool same = a.size() == b.size();
  for (size_t i = 0; same && i < a.size(); ++i) same = a[i].bytes == b[i].bytes;
  return same;
}

}  // namespace

bool fits(const ptx::Prototype* prototype, const ptx::Function& function) {
  return prototype == nullptr || (same_sizes(prototype->params, function.params) &&
                                  same_sizes(prototype->returns, function.returns));
}

const ptx::Prototype* KernelBuilder::prototype(const ptx::Function& f, int scope,
                                               std::string_view name) {
  for (; scope >= 0; scope = f.scopes[scope].parent) {
    const auto& known = f.scopes[scope].prototypes;
    if (const auto it = known.find(name); it != known.end()) return &it->second;
  }
  return nullptr;
}

void KernelBuilder::note_pointer_call(const ptx::Function& function, const ptx::Statement& call) {
  const auto& operands = call.operands;
  const size_t at = !operands.empty() && operands[0].kind == ptx::Operand::Kind::kList ? 1 : 0;
  if (at >= operands.size() || operands[at].kind != ptx::Operand::Kind::kName ||
      find_function(operands[at].name) != nullptr)
    return;
  uses_pointers_ = true;
  prototypes_.push_back(prototype(function, call.scope, operands.back().name));
}

// Functions that a pointer may lead to: those of a fitting kind whose address something in the
// module takes.
void KernelBuilder::lay_out_pointed_to() {
  const ptx::Module& ast = module_.ast();
  std::vector<bool> taken(ast.functions.size(), false);
  const auto take = [&](std::string_view name) {
    if (const ptx::Function* f = find_function(name)) taken[f->index] = f->has_body && !f->is_entry;
  };
  for (const ptx::Variable& v : ast.variables) {
    for (const auto& fixup : v.fixups) take(fixup.symbol);
  }
  for (const auto& f : ast.functions) {
    for (const ptx::Statement& s : f->body) {
      if (s.parts[0] != "mov") continue;
      for (const ptx::Operand& o : s.operands) take(o.name);
    }
  }
  // They may call through pointers themselves, which adds prototypes.
  for (size_t known = 0; known < prototypes_.size(); ++known) {
    const ptx::Prototype* const prototype = prototypes_[known];
    for (const auto& f : ast.functions) {
      if (!taken[f->index] || !fits(prototype, *f)) continue;
      taken[f->index] = false;
      lay_out(*f, 0);
      pointed_to_.push_back(by_name_[f->name]);
    }
  }
  // A pointer may lead to a function that runs already: its return address says so.
  for (const auto& info : functions_) {
    if (info->return_row != kNoRow)
      kernel_.inits.push_back({info->return_row, WarpValue::kConstant, 32, 0});
  }
}

}  // namespace bwgemm::emulator
