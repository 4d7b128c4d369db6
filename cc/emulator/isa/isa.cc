#include "emulator/isa/isa.h"

namespace bwgemm::emulator {

void IsaTable::add(const IsaEntry& entry) {
  index_[entry.prefix] = entries_.size();
  entries_.push_back(entry);
}

const IsaEntry* IsaTable::find(const std::vector<std::string_view>& parts,
                               size_t* prefix_parts) const {
  if (parts.empty() || parts[0].empty()) return nullptr;
  // The parts are consecutive pieces of one text, so a prefix of several parts is one view (unless
  // white space was in between).
  for (size_t n = parts.size() < 6 ? parts.size() : 6; n >= 1; --n) {
    const char* begin = parts[0].data();
    const std::string_view prefix(
        begin, static_cast<size_t>(parts[n - 1].data() + parts[n - 1].size() - begin));
    if (const auto it = index_.find(prefix); it != index_.end()) {
      *prefix_parts = n;
      return &entries_[it->second];
    }
  }
  return nullptr;
}

const IsaTable& IsaTable::instance() {
  static const IsaTable table = [] {
    IsaTable t;
    register_integer(t);
    register_extended(t);
    register_bits(t);
    register_select(t);
    register_functions(t);
    register_float(t);
    register_logic(t);
    register_compare(t);
    register_convert(t);
    register_move(t);
    register_control(t);
    register_setmaxnreg(t);
    register_call(t);
    register_memory(t);
    register_bulk_store(t);
    register_fence(t);
    register_atomic(t);
    register_warp(t);
    register_barrier(t);
    register_mbarrier(t);
    register_async_store(t);
    register_cp_async(t);
    register_matrix(t);
    register_matrix_access(t);
    register_wmma(t);
    register_video(t);
    register_tensor(t);
    return t;
  }();
  return table;
}

}  // namespace bwgemm::emulator
