// Arithmetic as IEEE 754 has it, for as long as an object lives.
//
// Who calls may have told the processor to take subnormal numbers for zeros: XLA does, in its
// threads. Kernels say so themselves, instruction by instruction.
#pragma once

#include <cfenv>

namespace bwgemm::emulator {

class FloatMode {
 public:
  FloatMode() {
    std::fegetenv(&callers_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~FloatMode() { std::fesetenv(&callers_); }
  FloatMode(const FloatMode&) = delete;
  FloatMode& operator=(const FloatMode&) = delete;

 private:
  std::fenv_t callers_;
};

}  // namespace bwgemm::emulator
