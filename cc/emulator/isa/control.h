// Control flow helpers that the kernel builder needs.
#pragma once

#include "emulator/machine/kernel_builder.h"

namespace bwgemm::emulator {

// The return that ends every function, whether written or not.
void decode_implicit_return(const KernelBuilder::FunctionInfo& function, Instr* out);

}  // namespace bwgemm::emulator
