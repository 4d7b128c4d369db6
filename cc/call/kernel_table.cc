#include "call/kernel_table.h"

#include <unordered_map>

// One function per generated translation unit (instance.cu.in). A table of calls, since a linker
// drops objects of an archive that merely register themselves.
namespace bwgemm::dense {
#define BWGEMM_GROUP(group) void AppendKernels_##group(std::vector<KernelEntry>& table);
#include "dense/kernel_groups.inc"
#undef BWGEMM_GROUP
}  // namespace bwgemm::dense
namespace bwgemm::grouped {
#define BWGEMM_GROUP(group) void AppendKernels_##group(std::vector<KernelEntry>& table);
#include "grouped/kernel_groups.inc"
#undef BWGEMM_GROUP
}  // namespace bwgemm::grouped
namespace bwgemm::scaled {
#define BWGEMM_GROUP(group) void AppendKernels_##group(std::vector<KernelEntry>& table);
#include "scaled/kernel_groups.inc"
#undef BWGEMM_GROUP
#define BWGEMM_GROUP(group) void AppendKernels_##group(std::vector<GroupedKernelEntry>& table);
#include "scaled_grouped/kernel_groups.inc"
#undef BWGEMM_GROUP
}  // namespace bwgemm::scaled

namespace bwgemm::call {
namespace {

std::vector<dense::KernelEntry> DenseKernels() {
  std::vector<dense::KernelEntry> table;
#define BWGEMM_GROUP(group) dense::AppendKernels_##group(table);
#include "dense/kernel_groups.inc"
#undef BWGEMM_GROUP
  return table;
}

std::vector<grouped::KernelEntry> GroupedKernels() {
  std::vector<grouped::KernelEntry> table;
#define BWGEMM_GROUP(group) grouped::AppendKernels_##group(table);
#include "grouped/kernel_groups.inc"
#undef BWGEMM_GROUP
  return table;
}

std::vector<scaled::KernelEntry> ScaledKernels() {
  std::vector<scaled::KernelEntry> table;
#define BWGEMM_GROUP(group) scaled::AppendKernels_##group(table);
#include "scaled/kernel_groups.inc"
#undef BWGEMM_GROUP
  return table;
}

std::vector<scaled::GroupedKernelEntry> ScaledGroupedKernels() {
  std::vector<scaled::GroupedKernelEntry> table;
#define BWGEMM_GROUP(group) scaled::AppendKernels_##group(table);
#include "scaled_grouped/kernel_groups.inc"
#undef BWGEMM_GROUP
  return table;
}

}  // namespace

const std::vector<Kernel>& AllKernels() {
  static const auto* const dense = new std::vector<dense::KernelEntry>(DenseKernels());
  static const auto* const grouped = new std::vector<grouped::KernelEntry>(GroupedKernels());
  static const auto* const scaled = new std::vector<scaled::KernelEntry>(ScaledKernels());
  static const auto* const scaled_grouped =
      new std::vector<scaled::GroupedKernelEntry>(ScaledGroupedKernels());
  static const auto* const table = [] {
    auto* all = new std::vector<Kernel>();
    const auto append = [all](const auto& entries, auto Kernel::* ops) {
      for (const auto& entry : entries) {
        all->push_back({entry.info});
        all->back().*ops = &entry.ops;
      }
    };
    append(*dense, &Kernel::dense);
    append(*grouped, &Kernel::grouped);
    append(*scaled, &Kernel::scaled);
    append(*scaled_grouped, &Kernel::scaled_grouped);
    return all;
  }();
  return *table;
}

const Kernel* FindKernel(std::string_view name) {
  static const auto* const index = [] {
    auto* map = new std::unordered_map<std::string_view, const Kernel*>();
    for (const Kernel& kernel : AllKernels()) map->emplace(kernel.info.name, &kernel);
    return map;
  }();
  const auto it = index->find(name);
  return it == index->end() ? nullptr : it->second;
}

}  // namespace bwgemm::call
