// Control flow helpers that the kernel builder needs.
#pragma once

#include <string_view>
#include <vector>

#include "emulator/machine/kernel_builder.h"

namespace bwgemm::emulator {

// setmaxnreg is for all warps of a warpgroup. Called for each warp that exits.
void check_registers_at_exit(Warp& w);

// exit, and the return from a kernel.
Step exec_exit(Warp& w, const Instr& in, uint32_t mask);

// The return that ends every function, whether written or not.
void decode_implicit_return(const KernelBuilder& builder, Instr* out);

// A call of a function without a body. Arguments and results are .param variables of the caller, by
// their offsets in local memory.
void decode_extern_call(Decoder& d, std::string_view name, std::vector<uint32_t> arguments,
                        std::vector<uint32_t> results);

}  // namespace bwgemm::emulator
