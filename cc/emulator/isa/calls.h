// Calls of functions with a body: what they pass, and those of recursive functions.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "emulator/machine/kernel_builder.h"
#include "emulator/machine/launch.h"

namespace bwgemm::emulator {

// What one call passes to one function and gets back.
struct Passing {
  struct Copy {
    uint32_t from, to, bytes;  // local memory
  };
  struct InRegister {
    Row row;
    int bits;
    uint32_t offset;
  };
  std::vector<Copy> arguments, results;
  std::vector<InRegister> argument_registers, result_registers;
  std::string name;  // of the function
  uint32_t begin = 0;
  Row return_row = kNoRow;
  // Where calls of the function lead back to it; `caller`: where they lead to the caller as well.
  std::shared_ptr<RecursiveFunction> callee, caller;
  Row stack_row = kNoRow;
};

// With the address to return to.
void pass_arguments(Warp& w, const Passing& p, uint32_t mask, uint32_t return_pc);

Step exec_recursive_call(Warp& w, const Instr& in, uint32_t mask);
Step exec_recursive_return_site(Warp& w, const Instr& in, uint32_t mask);

}  // namespace bwgemm::emulator
