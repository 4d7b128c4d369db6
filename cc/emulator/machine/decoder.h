// Turns one parsed statement into an Instr. Instruction families register a decode function per
// mnemonic prefix (isa/isa.h).
#pragma once

#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "emulator/machine/error.h"
#include "emulator/machine/instr.h"
#include "emulator/ptx/ast.h"

namespace bwgemm::emulator {

class KernelBuilder;

enum class TypeKind : uint8_t {
  kNone,
  kBits,
  kUnsigned,
  kSigned,
  kFloat,
  kBfloat,
  kTf32,
  kE4m3,
  kE5m2,
  kE2m3,
  kE3m2,
  kE2m1,
  kUe8m0,
  kPred,
  kOther
};

// A type suffix. bits is the size of the whole operand; lanes is 2 for f16x2, bf16x2, e4m3x2 ...; 4
// for e4m3x4.
struct Type {
  TypeKind kind = TypeKind::kNone;
  int bits = 0;
  int lanes = 1;
  std::string_view name;
  bool is_float() const {
    return kind == TypeKind::kFloat || kind == TypeKind::kBfloat || kind == TypeKind::kTf32 ||
           kind == TypeKind::kE4m3 || kind == TypeKind::kE5m2;
  }
  bool is_signed() const { return kind == TypeKind::kSigned; }
  bool is_int() const {
    return kind == TypeKind::kBits || kind == TypeKind::kUnsigned || kind == TypeKind::kSigned;
  }
  explicit operator bool() const { return kind != TypeKind::kNone; }
};

// The type that a suffix names, Type{} if it names none.
Type parse_type(std::string_view suffix);

class Decoder {
 public:
  Decoder(KernelBuilder& builder, const ptx::Statement& statement, size_t prefix_parts, Instr& out);

  Instr& out() { return out_; }
  const ptx::Statement& statement() const { return statement_; }
  int line() const { return statement_.line; }

  // --- Modifiers: the parts of the mnemonic after the registered prefix. Each must be consumed, or
  // decoding fails with "unsupported modifier". Order is not checked.
  bool mod(std::string_view name);  // consumes it if present
  std::string_view mod_one_of(
      std::initializer_list<std::string_view> names);  // the one present, "" if none
  std::string_view mod_prefix(
      std::string_view prefix);       // e.g. "L2::": the first modifier so starting
  Type type();                        // consumes the first remaining type suffix; error if none
  Type maybe_type();                  // the same, Type{} if none
  Type peek_type() const;             // the first remaining type suffix, not consumed
  std::string_view next_mod() const;  // first remaining modifier, "" if none
  void ignore_mods(std::initializer_list<std::string_view> names);
  // .shared, .shared::cta, .shared::cluster, .global, .const, .local, .param, .param::entry ...;
  // default generic.
  struct SpaceMod {
    ptx::Space space = ptx::Space::kGeneric;
    bool cluster = false;
  };
  SpaceMod space();
  bool no_mods_left() const;
  std::string mods_left() const;

  // --- Operands
  size_t count() const { return statement_.operands.size(); }
  const ptx::Operand& operand(size_t i) const;  // error "too few operands" when absent
  void expect_operands(size_t least, size_t most) const;

  // Sources: register, immediate, special register, address of a variable. `bits` is 8, 16, 32, 64
  // or 128; a register must have that size (8: any of 8, 16, 32). loose: a register may be wider
  // (ld/st/cvt operands; PTX ISA 9.4.1).
  Row src(const ptx::Operand& operand, int bits, bool loose = false);
  Row src(size_t i, int bits, bool loose = false) { return src(operand(i), bits, loose); }
  // A source of this type: floating-point literals are converted to it.
  Row src(const ptx::Operand& operand, Type type, bool loose = false);
  Row src(size_t i, Type type, bool loose = false) { return src(operand(i), type, loose); }
  // Destinations: registers; '_' gives kNoRow when sink_allowed.
  Row dst(const ptx::Operand& operand, int bits, bool loose = false, bool sink_allowed = false);
  Row dst(size_t i, int bits, bool loose = false, bool sink_allowed = false) {
    return dst(operand(i), bits, loose, sink_allowed);
  }
  int reg_bits(const ptx::Operand& operand);  // declared size of the register, 0 if not a register
  // As reg_bits, of a source: 0 also of a special register, whose row is as wide as it was asked.
  int source_bits(const ptx::Operand& operand);
  Pred pred_src(const ptx::Operand& operand);
  Pred pred_src(size_t i) { return pred_src(operand(i)); }
  Pred pred_dst(const ptx::Operand& operand);  // kNoRow for '_'
  Pred pred_dst(size_t i) { return pred_dst(operand(i)); }
  bool is_pred(const ptx::Operand& operand);

  // Vector operand {a,b,..}: its elements; a plain operand counts as one element.
  static const std::vector<ptx::Operand>* vector_items(const ptx::Operand& operand);

  // [base+disp]: first (or item-th) component of a bracketed operand. `space` decides how variable
  // names resolve.
  Address address(const ptx::Operand& operand, ptx::Space space = ptx::Space::kGeneric,
                  size_t item = 0);
  Address address(size_t i, ptx::Space space = ptx::Space::kGeneric) {
    return address(operand(i), space);
  }

  int64_t int_constant(const ptx::Operand& operand);  // an immediate integer (error otherwise)
  int64_t int_constant(size_t i) { return int_constant(operand(i)); }
  bool is_int_constant(const ptx::Operand& operand) const {
    return operand.kind == ptx::Operand::Kind::kInt;
  }

  uint32_t label(const ptx::Operand& operand);  // program counter of a label

  // A constant as a row holding `value` in every lane (bits 32 or 64).
  Row constant(uint64_t value, int bits);

  // Memory that lives as long as the decoded kernel. T must be trivially copyable or hold its own
  // memory.
  template <typename T>
  T* make_aux() {
    auto owned = std::make_shared<T>();
    T* raw = owned.get();
    keep(std::move(owned));
    out_.aux = raw;
    return raw;
  }

  [[noreturn]] void unsupported(const std::string& what) const;  // Error{kUnsupported}
  [[noreturn]] void error(const std::string& what) const;        // Error{kParse}

  Row carry_row();  // the carry flag of add.cc and friends (PTX ISA 9.7.2), one row per kernel

  KernelBuilder& builder() { return builder_; }

 private:
  void keep(std::shared_ptr<void> memory);

  KernelBuilder& builder_;
  const ptx::Statement& statement_;
  Instr& out_;
  std::vector<std::string_view> mods_;
};

}  // namespace bwgemm::emulator
