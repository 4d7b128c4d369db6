#include "emulator/ptx/constants.h"

#include <string>

namespace bwgemm::emulator::ptx {
namespace {

constexpr int kMaxConstantDepth = 64;

using Number = Constant::Kind;

Constant of_bits(uint64_t bits, bool is_unsigned) {
  Constant c;
  c.kind = is_unsigned ? Number::kUnsigned : Number::kSigned;
  c.bits = bits;
  return c;
}
Constant of_truth(bool truth) { return of_bits(truth, false); }

template <typename T>
bool compare(std::string_view op, T a, T b) {
  return op == "<"    ? a < b
         : op == ">"  ? a > b
         : op == "<=" ? a <= b
         : op == ">=" ? a >= b
         : op == "==" ? a == b
                      : a != b;
}
bool compares(std::string_view op) {
  return op != "<<" && op != ">>" && (op[0] == '<' || op[0] == '>' || op == "==" || op == "!=");
}

uint64_t shift(std::string_view op, const Constant& a, uint64_t count) {
  const bool fills = op == ">>" && a.kind == Number::kSigned && static_cast<int64_t>(a.bits) < 0;
  if (count >= 64) return fills ? ~uint64_t{0} : 0;
  if (op == "<<") return a.bits << count;
  return fills ? ~(~a.bits >> count) : a.bits >> count;
}

// The quotient or the rest. Of signed numbers, both are formed from the absolute values.
uint64_t divide(bool rest, uint64_t a, uint64_t b, bool is_unsigned) {
  const bool a_negative = !is_unsigned && static_cast<int64_t>(a) < 0;
  const bool b_negative = !is_unsigned && static_cast<int64_t>(b) < 0;
  const uint64_t x = a_negative ? 0 - a : a, y = b_negative ? 0 - b : b;
  const uint64_t value = rest ? x % y : x / y;
  return (rest ? a_negative : a_negative != b_negative) ? 0 - value : value;
}

}  // namespace

bool Constants::at_constant() const {
  const std::string_view starts = "-+~!(";
  return cur().kind == Token::Kind::kInt || cur().kind == Token::Kind::kFloat ||
         at_size_of_warp() || (cur().punct() != '\0' && starts.find(cur().punct()) != starts.npos);
}

int64_t Constants::integer(const char* what) {
  if (!at_constant())
    fail(format("expected %s before '%s'", what, std::string(cur().text).c_str()));
  const Constant c = constant();
  if (c.kind == Number::kFloat) fail(format("expected %s, which is an integer", what));
  return static_cast<int64_t>(c.bits);
}

// Operators of two characters are two tokens that touch. '%' alone is a name to the lexer.
const Constants::Operator* Constants::binary_operator() const {
  static constexpr Operator kOperators[] = {{"||", 1}, {"&&", 2}, {"==", 6}, {"!=", 6}, {"<=", 7},
                                            {">=", 7}, {"<<", 8}, {">>", 8}, {"|", 3},  {"^", 4},
                                            {"&", 5},  {"<", 7},  {">", 7},  {"+", 9},  {"-", 9},
                                            {"*", 10}, {"/", 10}, {"%", 10}};
  std::string_view text = cur().text;
  if (cur().punct() == '\0' && text != "%") return nullptr;
  const std::string_view next = ahead(1).text;
  const bool touch = ahead(1).punct() != '\0' && next.data() == text.data() + 1;
  const std::string_view two(text.data(), touch ? 2 : 1);
  for (const Operator& op : kOperators) {
    if (op.text == (op.text.size() == 2 ? two : text)) return &op;
  }
  return nullptr;
}

Constant Constants::conditional(int depth) {
  const Constant condition = binary(1, depth);
  if (!accept('?')) return condition;
  if (condition.kind == Number::kFloat) fail("'?' needs an integer");
  const Constant yes = conditional(depth + 1);
  expect(':');
  const Constant no = conditional(depth + 1);
  return condition.bits != 0 ? yes : no;
}

Constant Constants::binary(int least_level, int depth) {
  Constant left = unary(depth);
  for (;;) {
    const Operator* op = binary_operator();
    if (op == nullptr || op->level < least_level) return left;
    for (size_t i = 0; i < op->text.size(); ++i) advance();
    left = apply(op->text, left, binary(op->level + 1, depth + 1));
  }
}

Constant Constants::unary(int depth) {
  if (depth > kMaxConstantDepth) fail("constant expression nested too deeply");
  const char op = cur().punct();
  if (op == '(' && ahead(1).kind == Token::Kind::kDirective) {
    advance();
    const std::string_view type = cur().text;
    if (type != "s64" && type != "u64") fail("a constant can be cast to .s64 and .u64 alone");
    advance();
    expect(')');
    const Constant c = unary(depth + 1);
    if (c.kind == Number::kFloat) fail("a cast needs an integer");
    return of_bits(c.bits, type == "u64");
  }
  if (op != '-' && op != '+' && op != '~' && op != '!') return primary(depth);
  advance();
  const bool number = at_constant();
  Constant c;
  if (number) c = unary(depth + 1);
  const bool is_float = c.kind == Number::kFloat;
  if (!number || (is_float && (op == '~' || op == '!')))
    fail(format("'%c' needs %s", op, op == '~' || op == '!' ? "an integer" : "a number"));
  if (op == '+') return c;
  if (op == '!') return of_truth(c.bits == 0);
  if (op == '~') return of_bits(~c.bits, c.kind == Number::kUnsigned);
  if (!is_float) return of_bits(0 - c.bits, c.kind == Number::kUnsigned);
  c.real = -c.real;
  c.bits ^= uint64_t{1} << (c.is_single ? 31 : 63);
  return c;
}

Constant Constants::primary(int depth) {
  if (accept('(')) {
    const Constant c = conditional(depth + 1);
    expect(')');
    return c;
  }
  const Token token = cur();
  if (!at_constant()) fail("unexpected '" + std::string(token.text) + "' in a constant expression");
  advance();
  if (token.kind == Token::Kind::kName) return of_bits(32, false);
  if (token.kind == Token::Kind::kInt) return of_bits(token.value, token.is_unsigned);
  Constant c;
  c.kind = Number::kFloat;
  c.bits = token.value;
  c.real = token.real;
  c.is_single = token.is_single;
  return c;
}

Constant Constants::apply(std::string_view op, const Constant& a, const Constant& b) const {
  if ((a.kind == Number::kFloat) != (b.kind == Number::kFloat))
    fail("an integer and a floating-point number in one constant expression");
  if (a.kind == Number::kFloat) return apply_float(op, a.real, b.real);
  if (op == "&&") return of_truth(a.bits != 0 && b.bits != 0);
  if (op == "||") return of_truth(a.bits != 0 || b.bits != 0);
  if (op == "<<" || op == ">>") return of_bits(shift(op, a, b.bits), a.kind == Number::kUnsigned);
  const bool is_unsigned = a.kind == Number::kUnsigned || b.kind == Number::kUnsigned;
  if (compares(op)) {
    return of_truth(is_unsigned
                        ? compare(op, a.bits, b.bits)
                        : compare(op, static_cast<int64_t>(a.bits), static_cast<int64_t>(b.bits)));
  }
  switch (op[0]) {
    case '+':
      return of_bits(a.bits + b.bits, is_unsigned);
    case '-':
      return of_bits(a.bits - b.bits, is_unsigned);
    case '*':
      return of_bits(a.bits * b.bits, is_unsigned);
    case '&':
      return of_bits(a.bits & b.bits, is_unsigned);
    case '|':
      return of_bits(a.bits | b.bits, is_unsigned);
    case '^':
      return of_bits(a.bits ^ b.bits, is_unsigned);
    default:
      if (b.bits == 0) fail("division by zero in a constant expression");
      return of_bits(divide(op == "%", a.bits, b.bits, is_unsigned), is_unsigned);
  }
}

Constant Constants::apply_float(std::string_view op, double a, double b) const {
  if (compares(op)) return of_truth(compare(op, a, b));
  Constant c;
  c.kind = Number::kFloat;
  if (op == "+") {
    c.real = a + b;
  } else if (op == "-") {
    c.real = a - b;
  } else if (op == "*") {
    c.real = a * b;
  } else if (op == "/") {
    c.real = a / b;
  } else {
    fail("'" + std::string(op) + "' needs integers");
  }
  return c;
}

}  // namespace bwgemm::emulator::ptx
