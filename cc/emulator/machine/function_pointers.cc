// Calls through pointers: where they may lead.
#include "emulator/machine/kernel_builder.h"

namespace bwgemm::emulator {

bool KernelBuilder::is_indirect(const ptx::Statement& call) const {
  size_t at = 0;
  if (at < call.operands.size() && call.operands[at].kind == ptx::Operand::Kind::kList) ++at;
  return at < call.operands.size() && call.operands[at].kind == ptx::Operand::Kind::kName &&
         find_function(call.operands[at].name) == nullptr;
}

// Functions that a pointer may lead to: those whose address something in the module takes.
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
  for (const auto& f : ast.functions) {
    if (!taken[f->index]) continue;
    lay_out(*f, 0);
    pointed_to_.push_back(by_name_[f->name]);
  }
  // A pointer may lead to a function that runs already: its return address says so.
  for (const auto& info : functions_) {
    if (info->return_row != kNoRow)
      kernel_.inits.push_back({info->return_row, WarpValue::kConstant, 32, 0});
  }
}

const ptx::Prototype* KernelBuilder::prototype(std::string_view name) const {
  const ptx::Function& f = *current_->function;
  for (int scope = statement_->scope; scope >= 0; scope = f.scopes[scope].parent) {
    const auto& known = f.scopes[scope].prototypes;
    if (const auto it = known.find(name); it != known.end()) return &it->second;
  }
  return nullptr;
}

}  // namespace bwgemm::emulator
