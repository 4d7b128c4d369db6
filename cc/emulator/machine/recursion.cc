// Functions that calls lead back to.
#include <algorithm>

#include "emulator/machine/kernel_builder.h"
#include "emulator/machine/launch.h"

namespace bwgemm::emulator {

// Of each thread. Registers are saved elsewhere.
constexpr uint32_t kStackBytes = 16384;
constexpr uint64_t kFrameAlign = 16;

bool KernelBuilder::leads_to(const FunctionInfo& from, std::string_view to) const {
  std::vector<std::string_view> found, left(from.callees);
  while (!left.empty()) {
    const std::string_view name = left.back();
    left.pop_back();
    if (name == to) return true;
    if (std::find(found.begin(), found.end(), name) != found.end()) continue;
    found.push_back(name);
    const std::vector<std::string_view>& more = by_name_.find(name)->second->callees;
    left.insert(left.end(), more.begin(), more.end());
  }
  return false;
}

void KernelBuilder::find_recursive_functions() {
  for (auto& info : functions_) {
    const ptx::Function& function = *info->function;
    if (!leads_to(*info, function.name)) continue;
    if (stack_row_ == kNoRow) stack_row_ = new_row(64);
    info->recursive = std::make_shared<RecursiveFunction>();
    info->recursive->return_row = info->return_row;
    info->recursive->frame_row = new_row(64);
    const auto note = [&](const std::vector<ptx::Variable>& variables,
                          const std::vector<uint32_t>& offsets) {
      for (size_t i = 0; i < variables.size(); ++i)
        info->recursive->params.push_back({offsets[i], static_cast<uint32_t>(variables[i].bytes)});
    };
    note(function.params, info->param_offsets);
    note(function.returns, info->return_offsets);
  }
}

uint32_t KernelBuilder::allocate_framed(const ptx::Variable& variable) {
  RecursiveFunction& function = *current_->recursive;
  const uint64_t align = std::max<uint64_t>(variable.align, 1);
  const uint64_t offset = round_up(function.frame_bytes, align);
  const uint64_t end = round_up(offset + variable.bytes, kFrameAlign);
  if (align > kFrameAlign || end > kStackBytes)
    throw Error(ErrorKind::kUnsupported, variable.line,
                "unsupported variable of a recursive function: too large");
  function.frame_bytes = static_cast<uint32_t>(end);
  return static_cast<uint32_t>(offset);
}

void KernelBuilder::place_stack() {
  if (stack_row_ == kNoRow) return;
  const uint64_t begin = round_up(kernel_.local_bytes, kFrameAlign);
  kernel_.inits.push_back({stack_row_, WarpValue::kConstant, 64, begin});
  kernel_.local_bytes = static_cast<uint32_t>(begin + kStackBytes);
  kernel_.local_variables.push_back({static_cast<uint32_t>(begin), kStackBytes});
}

}  // namespace bwgemm::emulator
