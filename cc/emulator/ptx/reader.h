// Reads the token list: the part of the parser that knows no grammar.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "emulator/machine/error.h"
#include "emulator/ptx/lexer.h"

namespace bwgemm::emulator::ptx {

class Reader {
 public:
  explicit Reader(std::string_view text) : tokens_(tokenize(text)) {}

 protected:
  using Kind = Token::Kind;

  const Token& cur() const { return tokens_[at_]; }
  const Token& ahead(size_t n) const { return tokens_[std::min(at_ + n, tokens_.size() - 1)]; }
  void advance() {
    if (at_ + 1 < tokens_.size()) ++at_;
  }
  [[noreturn]] void fail_at(int line, const std::string& message) const {
    throw Error(ErrorKind::kParse, line, message);
  }
  [[noreturn]] void fail(const std::string& message) const { fail_at(cur().line, message); }

  bool accept(char c) {
    if (cur().punct() != c || c == '\0') return false;
    advance();
    return true;
  }
  void expect(char c) {
    if (!accept(c)) fail(format("expected '%c' before '%s'", c, std::string(cur().text).c_str()));
  }
  bool accept_directive(std::string_view name) {
    if (cur().kind != Kind::kDirective || cur().text != name) return false;
    advance();
    return true;
  }
  std::string_view expect_name(const char* what) {
    if (cur().kind != Kind::kName)
      fail(format("expected %s before '%s'", what, std::string(cur().text).c_str()));
    const std::string_view text = cur().text;
    advance();
    return text;
  }
  int64_t expect_int(const char* what) {
    const bool negative = accept('-');
    if (cur().kind != Kind::kInt)
      fail(format("expected %s before '%s'", what, std::string(cur().text).c_str()));
    const uint64_t value = cur().value;
    advance();
    return static_cast<int64_t>(negative ? 0 - value : value);
  }
  void skip_line() {
    const int line = cur().line;
    while (cur().kind != Kind::kEnd && cur().line == line) advance();
  }
  void skip_braces() {
    expect('{');
    for (int depth = 1; depth > 0;) {
      if (cur().kind == Kind::kEnd) fail("unbalanced braces");
      if (cur().punct() == '{') ++depth;
      if (cur().punct() == '}') --depth;
      advance();
    }
  }

 private:
  std::vector<Token> tokens_;
  size_t at_ = 0;
};

}  // namespace bwgemm::emulator::ptx
