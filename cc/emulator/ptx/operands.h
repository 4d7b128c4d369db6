// Operands of instructions (PTX ISA 6.2 - 6.4).
#pragma once

#include "emulator/ptx/ast.h"
#include "emulator/ptx/constants.h"

namespace bwgemm::emulator::ptx {

class Operands : public Constants {
 public:
  using Constants::Constants;

 protected:
  Operand operand(int depth);
  // Whether an operand in parentheses is a list, as those of a call are, and no expression.
  void expect_lists(bool lists) { lists_ = lists; }

 private:
  bool lists_ = false;

  void list(Operand& operand, char close, int depth);
};

}  // namespace bwgemm::emulator::ptx
