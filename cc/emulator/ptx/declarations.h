// Variables and parameters (PTX ISA 5.4): state space, type, alignment, extent, initialiser.
#pragma once

#include <string_view>
#include <vector>

#include "emulator/ptx/ast.h"
#include "emulator/ptx/operands.h"

namespace bwgemm::emulator::ptx {

// Size in bits of a fundamental type, 0 if it is none.
int type_bits(std::string_view name);

class Declarations : public Operands {
 public:
  using Operands::Operands;

 protected:
  // Consumes .global, .shared and so on.
  bool variable_space(Space* space);
  // What follows the state space, up to the semicolon.
  void variable_list(Space space, bool is_extern, std::vector<Variable>& out);
  // "(.param .b32 a, ...)"
  void param_list(std::vector<Variable>& params);

 private:
  // .align n, if it is next.
  bool alignment(uint64_t* align);
  // .ptr [.space] [.align n], if it is next: a hint about the pointer, not about the variable.
  bool pointer_hint();
  void initializer(Variable& variable, int depth);
  void initial_value(Variable& variable);
  // symbol, generic(symbol), either with an offset
  Variable::AddressFixup address();
  Variable param();
};

}  // namespace bwgemm::emulator::ptx
