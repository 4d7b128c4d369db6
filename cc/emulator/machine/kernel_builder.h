// Decodes an entry function and everything it calls into a Kernel: lays out instructions, assigns
// rows, predicates, shared and local memory.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "emulator/machine/kernel.h"
#include "emulator/machine/machine.h"

namespace bwgemm::emulator {

inline uint64_t round_up(uint64_t value, uint64_t align) {
  return (value + align - 1) & ~(align - 1);
}

// What a pointer to the function holds.
inline uint64_t function_address(const ptx::Function& function) {
  return kFunctionWindow + 16 * (uint64_t{function.index} + 1);
}

// Whether a call with this prototype may lead to the function; null: with any.
bool fits(const ptx::Prototype* prototype, const ptx::Function& function);

// A function that a call of it may lead back to. What such a call changes of it and must not is
// saved for each lane; its .local variables are at a place of their own in each call.
struct RecursiveFunction {
  struct Bytes {
    uint32_t offset, count;  // of local memory
  };
  std::vector<Bytes> params;             // .param variables, formal ones included
  std::vector<Row> words, double_words;  // registers
  Pred first_pred = 0, end_pred = 0;
  Row return_row = kNoRow;
  Row frame_row = kNoRow;  // where this call's .local variables begin
  uint32_t frame_bytes = 0;
  std::vector<std::pair<Row, uint64_t>> addresses;  // rows that hold frame_row and so many bytes
};

class KernelBuilder {
 public:
  KernelBuilder(Module& module, Kernel& kernel) : module_(module), kernel_(kernel) {}

  void build(const ptx::Function& entry);

  // What a name means at the statement being decoded.
  struct Symbol {
    enum class Kind : uint8_t {
      kNone,
      kRegister,
      kPredicate,
      kSpecial,
      kParam,
      kLocal,
      kShared,
      kGlobal,
      kFunction
    };
    Kind kind = Kind::kNone;
    int bits = 0;          // registers
    uint32_t index = 0;    // row or predicate
    uint64_t value = 0;    // offset (param, local, shared) or address (global)
    bool dynamic = false;  // shared: relative to the start of dynamic shared memory
    bool framed = false;   // local: relative to the recursive function's frame
    WarpValue special = WarpValue::kConstant;
  };
  Symbol resolve(std::string_view name);

  Row constant(uint64_t value, int bits);
  Row special_row(WarpValue what, int bits);
  Row symbol_address(const Symbol& symbol, int64_t addend, int bits);
  uint32_t label(std::string_view name, int line);
  const std::vector<std::string_view>* branch_targets(std::string_view name) const;
  void keep(std::shared_ptr<void> memory) { kernel_.owned.push_back(std::move(memory)); }
  Row new_row(int bits);
  Row carry_row() { return carry_ == kNoRow ? carry_ = new_row(32) : carry_; }

  // Calls: where a function starts, where it keeps its formal parameters and its return address.
  struct FunctionInfo {
    const ptx::Function* function = nullptr;
    uint32_t base = 0;
    Row return_row = kNoRow;
    std::shared_ptr<RecursiveFunction> recursive;  // null: no call of it leads to itself
    std::vector<std::string_view> callees;
    std::vector<uint32_t> statement_pc;
    std::vector<uint32_t> param_offsets,
        return_offsets;  // local memory; an entry's parameters: parameter space
    std::vector<std::unordered_map<std::string_view, Symbol>>
        symbols;  // per scope, as resolved so far
  };
  const FunctionInfo* function_info(std::string_view name) const;
  const ptx::Function* find_function(std::string_view name) const;
  // Whether calls by name lead from one function to another.
  bool leads_to(const FunctionInfo& from, std::string_view to) const;
  // Where the next recursive call's frame begins.
  Row stack_row() const { return stack_row_; }
  // Calls through pointers: whether the kernel has any, where they may lead, what they pass.
  bool uses_pointers() const { return uses_pointers_; }
  const std::vector<const FunctionInfo*>& pointed_to() const { return pointed_to_; }
  const ptx::Prototype* prototype(std::string_view name) const {
    return prototype(*current_->function, statement_->scope, name);
  }
  static const ptx::Prototype* prototype(const ptx::Function& f, int scope, std::string_view name);
  bool in_entry() const { return current_->function->is_entry; }
  const FunctionInfo& current() const { return *current_; }
  uint32_t pc() const { return pc_; }
  // --- What the instruction being decoded reads and writes, and where it may go on.
  Row reads(Row row) {
    kernel_.rows_of[pc_].read.push_back(row);
    return row;
  }
  Row writes(Row row) {
    kernel_.rows_of[pc_].written.push_back(row);
    return row;
  }
  // Destinations that are sources too, where the predicate holds.
  void reads_back(const std::vector<Row>& rows, Pred where) {
    kernel_.rows_of[pc_].read_back = rows;
    kernel_.rows_of[pc_].read_back_if = where;
  }
  Pred reads_pred(Pred pred) {
    kernel_.rows_of[pc_].preds_read.push_back(pred & ~kPredNot);
    return pred;
  }
  Pred writes_pred(Pred pred) {
    kernel_.rows_of[pc_].preds_written.push_back(pred);
    return pred;
  }
  void jumps_to(uint32_t target) { kernel_.flow_of[pc_].jumps.push_back(target); }
  // It never goes on with the next instruction, but where its guard is false.
  void ends() { kernel_.flow_of[pc_].next = kernel_.code[pc_].guarded; }
  Module& module() { return module_; }

 private:
  void lay_out(const ptx::Function& function, int depth);
  void lay_out_pointed_to();
  void find_recursive_functions();
  void place_stack();
  void note_pointer_call(const ptx::Function& function, const ptx::Statement& call);
  void decode_function(FunctionInfo& info);
  Error with_line(const Error& error) const;  // in front of its text, the line's behind
  void find_wgmma_registers();
  void decode_statement(const ptx::Statement& statement, Instr* out);
  uint32_t allocate_local(uint64_t bytes, uint64_t align, int line);
  uint32_t allocate_framed(const ptx::Variable& variable);
  uint64_t allocate_shared(const ptx::Variable& variable);

  Module& module_;
  Kernel& kernel_;
  std::vector<std::unique_ptr<FunctionInfo>> functions_;
  std::unordered_map<std::string_view, FunctionInfo*> by_name_;
  Row stack_row_ = kNoRow;
  bool uses_pointers_ = false;
  std::vector<const ptx::Prototype*> prototypes_;  // of calls through pointers; null: not known
  std::vector<const FunctionInfo*> pointed_to_;
  FunctionInfo* current_ = nullptr;
  const ptx::Statement* statement_ = nullptr;
  uint32_t pc_ = 0;
  Row carry_ = kNoRow;
  std::unordered_map<uint64_t, Row> constants32_, constants64_;
  std::unordered_map<uint64_t, Row> specials_;
  std::unordered_map<uint64_t, Row> addresses_;
  std::unordered_map<const ptx::Variable*, uint64_t> shared_offsets_;
  std::string_view dynamic_name_;
  std::vector<size_t> dynamic_inits_;  // inits to move by the size of static shared memory
};

}  // namespace bwgemm::emulator
