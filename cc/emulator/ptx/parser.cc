// Functions and statements. Registers, labels and variables are only recorded per scope; the
// decoder resolves them.
#include <algorithm>
#include <utility>

#include "emulator/machine/error.h"
#include "emulator/ptx/ast.h"
#include "emulator/ptx/declarations.h"

namespace bwgemm::emulator::ptx {
namespace {

class Parser : Declarations {
 public:
  explicit Parser(Module& module) : Declarations(module.text), module_(module) {}

  void run() {
    while (cur().kind != Token::Kind::kEnd) top_level();
    if (module_.version == 0) fail("no .version directive");
    if (module_.target.empty()) fail("no .target directive");
  }

 private:
  // ---- module level

  void top_level() {
    if (accept(';')) return;
    if (cur().kind != Kind::kDirective)
      fail("expected a directive before '" + std::string(cur().text) + "'");
    const std::string_view word = cur().text;
    if (word == "version") {
      advance();
      if (cur().kind == Kind::kFloat) {
        module_.version = cur().real;
      } else if (cur().kind == Kind::kInt) {
        module_.version = static_cast<double>(cur().value);
      } else {
        fail("malformed .version");
      }
      advance();
    } else if (word == "target") {
      advance();
      module_.target = std::string(expect_name("a target"));
      while (accept(',')) expect_name("a target option");
    } else if (word == "address_size") {
      advance();
      if (expect_int("an address size") != 64) fail(".address_size must be 64");
    } else if (word == "file") {
      file();
    } else if (word == "loc") {
      skip_line();
    } else if (word == "section") {
      advance();
      if (cur().kind == Kind::kDirective || cur().kind == Kind::kName) advance();
      skip_braces();
    } else if (word == "pragma") {
      while (cur().kind != Kind::kEnd && !accept(';')) advance();
    } else {
      linkage();
    }
  }

  void linkage() {
    bool is_extern = false;
    for (;;) {
      if (accept_directive("extern")) {
        is_extern = true;
      } else if (!accept_directive("visible") && !accept_directive("weak") &&
                 !accept_directive("common")) {
        break;
      }
    }
    if (accept_directive("entry")) return function(true);
    if (accept_directive("func")) return function(false);
    Space space;
    if (!variable_space(&space)) fail("unknown directive '." + std::string(cur().text) + "'");
    if (space == Space::kParam || space == Space::kLocal)
      fail("variable in this state space outside a function");
    std::vector<Variable> declared;
    variable_list(space, is_extern, declared);
    expect(';');
    for (Variable& variable : declared) {
      const auto known = module_.variable_index.find(variable.name);
      if (known != module_.variable_index.end()) {
        // A definition may follow a declaration.
        if (!module_.variables[known->second].is_extern)
          fail_at(variable.line, "'" + std::string(variable.name) + "' is defined twice");
        module_.variables[known->second] = std::move(variable);
        continue;
      }
      module_.variable_index[variable.name] = module_.variables.size();
      module_.variables.push_back(std::move(variable));
    }
  }

  // ---- functions

  void function(bool is_entry) {
    auto owned = std::make_unique<Function>();
    Function& f = *owned;
    f.is_entry = is_entry;
    f.line = cur().line;
    if (!is_entry) {
      while (accept_directive("attribute")) skip_parens();
      if (cur().punct() == '(') param_list(f.returns);
    }
    f.name = expect_name("a function name");
    if (cur().punct() == '(') param_list(f.params);
    f.scopes.emplace_back();
    for (;;) {
      if (accept_directive("maxntid")) {
        int dims[3] = {1, 1, 1};
        dimensions(dims);
        const int64_t product = int64_t{dims[0]} * dims[1] * dims[2];
        if (product > 1 << 20) fail(".maxntid out of range");
        f.max_threads = static_cast<int>(product);
      } else if (accept_directive("reqntid")) {
        f.required_ntid[0] = f.required_ntid[1] = f.required_ntid[2] = 1;
        dimensions(f.required_ntid);
      } else if (accept_directive("reqnctapercluster")) {
        f.required_cluster[0] = f.required_cluster[1] = f.required_cluster[2] = 1;
        dimensions(f.required_cluster);
      } else if (accept_directive("explicitcluster")) {
        f.explicit_cluster = true;
      } else if (accept_directive("maxnreg")) {
        f.max_registers = performance_number();
      } else if (accept_directive("minnctapersm")) {
        f.min_ctas = performance_number();
      } else if (accept_directive("maxclusterrank") || accept_directive("maxnctapersm") ||
                 accept_directive("abi_preserve") || accept_directive("abi_preserve_control")) {
        expect_int("a number");
      } else if (accept_directive("noreturn") || accept_directive("blocksareclusters")) {
      } else if (accept_directive("pragma")) {
        while (cur().kind != Kind::kEnd && !accept(';')) advance();
      } else {
        break;
      }
    }
    if (!accept(';')) {
      f.has_body = true;
      if (!is_entry) parameter_registers(f);
      module_.source_lines.push_back({cur().line, 0, 0});  // not the last function's place
      expect('{');
      function_ = &f;
      block(0, 0);
      store_returns(cur().line, 0, {}, false);
      returned_.clear();
      function_ = nullptr;
    }
    const auto known = module_.function_index.find(f.name);
    if (known != module_.function_index.end()) {
      if (known->second->has_body && f.has_body)
        fail_at(f.line, "function '" + std::string(f.name) + "' is defined twice");
      if (!f.has_body) return;
      f.index = known->second->index;
      *known->second = std::move(f);
      return;
    }
    f.index = static_cast<uint32_t>(module_.functions.size());
    module_.function_index[f.name] = owned.get();
    module_.functions.push_back(std::move(owned));
  }

