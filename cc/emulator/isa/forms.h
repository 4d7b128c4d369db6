// Which modifiers and types the forms of an instruction have.
#pragma once

#include <string_view>
#include <vector>

#include "emulator/ptx/ast.h"

namespace bwgemm::emulator {

// Whether the instruction, of which `prefix_parts` parts are its name, is one of the forms that
// this version of PTX has. True where they are not listed.
bool has_form(const ptx::Statement& instruction, size_t prefix_parts, double version);

}  // namespace bwgemm::emulator
