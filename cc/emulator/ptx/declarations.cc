#include "emulator/ptx/declarations.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace bwgemm::emulator::ptx {
namespace {

constexpr uint64_t kMaxVariableBytes = uint64_t{1} << 28;
constexpr uint64_t kMaxParamElements = 65536;
constexpr int kMaxInitialiserDepth = 16;

}  // namespace

int type_bits(std::string_view name) {
  static const std::pair<std::string_view, int> kTypes[] = {
      {"b8", 8},     {"u8", 8},      {"s8", 8},    {"b16", 16}, {"u16", 16},   {"s16", 16},
      {"f16", 16},   {"bf16", 16},   {"b32", 32},  {"u32", 32}, {"s32", 32},   {"f32", 32},
      {"b64", 64},   {"u64", 64},    {"s64", 64},  {"f64", 64}, {"b128", 128}, {"pred", 1},
      {"f16x2", 32}, {"bf16x2", 32}, {"tf32", 32}, {"e4m3", 8}, {"e5m2", 8}};
  for (const auto& [text, bits] : kTypes) {
    if (text == name) return bits;
  }
  return 0;
}

bool Declarations::variable_space(Space* space) {
  static const std::pair<std::string_view, Space> kSpaces[] = {
      {"global", Space::kGlobal}, {"const", Space::kConst}, {"shared", Space::kShared},
      {"local", Space::kLocal},   {"param", Space::kParam}, {"shared::cta", Space::kShared}};
  if (cur().kind != Kind::kDirective) return false;
  for (const auto& [text, value] : kSpaces) {
    if (cur().text == text) {
      *space = value;
      advance();
      return true;
    }
  }
  return false;
}

bool Declarations::alignment(uint64_t* align) {
  if (!accept_directive("align")) return false;
  const int64_t value = expect_int("an alignment");
  if (value < 1 || value > 65536 || (value & (value - 1)) != 0) {
    fail("alignment must be a power of two up to 65536");
  }
  *align = static_cast<uint64_t>(value);
  return true;
}

bool Declarations::pointer_hint() {
  if (!accept_directive("ptr")) return false;
  Space ignored_space;
  uint64_t ignored_align;
  variable_space(&ignored_space);
  alignment(&ignored_align);
  return true;
}

void Declarations::variable_list(Space space, bool is_extern, std::vector<Variable>& out) {
  Variable model;
  model.space = space;
  model.is_extern = is_extern;
  uint64_t lanes = 1;
  bool typed = false, aligned = false;
  while (cur().kind == Kind::kDirective) {
    const std::string_view word = cur().text;
    if (alignment(&model.align)) {
      aligned = true;
    } else if (word == "attribute") {
      advance();
      expect('(');
      while (cur().kind != Kind::kEnd && !accept(')')) advance();
    } else if (pointer_hint()) {
    } else if (word == "v2" || word == "v4" || word == "v8") {
      lanes = static_cast<uint64_t>(word[1] - '0');
      advance();
    } else if (int bits = type_bits(word); bits >= 8) {
      model.elem_bits = bits;
      typed = true;
      advance();
    } else if (word == "texref" || word == "samplerref" || word == "surfref") {
      throw Error(ErrorKind::kUnsupported, cur().line,
                  "unsupported type '." + std::string(word) + "'");
    } else {
      fail("unknown type '." + std::string(word) + "'");
    }
  }
  if (!typed) fail("variable without a type");
  do {
    Variable variable = model;
    variable.line = cur().line;
    const uint64_t elem_bytes = static_cast<uint64_t>(model.elem_bits / 8) * lanes;
    variable.name = expect_name("a variable name");
    if (!aligned) variable.align = elem_bytes;
    uint64_t count = 1;
    bool open = false;
    while (accept('[')) {
      if (accept(']')) {
        open = true;
        continue;
      }
      const int64_t extent = expect_int("an array extent");
      expect(']');
      if (extent < 0 || static_cast<uint64_t>(extent) > kMaxVariableBytes) {
        fail("array extent out of range");
      }
      count *= static_cast<uint64_t>(extent);
      if (count > kMaxVariableBytes) fail("array too large");
    }
    variable.bytes = open ? 0 : count * elem_bytes;
    if (variable.bytes > kMaxVariableBytes) fail("variable too large");
    if (accept('=')) {
      initializer(variable, 0);
      if (open) variable.bytes = variable.init.size();
      if (variable.init.size() > variable.bytes) fail("more initialisers than elements");
    }
    out.push_back(std::move(variable));
  } while (accept(','));
}

