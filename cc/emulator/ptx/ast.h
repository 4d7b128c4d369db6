// What the parser makes of a PTX text: functions, variables and statements, names not yet resolved
// to registers. All string_views point into Module::text, which the module owns.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace bwgemm::emulator::ptx {

// State spaces of variables (PTX ISA 5.1).
enum class Space : uint8_t { kConst, kGlobal, kLocal, kParam, kShared, kGeneric };

struct Operand {
  enum class Kind : uint8_t {
    kName,     // register, special register, label, variable or function; `value` is a displacement
    kInt,      // `value`
    kFloat,    // `real`; is_single when written 0fXXXXXXXX, then `value` holds the bits
    kVector,   // {a, b, ...}: items
    kAddress,  // [a+4] or [a, {b, c}]: items; each item may carry a displacement in `value`
    kPair,     // a|b: items
    kList,     // (a, b): items, the arguments of a call
    kSink,     // _
  };
  Kind kind = Kind::kSink;
  bool negated = false;  // !p
  bool is_single = false;
  std::string_view name;
  int64_t value = 0;
  double real = 0;
  std::vector<Operand> items;
};

struct Statement {
  int line = 0;
  int scope = 0;
  std::string_view guard;  // predicate name, empty if none
  bool guard_negated = false;
  std::string_view mnemonic;            // "mbarrier.try_wait.parity.shared::cta.b64"
  std::vector<std::string_view> parts;  // the same split at dots
  std::vector<Operand> operands;
};

struct Variable {
  std::string_view name;
  Space space = Space::kGlobal;
  int line = 0;
  int elem_bits = 8;
  uint64_t align = 1;
  uint64_t bytes = 0;  // 0 with is_extern shared: dynamic shared memory
  bool is_extern = false;
  bool in_register = false;   // a parameter declared as .reg
  std::vector<uint8_t> init;  // shorter than bytes: the rest is zero
  struct AddressFixup {
    uint64_t offset;
    int64_t addend;
    std::string_view symbol;
    int mask_byte = -1;  // an element of 8 bits holds this byte of the address; -1: all bytes
  };
  std::vector<AddressFixup> fixups;
};

struct RegDecl {
  int bits = 0;  // 1 for .pred
  int line = 0;
};

// What a call through a pointer passes.
struct Prototype {
  std::vector<Variable> params, returns;
};

struct Scope {
  int parent = -1;
  std::unordered_map<std::string_view, RegDecl> regs;
  std::unordered_map<std::string_view, RegDecl>
      reg_families;  // "%r<100>" under "%r"; count in family_counts
  std::unordered_map<std::string_view, uint64_t> family_counts;
  std::unordered_map<std::string_view, size_t> labels;  // index into Function::body
  std::unordered_map<std::string_view, Variable> variables;
  std::unordered_map<std::string_view, std::vector<std::string_view>> branch_targets;
  std::unordered_map<std::string_view, Prototype> prototypes;
};

struct Function {
  std::string_view name;
  uint32_t index = 0;  // in Module::functions
  int line = 0;
  bool is_entry = false;
  bool has_body = false;
  std::vector<Variable> params;
  std::vector<Variable> returns;
  std::vector<Statement> body;
  std::vector<Scope> scopes;  // [0] is the function's own
  int max_threads = 0;        // product of .maxntid, 0 if not given
  int max_registers = 0;      // .maxnreg, 0 if not given
  int min_ctas = 1;           // .minnctapersm
  int required_ntid[3] = {0, 0, 0};
  int required_cluster[3] = {0, 0, 0};
  bool explicit_cluster = false;
  std::deque<std::string> made_names;  // of what the text does not name
};

// Where the statements of the lines from `line` on come from (.loc); file 0: unknown.
struct SourceLine {
  int line = 0;
  int file = 0;
  int source_line = 0;
};

struct Module {
  std::string text;
  std::string target;  // "sm_100f"
  double version = 0;
  std::vector<Variable> variables;
  std::vector<std::unique_ptr<Function>> functions;
  std::unordered_map<std::string_view, size_t> variable_index;
  std::unordered_map<std::string_view, Function*> function_index;
  std::vector<std::string_view> lines;  // lines[n-1] is line n of the text

  std::unordered_map<int, std::string> files;  // .file
  std::vector<SourceLine> source_lines;        // ascending

  // "kernel.cu:17" for a line of the text, empty if it does not say.
  std::string source_text(int line) const;

  std::string_view line_text(int line) const {
    if (line < 1 || static_cast<size_t>(line) > lines.size()) return {};
    return lines[line - 1];
  }

  // A line for a message: without its indentation, shortened, in ASCII.
  std::string quoted_line(int line) const;
};

// Parses `text`; throws Error{kParse} with the line and its text.
std::unique_ptr<Module> parse(std::string text);

}  // namespace bwgemm::emulator::ptx
