// Operands of instructions (PTX ISA 6.2 - 6.4).
#pragma once

#include "emulator/ptx/ast.h"
#include "emulator/ptx/reader.h"

namespace bwgemm::emulator::ptx {

class Operands : public Reader {
 public:
  using Reader::Reader;

 protected:
  Operand operand(int depth);

 private:
  void list(Operand& operand, char close, int depth);
};

}  // namespace bwgemm::emulator::ptx