void Declarations::initializer(Variable& variable, int depth) {
  if (depth > kMaxInitialiserDepth) fail("initialiser nested too deeply");
  if (!accept('{')) return initial_value(variable);
  if (accept('}')) return;
  do {
    initializer(variable, depth + 1);
  } while (accept(','));
  expect('}');
}

Variable::AddressFixup Declarations::address() {
  Variable::AddressFixup fixup{0, 0, expect_name("a symbol")};
  if (fixup.symbol == "generic") {
    expect('(');
    fixup.symbol = expect_name("a symbol");
    expect(')');
  }
  if (accept('+')) fixup.addend = integer("an offset");
  return fixup;
}

void Declarations::initial_value(Variable& variable) {
  const size_t bytes = static_cast<size_t>(variable.elem_bits / 8), begin = variable.init.size();
  uint64_t value = 0;
  if (cur().kind == Kind::kInt && ahead(1).punct() == '(') {  // 0xFF00(symbol): one of its bytes
    const uint64_t mask = cur().value;
    int byte = 0;
    while (byte < 8 && mask != uint64_t{0xFF} << (8 * byte)) ++byte;
    if (byte == 8) fail("a mask of an address must be one byte of ones");
    if (bytes != 1) fail("a masked address needs an 8-bit element");
    advance();
    expect('(');
    variable.fixups.push_back(address());
    variable.fixups.back().mask_byte = byte;
    variable.fixups.back().offset = begin;
    expect(')');
  } else if (at_constant()) {
    const Constant c = constant();
    value = c.bits;
    if (c.kind == Constant::Kind::kFloat && bytes == 4) {
      const float single = static_cast<float>(c.real);
      uint32_t bits;
      std::memcpy(&bits, &single, 4);
      value = bits;
    } else if (c.kind == Constant::Kind::kFloat) {
      std::memcpy(&value, &c.real, 8);
    }
  } else if (cur().kind == Kind::kName) {
    variable.fixups.push_back(address());
    variable.fixups.back().offset = begin;
    if (bytes != 8) fail("an address needs a 64-bit element");
  } else {
    fail("unexpected '" + std::string(cur().text) + "' in an initialiser");
  }
  variable.init.resize(begin + bytes, 0);
  std::memcpy(variable.init.data() + begin, &value, std::min<size_t>(bytes, 8));
}

void Declarations::param_list(std::vector<Variable>& params) {
  expect('(');
  if (accept(')')) return;
  do {
    Space space = Space::kParam;
    const bool in_register = accept_directive("reg");
    if (!in_register && (!variable_space(&space) || space != Space::kParam))
      fail("expected .param");
    params.push_back(param());
    params.back().in_register = in_register;
  } while (accept(','));
  expect(')');
}

Variable Declarations::param() {
  Variable model;
  model.space = Space::kParam;
  uint64_t lanes = 1;
  bool typed = false, aligned = false;
  while (cur().kind == Kind::kDirective) {
    const std::string_view word = cur().text;
    if (alignment(&model.align)) {
      aligned = true;
    } else if (pointer_hint()) {
    } else if (word == "v2" || word == "v4") {
      lanes = static_cast<uint64_t>(word[1] - '0');
      advance();
    } else if (int bits = type_bits(word); bits >= 8 || word == "pred") {
      model.elem_bits = bits >= 8 ? bits : 8;
      typed = true;
      advance();
    } else {
      fail("unknown type '." + std::string(word) + "'");
    }
  }
  if (!typed) fail("parameter without a type");
  model.line = cur().line;
  model.name = cur().kind == Kind::kName ? expect_name("a name") : std::string_view("_");
  const uint64_t elem_bytes = static_cast<uint64_t>(model.elem_bits / 8) * lanes;
  if (!aligned) model.align = elem_bytes;
  uint64_t count = 1;
  while (accept('[')) {
    if (accept(']')) continue;
    const int64_t extent = expect_int("an array extent");
    expect(']');
    if (extent < 0 || static_cast<uint64_t>(extent) > kMaxParamElements) {
      fail("parameter array extent out of range");
    }
    count *= static_cast<uint64_t>(extent);
    if (count > kMaxParamElements) fail("parameter array too large");
  }
  model.bytes = count * elem_bytes;
  return model;
}

}  // namespace bwgemm::emulator::ptx
