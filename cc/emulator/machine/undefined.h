// Registers that a kernel may read before it writes them. Compilers leave hardly any, so only those
// and what their values may reach are followed while the kernel runs.
#pragma once

#include <cstdint>

#include "emulator/machine/kernel.h"

namespace bwgemm::emulator {

// Fills kernel.tracking and flags the instructions that it names, once all are decoded.
void find_undefined_registers(Kernel& kernel);

}  // namespace bwgemm::emulator
