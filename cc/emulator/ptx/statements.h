// Functions' bodies. Registers, labels and variables are only recorded per scope; the decoder
// resolves them.
#pragma once

#include <string_view>
#include <vector>

#include "emulator/ptx/declarations.h"

namespace bwgemm::emulator::ptx {

class Statements : public Declarations {
 public:
  explicit Statements(Module& module) : Declarations(module.text), module_(module) {}

 protected:
  // "{ ... }" of a function whose name and parameters are known.
  void body(Function& f);
  // .file number "name" {, time, size}
  void file();

  Module& module_;

 private:
  // Parameters declared as registers are passed in .param variables, as all others are: the
  // function begins with loads of its arguments, and stores its results where it returns.
  void parameter_registers(Function& f);
  void store_returns(int line, int scope, std::string_view guard, bool guard_negated);

  // Up to the closing brace.
  void block(int scope, int depth);
  void label(int scope);
  void body_directive(int scope);
  // .loc file line column ...; inlined code says its own place, not that of the call.
  void location();
  void registers(int scope);
  void statement(int scope);

  Function* function_ = nullptr;
  struct Returned {
    std::string_view name, memory;
    int bits;
  };
  std::vector<Returned> returned_;  // results of the function in registers
};

}  // namespace bwgemm::emulator::ptx
