// Tokens of a PTX text (PTX ISA 4.1 - 4.5).
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace bwgemm::emulator::ptx {

struct Token {
  enum class Kind : uint8_t {
    kName,       // identifier or whole mnemonic: dots and '::' inside belong to it
    kDirective,  // .reg, .b32: text without the dot
    kInt,
    kFloat,
    kString,
    kPunct,  // one character
    kEnd,
  };
  Kind kind = Kind::kEnd;
  int line = 0;
  std::string_view text;
  uint64_t value = 0;        // kInt; bits of 0f/0d literals
  double real = 0;           // kFloat
  bool is_single = false;    // 0f literal
  bool is_unsigned = false;  // kInt: with U, or beyond signed numbers of 64 bits
  char punct() const { return kind == Kind::kPunct ? text[0] : '\0'; }
};

// Throws Error{kParse}. The last token is kEnd.
std::vector<Token> tokenize(std::string_view text);

}  // namespace bwgemm::emulator::ptx
