// A module: its directives, variables and functions.
#include <utility>

#include "emulator/machine/error.h"
#include "emulator/ptx/ast.h"
#include "emulator/ptx/statements.h"

namespace bwgemm::emulator::ptx {
namespace {

class Parser : Statements {
 public:
  explicit Parser(Module& module) : Statements(module) {}

  void run() {
    while (cur().kind != Token::Kind::kEnd) top_level();
    if (module_.version == 0) fail("no .version directive");
    if (module_.target.empty()) fail("no .target directive");
  }

 private:
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
      body(f);
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
