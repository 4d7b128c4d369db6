#include "dense/kernel_table.h"

#include <unordered_map>

namespace bwgemm {

// One function per generated translation unit (instance.cu.in); the calls keep the linker from
// dropping them, which a self-registering static object in an archive would not survive.
#define BWGEMM_GROUP(group) void AppendKernels_##group(std::vector<KernelEntry>& table);
#include "dense/kernel_groups.inc"
#undef BWGEMM_GROUP

const std::vector<KernelEntry>& AllKernels() {
  static const std::vector<KernelEntry>* const table = [] {
    auto* t = new std::vector<KernelEntry>();
#define BWGEMM_GROUP(group) AppendKernels_##group(*t);
#include "dense/kernel_groups.inc"
#undef BWGEMM_GROUP
    return t;
  }();
  return *table;
}

const KernelEntry* FindKernel(std::string_view name) {
  static const auto* const index = [] {
    auto* map = new std::unordered_map<std::string_view, const KernelEntry*>();
    for (const KernelEntry& e : AllKernels()) map->emplace(e.info.name, &e);
    return map;
  }();
  auto it = index->find(name);
  return it == index->end() ? nullptr : it->second;
}

}  // namespace bwgemm
