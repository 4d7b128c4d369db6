#include "emulator/ptx/statements.h"

#include <utility>

namespace bwgemm::emulator::ptx {
namespace {

// The parts of a mnemonic, between its dots.
void split(Statement& s) {
  const std::string_view text = s.mnemonic;
  size_t begin = 0;
  while (begin <= text.size()) {
    size_t dot = text.find('.', begin);
    if (dot == std::string_view::npos) dot = text.size();
    std::string_view part = text.substr(begin, dot - begin);
    while (!part.empty() && (part.back() == ' ' || part.back() == '\t' || part.back() == '\n' ||
                             part.back() == '\r'))
      part.remove_suffix(1);
    s.parts.push_back(part);
    begin = dot + 1;
  }
}

// "ld.param.b32 name, [memory]" and the like.
Statement transfer(Function& f, int line, int scope, const std::string& what, int bits,
                   std::string_view name, std::string_view memory) {
  Statement s;
  s.line = line;
  s.scope = scope;
  s.mnemonic = f.made_names.emplace_back(what + ".b" + std::to_string(bits));
  split(s);
  Operand in_register, address;
  in_register.kind = Operand::Kind::kName;
  in_register.name = name;
  address.kind = Operand::Kind::kAddress;
  address.items.push_back(in_register);
  address.items[0].name = memory;
  s.operands = {in_register, address};
  if (what[0] == 's') std::swap(s.operands[0], s.operands[1]);
  return s;
}

}  // namespace

void Statements::body(Function& f) {
  if (!f.is_entry) parameter_registers(f);
  module_.source_lines.push_back({cur().line, 0, 0});  // not the last function's place
  expect('{');
  function_ = &f;
  block(0, 0);
  store_returns(cur().line, 0, {}, false);
  returned_.clear();
  function_ = nullptr;
}

void Statements::parameter_registers(Function& f) {
  for (std::vector<Variable>* variables : {&f.params, &f.returns}) {
    for (Variable& v : *variables) {
      if (!v.in_register) continue;
      const int bits = v.elem_bits;
      if (v.bytes * 8 != static_cast<uint64_t>(bits) || bits > 64) {
        throw Error(ErrorKind::kUnsupported, v.line,
                    "unsupported parameter '" + std::string(v.name) + "' in a register");
      }
      const std::string_view name = v.name;
      f.scopes[0].regs[name] = {bits, v.line};
      v.name = f.made_names.emplace_back(std::string(name) + " in memory");
      if (variables == &f.params) {
        f.body.push_back(transfer(f, v.line, 0, "ld.param", bits, name, v.name));
      } else {
        returned_.push_back({name, v.name, bits});
      }
    }
  }
}

void Statements::store_returns(int line, int scope, std::string_view guard, bool guard_negated) {
  for (const Returned& r : returned_) {
    Statement s = transfer(*function_, line, scope, "st.param", r.bits, r.name, r.memory);
    s.guard = guard;
    s.guard_negated = guard_negated;
    function_->body.push_back(std::move(s));
  }
}

void Statements::block(int scope, int depth) {
  if (depth > 64) fail("blocks nested too deeply");
  while (!accept('}')) {
    if (cur().kind == Kind::kEnd) fail("unexpected end of text inside a function");
    if (accept(';')) continue;
    if (accept('{')) {
      function_->scopes.emplace_back();
      const int inner = static_cast<int>(function_->scopes.size()) - 1;
      function_->scopes[inner].parent = scope;
      block(inner, depth + 1);
    } else if (cur().kind == Kind::kDirective) {
      body_directive(scope);
    } else if (cur().kind == Kind::kName && ahead(1).punct() == ':') {
      label(scope);
    } else {
      statement(scope);
    }
  }
}

void Statements::label(int scope) {
  const std::string_view name = cur().text;
  const int line = cur().line;
  advance();
  advance();
  Scope& s = function_->scopes[scope];
  if (accept_directive("branchtargets")) {
    std::vector<std::string_view> targets;
    do {
      targets.push_back(expect_name("a label"));
    } while (accept(','));
    expect(';');
    s.branch_targets[name] = std::move(targets);
    return;
  }
  if (accept_directive("callprototype")) {
    Prototype& prototype = s.prototypes[name];
    if (cur().punct() == '(') param_list(prototype.returns);
    expect_name("a placeholder for the function's name");
    if (cur().punct() == '(') param_list(prototype.params);
    while (cur().kind != Kind::kEnd && !accept(';')) advance();
    return;
  }
  if (accept_directive("calltargets")) {
    while (cur().kind != Kind::kEnd && !accept(';')) advance();
    return;
  }
  if (!s.labels.emplace(name, function_->body.size()).second)
    fail_at(line, "label '" + std::string(name) + "' is defined twice");
}

void Statements::body_directive(int scope) {
  const std::string_view word = cur().text;
  if (word == "loc") return location();
  if (word == "file") return file();
  if (word == "pragma") {
    while (cur().kind != Kind::kEnd && !accept(';')) advance();
    return;
  }
  if (word == "reg") {
    advance();
    registers(scope);
    return;
  }
  Space space;
  if (!variable_space(&space)) fail("unknown directive '." + std::string(word) + "'");
  std::vector<Variable> declared;
  variable_list(space, false, declared);
  expect(';');
  for (Variable& variable : declared) {
    const std::string_view name = variable.name;
    if (!function_->scopes[scope].variables.emplace(name, std::move(variable)).second) {
      fail("variable '" + std::string(name) + "' is defined twice");
    }
  }
}

void Statements::file() {
  const int line = cur().line;
  if (ahead(1).kind == Kind::kInt && ahead(2).kind == Kind::kString && ahead(2).line == line) {
    const std::string_view quoted = ahead(2).text;
    module_.files[static_cast<int>(ahead(1).value)] = quoted.substr(1, quoted.size() - 2);
  }
  skip_line();
}

void Statements::location() {
  const int line = cur().line;
  if (ahead(1).kind == Kind::kInt && ahead(2).kind == Kind::kInt && ahead(2).line == line) {
    module_.source_lines.push_back(
        {line, static_cast<int>(ahead(1).value), static_cast<int>(ahead(2).value)});
  }
  skip_line();
}

void Statements::registers(int scope) {
  RegDecl decl;
  decl.line = cur().line;
  if (cur().kind == Kind::kDirective && (cur().text == "v2" || cur().text == "v4")) {
    throw Error(ErrorKind::kUnsupported, cur().line, "unsupported vector register declaration");
  }
  decl.bits = cur().kind == Kind::kDirective ? type_bits(cur().text) : 0;
  if (decl.bits == 0) fail("unknown register type '" + std::string(cur().text) + "'");
  advance();
  Scope& s = function_->scopes[scope];
  do {
    const std::string_view name = expect_name("a register name");
    bool fresh;
    if (accept('<')) {
      const int64_t count = expect_int("a register count");
      expect('>');
      if (count < 0 || count > 1 << 20) fail("register count out of range");
      fresh = s.reg_families.emplace(name, decl).second;
      s.family_counts[name] = static_cast<uint64_t>(count);
    } else {
      fresh = s.regs.emplace(name, decl).second;
    }
    if (!fresh) fail("register '" + std::string(name) + "' is declared twice");
  } while (accept(','));
  expect(';');
}

void Statements::statement(int scope) {
  Statement s;
  s.scope = scope;
  s.line = cur().line;
  if (accept('@')) {
    s.guard_negated = accept('!');
    s.guard = expect_name("a predicate");
    s.line = cur().line;
  }
  if (cur().kind != Kind::kName)
    fail("expected an instruction before '" + std::string(cur().text) + "'");
  const char* begin = cur().text.data();
  const char* end = begin + cur().text.size();
  advance();
  // A mnemonic may be broken by white space before a dot.
  while (cur().kind == Kind::kDirective) {
    end = cur().text.data() + cur().text.size();
    advance();
  }
  s.mnemonic = std::string_view(begin, static_cast<size_t>(end - begin));
  split(s);
  expect_lists(s.parts[0] == "call");
  if (cur().punct() != ';') {
    do {
      s.operands.push_back(operand(0));
    } while (accept(','));
  }
  expect(';');
  if (s.parts[0] == "ret") store_returns(s.line, s.scope, s.guard, s.guard_negated);
  function_->body.push_back(std::move(s));
}

}  // namespace bwgemm::emulator::ptx
