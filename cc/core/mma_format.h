// What tcgen05.mma's instruction descriptor calls the type of an operand (PTX ISA, "Instruction
// descriptor"). A type of 4 bits is that of .kind::mxf4nvf4.
#pragma once

#include <cstdint>

#include "core/types.h"
#include "cute/arch/mma_sm100_desc.hpp"

namespace bwgemm {

constexpr uint8_t MmaFormat(DType type) {
  using namespace cute::UMMA;
  return type == DType::kF16    ? static_cast<uint8_t>(F16F32Format::F16)
         : type == DType::kBF16 ? static_cast<uint8_t>(F16F32Format::BF16)
         : type == DType::kE4M3 ? static_cast<uint8_t>(MXF8F6F4Format::E4M3)
         : type == DType::kE5M2 ? static_cast<uint8_t>(MXF8F6F4Format::E5M2)
                                : static_cast<uint8_t>(MXF4Format::E2M1);
}

}  // namespace bwgemm
