#include "emulator/ptx/operands.h"

#include <utility>

namespace bwgemm::emulator::ptx {
namespace {

constexpr int kMaxOperandDepth = 16;

}  // namespace

Operand Operands::operand(int depth) {
  if (depth > kMaxOperandDepth) fail("operand nested too deeply");
  Operand o;
  const Token& token = cur();
  if (token.punct() == '!' && ahead(1).kind == Kind::kName && ahead(1).text != "WARP_SZ") {
    advance();
    o = operand(depth + 1);
    if (o.kind != Operand::Kind::kName) fail("'!' needs a predicate");
    o.negated = true;
    return o;
  }
  if (accept('{')) {
    o.kind = Operand::Kind::kVector;
    list(o, '}', depth);
    return o;
  }
  if (lists_ && depth == 0 && accept('(')) {
    o.kind = Operand::Kind::kList;
    list(o, ')', depth);
    return o;
  }
  if (accept('[')) {
    o.kind = Operand::Kind::kAddress;
    list(o, ']', depth);
    if (o.items.empty()) fail("empty address");
    return o;
  }
  if (at_constant()) {
    const Constant c = constant();
    o.kind = c.kind == Constant::Kind::kFloat ? Operand::Kind::kFloat : Operand::Kind::kInt;
    o.value = static_cast<int64_t>(c.bits);
    o.real = c.real;
    o.is_single = c.is_single;
    return o;
  }
  if (token.kind != Kind::kName) fail("unexpected '" + std::string(token.text) + "' in an operand");
  if (token.text == "_") {
    advance();
    if (accept('|')) {
      o.kind = Operand::Kind::kPair;
      o.items.emplace_back();
      o.items.push_back(operand(depth + 1));
    }
    return o;
  }
  o.kind = Operand::Kind::kName;
  o.name = token.text;
  advance();
  if (accept('+') || (cur().punct() == '-' && ahead(1).kind == Kind::kInt)) {
    o.value = integer("an offset");
  } else if (cur().punct() == '[' && ahead(1).kind == Kind::kInt) {
    advance();
    o.value = expect_int("an index");
    expect(']');
  } else if (accept('|')) {
    Operand pair;
    pair.kind = Operand::Kind::kPair;
    pair.items.push_back(std::move(o));
    pair.items.push_back(operand(depth + 1));
    return pair;
  }
  return o;
}

void Operands::list(Operand& o, char close, int depth) {
  if (accept(close)) return;
  do {
    o.items.push_back(operand(depth + 1));
  } while (accept(','));
  expect(close);
}

}  // namespace bwgemm::emulator::ptx
