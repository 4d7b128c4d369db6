// Which instructions the architecture that a text is for has.
#pragma once

#include <string_view>

#include "emulator/ptx/ast.h"

namespace bwgemm::emulator {

// What the instruction needs, as in "sm_90 or higher", if the target is not that; else empty. A
// target that is not of the form sm_90a has everything.
std::string_view lacking_target(std::string_view target, const ptx::Statement& instruction);

// sm_90 and sm_90a.
bool is_hopper(std::string_view target);

}  // namespace bwgemm::emulator
