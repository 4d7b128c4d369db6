#include "emulator/ptx/lexer.h"

#include <cstdlib>
#include <cstring>
#include <string>

#include "emulator/machine/error.h"

namespace bwgemm::emulator::ptx {
namespace {

bool is_name_start(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '$' || c == '%';
}
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name_char(char c) { return is_name_start(c) || is_digit(c); }
int hex_digit(char c) {
  if (is_digit(c)) return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

class Lexer {
 public:
  explicit Lexer(std::string_view text) : text_(text) {}

  std::vector<Token> run() {
    std::vector<Token> tokens;
    tokens.reserve(text_.size() / 4);
    for (;;) {
      skip_space();
      Token token;
      token.line = line_;
      const size_t begin = at_;
      if (at_ >= text_.size()) {
        tokens.push_back(token);
        return tokens;
      }
      const char c = text_[at_];
      if (is_name_start(c)) {
        name();
        token.kind = Token::Kind::kName;
      } else if (c == '.' && at_ + 1 < text_.size() && is_name_start(text_[at_ + 1])) {
        ++at_;
        while (at_ < text_.size() && is_name_char(text_[at_])) ++at_;
        // ".param::entry" and the like
        while (peek(0) == ':' && peek(1) == ':' && is_name_char(peek(2))) {
          at_ += 2;
          while (at_ < text_.size() && is_name_char(text_[at_])) ++at_;
        }
        token.kind = Token::Kind::kDirective;
        token.text = text_.substr(begin + 1, at_ - begin - 1);
        tokens.push_back(token);
        continue;
      } else if (is_digit(c)) {
        number(token);
      } else if (c == '"') {
        ++at_;
        while (at_ < text_.size() && text_[at_] != '"' && text_[at_] != '\n')
          at_ += text_[at_] == '\\' ? 2 : 1;
        if (at_ >= text_.size() || text_[at_] != '"') fail("unterminated string");
        ++at_;
        token.kind = Token::Kind::kString;
      } else if (std::strchr("{}[](),;:|+-*/<>=!@~&^?.", c) != nullptr && c != '\0') {
        ++at_;
        token.kind = Token::Kind::kPunct;
      } else {
        fail(format("unexpected character 0x%02x", static_cast<unsigned char>(c)));
      }
      token.text = text_.substr(begin, at_ - begin);
      tokens.push_back(token);
    }
  }

 private:
  char peek(size_t ahead) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0'; }

  [[noreturn]] void fail(const std::string& message) const {
    throw Error(ErrorKind::kParse, line_, message);
  }

  void skip_space() {
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '\n') {
        ++line_;
        ++at_;
      } else if (c == ' ' || c == '\t' || c == '\r' || c == '\f' || c == '\v') {
        ++at_;
      } else if (c == '/' && peek(1) == '/') {
        while (at_ < text_.size() && text_[at_] != '\n') ++at_;
      } else if (c == '/' && peek(1) == '*') {
        at_ += 2;
        while (at_ < text_.size() && !(text_[at_] == '*' && peek(1) == '/'))
          line_ += text_[at_++] == '\n';
        if (at_ >= text_.size()) fail("unterminated comment");
        at_ += 2;
      } else if (c == '#' && peek(1) != '\0') {  // preprocessor line markers
        while (at_ < text_.size() && text_[at_] != '\n') ++at_;
      } else if (c == '\0' && at_ + 1 == text_.size()) {
        ++at_;  // texts cut out of a fat binary end in NUL
      } else {
        return;
      }
    }
  }

  void name() {
    for (;;) {
      while (at_ < text_.size() && is_name_char(text_[at_])) ++at_;
      if (peek(0) == '.' && is_name_char(peek(1))) {
        ++at_;
      } else if (peek(0) == ':' && peek(1) == ':' && is_name_char(peek(2))) {
        at_ += 2;
      } else {
        return;
      }
    }
  }

  void number(Token& token) {
    token.kind = Token::Kind::kInt;
    const char second = peek(1);
    if (peek(0) == '0' && (second == 'f' || second == 'F' || second == 'd' || second == 'D')) {
      const int digits = second == 'f' || second == 'F' ? 8 : 16;
      uint64_t bits = 0;
      at_ += 2;
      for (int i = 0; i < digits; ++i, ++at_) {
        const int digit = hex_digit(peek(0));
        if (digit < 0) fail("malformed floating-point literal");
        bits = bits << 4 | static_cast<uint64_t>(digit);
      }
      token.kind = Token::Kind::kFloat;
      token.value = bits;
      token.is_single = digits == 8;
      if (digits == 8) {
        float single;
        const uint32_t low = static_cast<uint32_t>(bits);
        std::memcpy(&single, &low, 4);
        token.real = single;
      } else {
        std::memcpy(&token.real, &bits, 8);
      }
      if (is_name_char(peek(0))) fail("malformed floating-point literal");
      return;
    }
    uint64_t base = 10;
    if (peek(0) == '0' && (second == 'x' || second == 'X')) {
      base = 16;
      at_ += 2;
    } else if (peek(0) == '0' && (second == 'b' || second == 'B')) {
      base = 2;
      at_ += 2;
    } else if (peek(0) == '0' && is_digit(second)) {
      base = 8;
    }
    const size_t begin = at_;
    uint64_t value = 0;
    bool fits = true;
    while (hex_digit(peek(0)) >= 0 && static_cast<uint64_t>(hex_digit(peek(0))) < base) {
      const uint64_t digit = static_cast<uint64_t>(hex_digit(peek(0)));
      fits = fits && value <= (~uint64_t{0} - digit) / base;
      value = value * base + digit;
      ++at_;
    }
    if (at_ == begin) fail("malformed number");
    if (base == 10 && ((peek(0) == '.' && is_digit(peek(1))) || peek(0) == 'e' || peek(0) == 'E' ||
                       (peek(0) == '.' && !is_name_char(peek(1))))) {
      size_t end = at_;
      while (end < text_.size() &&
             (is_digit(text_[end]) || text_[end] == '.' || text_[end] == 'e' || text_[end] == 'E' ||
              ((text_[end] == '+' || text_[end] == '-') &&
               (text_[end - 1] == 'e' || text_[end - 1] == 'E')))) {
        ++end;
      }
      const std::string digits(text_.substr(begin, end - begin));
      char* stop = nullptr;
      token.real = std::strtod(digits.c_str(), &stop);
      if (stop != digits.c_str() + digits.size()) fail("malformed number '" + digits + "'");
      token.kind = Token::Kind::kFloat;
      std::memcpy(&token.value, &token.real, 8);
      at_ = end;
      return;
    }
    token.is_unsigned = peek(0) == 'U' || value >> 63 != 0;
    if (peek(0) == 'U') ++at_;
    if (is_name_char(peek(0))) fail("malformed number");
    if (!fits) fail("integer literal of more than 64 bits");
    token.value = value;
  }

  std::string_view text_;
  size_t at_ = 0;
  int line_ = 1;
};

}  // namespace

std::vector<Token> tokenize(std::string_view text) { return Lexer(text).run(); }

}  // namespace bwgemm::emulator::ptx