  // Parameters declared as registers are passed in .param variables, as all others are: the
  // function begins with loads of its arguments, and stores its results where it returns.
  void parameter_registers(Function& f) {
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

  void store_returns(int line, int scope, std::string_view guard, bool guard_negated) {
    for (const Returned& r : returned_) {
      Statement s = transfer(*function_, line, scope, "st.param", r.bits, r.name, r.memory);
      s.guard = guard;
      s.guard_negated = guard_negated;
      function_->body.push_back(std::move(s));
    }
  }

  // "ld.param.b32 name, [memory]" and the like.
  static Statement transfer(Function& f, int line, int scope, const std::string& what, int bits,
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

  // Of .maxnreg and .minnctapersm.
  int performance_number() {
    const int64_t value = expect_int("a number");
    if (value < 1 || value > 1024) fail("number out of range");
    return static_cast<int>(value);
  }

  void skip_parens() {
    expect('(');
    while (cur().kind != Kind::kEnd && !accept(')')) advance();
  }

  void dimensions(int* dims) {
    int i = 0;
    do {
      if (i == 3) fail("at most three dimensions");
      const int64_t value = expect_int("a dimension");
      if (value < 1 || value > 1 << 20) fail("dimension out of range");
      dims[i++] = static_cast<int>(value);
    } while (accept(','));
  }

  // Statements up to the closing brace.
  void block(int scope, int depth) {
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

  void label(int scope) {
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

  void body_directive(int scope) {
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

  // .file number "name" {, time, size}
  void file() {
    const int line = cur().line;
    if (ahead(1).kind == Kind::kInt && ahead(2).kind == Kind::kString && ahead(2).line == line) {
      const std::string_view quoted = ahead(2).text;
      module_.files[static_cast<int>(ahead(1).value)] = quoted.substr(1, quoted.size() - 2);
    }
    skip_line();
  }

  // .loc file line column ...; inlined code says its own place, not that of the call.
  void location() {
    const int line = cur().line;
    if (ahead(1).kind == Kind::kInt && ahead(2).kind == Kind::kInt && ahead(2).line == line) {
      module_.source_lines.push_back(
          {line, static_cast<int>(ahead(1).value), static_cast<int>(ahead(2).value)});
    }
    skip_line();
  }

  void registers(int scope) {
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

  void statement(int scope) {
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

  static void split(Statement& s) {
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

  Module& module_;
  Function* function_ = nullptr;
  struct Returned {
    std::string_view name, memory;
    int bits;
  };
  std::vector<Returned> returned_;  // results of the function in registers
};

}  // namespace

std::unique_ptr<Module> parse(std::string text) {
  auto module = std::make_unique<Module>();
  module->text = std::move(text);
  const std::string_view all = module->text;
  for (size_t begin = 0; begin <= all.size();) {
    size_t end = all.find('\n', begin);
    if (end == std::string_view::npos) end = all.size();
    module->lines.push_back(all.substr(begin, end - begin));
    begin = end + 1;
  }
  try {
    Parser(*module).run();
  } catch (const Error& error) {
    throw Error(error.kind, error.line,
                format("line %d: %s: %s", error.line, error.what(),
                       module->quoted_line(error.line).c_str()));
  }
  return module;
}

}  // namespace bwgemm::emulator::ptx
