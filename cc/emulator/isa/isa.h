// The table of instructions. Each family file has one register function that adds its entries;
// isa.cc calls them all.
#pragma once

#include <string_view>
#include <unordered_map>
#include <vector>

#include "emulator/machine/decoder.h"

namespace bwgemm::emulator {

// Fills in decoder.out(): exec and its operands; throws through decoder.error()/unsupported().
using DecodeFn = void (*)(Decoder& decoder);

struct IsaEntry {
  std::string_view
      prefix;  // dotted beginning of the mnemonic, e.g. "mbarrier.try_wait"; the longest match wins
  DecodeFn decode;
  std::string_view section;  // of the PTX ISA 9.0
};

class IsaTable {
 public:
  void add(const IsaEntry& entry);
  // Longest registered prefix of the statement's parts, nullptr if none; *parts is its number of
  // parts.
  const IsaEntry* find(const std::vector<std::string_view>& parts, size_t* prefix_parts) const;
  const std::vector<IsaEntry>& entries() const { return entries_; }

  static const IsaTable& instance();

 private:
  std::vector<IsaEntry> entries_;
  std::unordered_map<std::string_view, size_t> index_;
};

// isa/
void register_integer(IsaTable& table);
void register_extended(IsaTable& table);
void register_bits(IsaTable& table);
void register_select(IsaTable& table);
void register_functions(IsaTable& table);
void register_float(IsaTable& table);
void register_logic(IsaTable& table);
void register_compare(IsaTable& table);
void register_convert(IsaTable& table);
void register_move(IsaTable& table);
void register_control(IsaTable& table);
void register_setmaxnreg(IsaTable& table);
void register_call(IsaTable& table);
void register_memory(IsaTable& table);
void register_bulk_store(IsaTable& table);
void register_fence(IsaTable& table);
void register_atomic(IsaTable& table);
void register_warp(IsaTable& table);
void register_barrier(IsaTable& table);
void register_mbarrier(IsaTable& table);
void register_async_store(IsaTable& table);
void register_cp_async(IsaTable& table);
void register_matrix(IsaTable& table);
void register_matrix_access(IsaTable& table);
void register_wmma(IsaTable& table);
void register_video(IsaTable& table);
// tensor/
void register_tensor(IsaTable& table);

}  // namespace bwgemm::emulator
