// What the lexer and the parser refuse, and what a kernel may not declare.
#include "emulator/tests/machine_run.h"

using namespace bwgemm::emulator;
using namespace bwgemm::emulator::testing;

namespace {

std::string refusal(const std::string& text, bool decode = false) {
  try {
    const auto module = Module::load(text);
    if (decode) module->kernel("k");
    return "accepted";
  } catch (const Error& error) {
    return error.what();
  }
}

const std::string kHeader = ".version 8.8\n.target sm_100a\n.address_size 64\n";

TEST(module_directives) {
  const std::pair<std::string, const char*> cases[] = {
      {".target sm_90\n", "no .version directive"},
      {".version 8.0\n", "no .target directive"},
      {"add.u32;\n", "expected a directive before 'add.u32'"},
      {".version x\n", "malformed .version"},
      {".version 8.0\n.target sm_90\n.address_size 32\n", ".address_size must be 64"},
      {kHeader + ".bogus;\n", "unknown directive '.bogus'"},
      {kHeader + ".param .b32 x;\n", "variable in this state space outside a function"},
      {kHeader + ".global .b32 x;\n.global .b32 x;\n", "'x' is defined twice"},
      {kHeader + ".func f() {\n}\n.func f() {\n}\n", "function 'f' is defined twice"},
      {kHeader + ".entry k() .maxntid 1048576, 1048576 {\n}\n", ".maxntid out of range"},
      {kHeader + ".entry k() .maxntid 1, 1, 1, 1 {\n}\n", "at most three dimensions"},
      {kHeader + ".entry k() .maxntid 0 {\n}\n", "dimension out of range"},
      {kHeader + ".section .debug {\n", "unbalanced braces"},
      {kHeader + ".func f() {\n.func g;\n}\n", "unknown directive '.func'"},
      {kHeader + ".func f() {\n.reg .v2 .b32 x;\n}\n", "unsupported vector register declaration"},
      {kHeader + ".func f() {\n.reg .bogus x;\n}\n", "unknown register type 'bogus'"},
      {kHeader + ".func f() {\n.reg .b32 x<2000000>;\n}\n", "register count out of range"},
      {kHeader + ".func f() {\n.local .b32 x;\n.local .b32 x;\n}\n",
       "variable 'x' is defined twice"},
      {kHeader + ".func f() {\n@p 5;\n}\n", "expected an instruction before '5'"},
      {kHeader + ".func f() " + std::string(100, '{'), "blocks nested too deeply"},
  };
  for (const auto& [text, message] : cases) CHECK_TEXT(refusal(text), message);
  CHECK_TEXT(refusal(kHeader + ".bogus;\n"), "line 4: unknown directive '.bogus': .bogus;");
}

TEST(variables_and_parameters) {
  const std::pair<std::string, const char*> cases[] = {
      {".global .align 3 .b32 x;", "alignment must be a power of two up to 65536"},
      {".global .texref x;", "unsupported type '.texref'"},
      {".global .bogus x;", "unknown type '.bogus'"},
      {".global x;", "variable without a type"},
      {".global .b32 x[-1];", "array extent out of range"},
      {".global .b8 x[268435456][2];", "array too large"},
      {".global .b64 x[268435456];", "variable too large"},
      {".global .b32 x[1] = {1, 2};", "more initialisers than elements"},
      {".global .b32 x[1] = " + std::string(20, '{'), "initialiser nested too deeply"},
      {".global .b32 x = x;", "an address needs a 64-bit element"},
      {".global .b64 x = y;",
       "initialiser of 'x' refers to 'y', which is neither a "
       "global variable nor a function"},
      {".global .b32 x = [;", "unexpected '[' in an initialiser"},
      {".func f(.global .b32 x);", "expected .param"},
      {".func f(.param .bogus x);", "unknown type '.bogus'"},
      {".func f(.param x);", "parameter without a type"},
      {".func f(.param .b8 x[70000]);", "parameter array extent out of range"},
      {".func f(.param .b8 x[60000][60000]);", "parameter array too large"},
  };
  for (const auto& [text, message] : cases) CHECK_TEXT(refusal(kHeader + text + "\n"), message);
}

TEST(tokens_and_operands) {
  const std::pair<std::string, const char*> cases[] = {
      {".file 1 \"x\n", "unterminated string"},
      {"/* x", "unterminated comment"},
      {"mov.f32 x, 0f123;", "malformed floating-point literal"},
      {"mov.f32 x, 0f3F8000001;", "malformed floating-point literal"},
      {"mov.f32 x, 1.5e;", "malformed number '1.5e'"},
      {"mov.u32 x, 12ab;", "malformed number"},
      {"mov.u32 x, " + std::string(20, '{') + ";", "operand nested too deeply"},
      {"mov.u32 x, !_;", "'!' needs a predicate"},
      {"mov.u32 x, ~y;", "'~' needs an integer"},
      {"mov.u32 x, -y;", "'-' needs a number"},
      {"ld.u32 x, [];", "empty address"},
      {"mov.u32 x, =;", "unexpected '=' in an operand"},
  };
  for (const auto& [text, message] : cases) {
    CHECK_TEXT(refusal(kHeader + ".func f() {\n" + text + "\n}\n"), message);
  }
}

TEST(kernels_that_are_too_large) {
  const auto kernel = [](const std::string& params, const std::string& body) {
    return kHeader + ".entry k(" + params + ") {\n.reg .b32 %r<2>;\n.reg .b64 %d<2>;\n" + body +
           "\n}\n";
  };
  const std::pair<std::string, const char*> cases[] = {
      {kernel("", ".local .b8 l[2000000];\nmov.u64 %d0, l;"), "more than 1 MiB of local memory"},
      {kernel("", ".shared .b8 s[200000000];\nmov.u32 %r0, s;"), "too much static shared memory"},
      {kernel("", ".global .b32 g;\nmov.u64 %d0, g;"),
       "global or constant variable inside a function"},
      {".extern .global .b32 g;\n" + kernel("", "mov.u64 %d0, g;").substr(kHeader.size()),
       "extern variable 'g' is not defined"},
      {kernel(".param .b8 a[65536], .param .b8 b[65536]", ""),
       "line 4: more than 64 KiB of parameters"},
      {kHeader + ".entry k();\n", "line 4: entry without a body"},
      {kHeader + ".entry k() .maxnreg 0 {\n}\n", "number out of range"},
      {kHeader + ".entry k() .minnctapersm 2000 {\n}\n", "number out of range"},
      {kHeader + ".func f(.reg .b128 q) {\n}\n.entry k() {\n}\n",
       "unsupported parameter 'q' in a register"},
  };
  for (const auto& [text, message] : cases) {
    CHECK_TEXT(refusal(text[1] == 'e' && text[2] == 'x' ? kHeader + text : text, true), message);
  }
  std::string chain;
  for (int i = 70; i >= 0; --i) {
    chain += ".func f" + std::to_string(i) + "() {\n" +
             (i < 70 ? "call.uni f" + std::to_string(i + 1) + ";\n" : "") + "}\n";
  }
  CHECK_TEXT(refusal(kHeader + chain + ".entry k() {\ncall.uni f0;\n}\n", true),
             "line 21: calls nested too deeply: .func f64() {");
}

TEST(launch_limits) {
  Run run;
  run.grid = {1, 70000, 1};
  run("").fails(ErrorKind::kLaunch, "is too large");
  run.grid = {1, 1, 1};
  run.config.sm_count = 0;
  run("").fails(ErrorKind::kLaunch, "sm_count 0 is not between 1 and 4096");
}

}  // namespace

int main(int argc, char** argv) { return run_all(argc, argv); }
