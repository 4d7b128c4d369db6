// Calls through pointers to functions, and of functions by themselves.
#include "emulator/tests/machine_run.h"

using namespace bwgemm::emulator;
using namespace bwgemm::emulator::testing;

namespace {

const std::string kFunctions =
    ".func (.param .b32 result) twice(.param .b32 x);\n"
    ".func (.param .b32 result) more(.param .b32 x) {\n.reg .b32 %r<4>;\nld.param.b32 %r1, "
    "[x];\nadd.u32 %r1, %r1, 100;\nst.param.b32 [result], %r1;\nret;\n}\n"
    ".func (.param .b32 result) other(.param .b64 x) {\n.reg .b32 %r<4>;\nmov.u32 %r1, "
    "1;\nst.param.b32 [result], %r1;\nret;\n}\n"
    ".global .align 8 .u64 table[3] = {twice, more, generic(other)};\n"
    ".func (.param .b32 result) twice(.param .b32 x) {\n.reg .b32 %r<4>;\nld.param.b32 %r1, "
    "[x];\nshl.b32 %r1, %r1, 1;\nst.param.b32 [result], %r1;\nret;\n}\n";

// Calls what %d1 points to with %thread; the result is stored.
const std::string kCall =
    "{\n.param .b32 a;\n.param .b32 b;\nst.param.b32 [a], %thread;\n"
    "prototype_0: .callprototype (.param .b32 _) _ (.param .b32 _);\n"
    "call (b), %d1, (a), prototype_0;\nld.param.b32 %r0, [b];\n}\n";

const std::string kPick =
    "mov.u64 %d2, table;\nmul.wide.u32 %d3, %r1, 8;\nadd.u64 %d2, %d2, %d3;\nld.global.u64 %d1, "
    "[%d2];\n";

TEST(tables_of_functions) {
  for (uint64_t seed = 0; seed < 4; ++seed) {
    Run run;
    run.config.seed = seed;
    run.declarations = kFunctions;
    run("and.b32 %r1, %thread, 1;\n" + kPick + kCall + kStore).ok();
    for (uint32_t t = 0; t < 32; ++t) CHECK_EQ(run.out[t], t % 2 == 0 ? 2 * t : t + 100);
    CHECK_EQ(run.result.warnings.size(), 0u);
  }
}

TEST(the_address_of_a_function_in_a_register) {
  Run run;
  run.declarations = kFunctions;
  run("setp.lt.u32 %p1, %thread, 5;\nmov.u64 %d1, twice;\nmov.u64 %d2, more;\nselp.b64 %d1, %d1, "
      "%d2, %p1;\n" +
      kCall + kStore)
      .ok();
  for (uint32_t t = 0; t < 32; ++t) CHECK_EQ(run.out[t], t < 5 ? 2 * t : t + 100);
}

TEST(pointers_to_nothing) {
  Run run;
  run.declarations = kFunctions;
  run("mov.u32 %r1, 2;\n" + kPick + kCall + kStore)
      .fails(ErrorKind::kFault, "which is no function with these parameters and results");
  run("mov.u64 %d1, 0;\n" + kCall + kStore)
      .fails(ErrorKind::kFault, "call of 0x0, which is no function");
  run("mov.u64 %d1, more;\nld.global.u32 %r0, [%d1];\n")
      .fails(ErrorKind::kFault, "read of 4 bytes");
  // A variable that another module defines, in a table that this kernel leaves alone.
  run.declarations =
      ".extern .global .u64 elsewhere;\n.global .align 8 .u64 t[2] = {0, elsewhere};\n";
  run(std::string("mov.u32 %r0, 3;\n") + kStore).ok();
}

TEST(functions_of_another_kind_do_not_matter) {
  Run run;
  run.declarations = kFunctions +
                     ".func odd(.param .b64 x) {\ncall odd, (x);\nret;\n}\n"
                     ".global .align 8 .u64 odds[1] = {odd};\n";
  run("mov.u64 %d1, twice;\n" + kCall + kStore).ok();
  CHECK_EQ(run.out[7], 14u);
}

// The guard of the call and the result's register are of each call.
TEST(a_guarded_call_of_the_function_itself) {
  Run run;
  run.declarations =
      ".func (.param .b32 result) product(.param .b32 x) {\n.reg .b32 %r<8>;\n.reg .pred %p<2>;\n"
      "ld.param.b32 %r1, [x];\nmov.u32 %r2, 7;\nsetp.gt.u32 %p1, %r1, 1;\nsub.u32 %r3, %r1, 1;\n"
      "@%p1 call (%r2), product, (%r3);\nld.param.b32 %r4, [x];\n@%p1 mul.lo.u32 %r2, %r2, %r4;\n"
      "st.param.b32 [result], %r2;\nret;\n}\n";
  run(std::string("rem.u32 %r0, %thread, 10;\ncall (%r0), product, (%r0);\n") + kStore).ok();
  for (uint32_t t = 0; t < 32; ++t) {
    uint32_t expected = 7;
    for (uint32_t i = 2; i <= t % 10; ++i) expected *= i;
    CHECK_EQ(run.out[t], expected);
  }
}

TEST(recursion_through_a_pointer_is_refused) {
  Run run;
  run.declarations =
      ".global .align 8 .u64 table[1] = {again};\n"
      ".func (.param .b32 result) again(.param .b32 x) {\n.reg .b32 %thread, %r<4>;\n.reg .b64 "
      "%d<4>;\nld.param.b32 %thread, [x];\nld.global.u64 %d1, [table];\n" +
      kCall + "st.param.b32 [result], %r0;\nret;\n}\n";
  run("ld.global.u64 %d1, [table];\n" + kCall + kStore)
      .fails(ErrorKind::kUnsupported, "unsupported recursive call of 'again'");
}

TEST(parameters_in_registers) {
  Run run;
  run.declarations =
      ".func (.reg .u32 rv) sum(.reg .u32 a, .reg .u32 b);\n"
      ".func (.reg .u32 rv) sum(.reg .u32 a, .reg .u32 b) {\nadd.u32 rv, a, b;\nret;\n}\n"
      // Returns early in some lanes, and at its end without saying so; changes its argument.
      ".func (.reg .u64 wide, .param .b32 kept) mixed(.reg .u64 a, .param .b32 b) {\n.reg .pred "
      "p;\n.reg .b32 r;\nld.param.b32 r, [b];\nst.param.b32 [kept], r;\nmov.u64 wide, "
      "7;\nsetp.gt.u32 p, r, 15;\n@p ret;\nadd.u64 a, a, 1;\nmov.u64 wide, a;\n}\n"
      ".func (.reg .u32 f) factorial(.reg .u32 n) {\n.reg .pred p;\n.reg .b32 r;\nmov.u32 f, "
      "1;\nsetp.eq.u32 p, n, 0;\n@p ret;\nsub.u32 r, n, 1;\ncall (r), factorial, (r);\nmul.lo.u32 "
      "f, r, n;\nret;\n}\n";
  run(std::string("mov.u32 %r1, 100;\ncall (%r0), sum, (%thread, %r1);") + kStore).ok();
  for (uint32_t t = 0; t < 32; ++t) CHECK_EQ(run.out[t], t + 100);
  run(std::string("{\n.param .b32 b, kept;\nst.param.b32 [b], %thread;\ncvt.u64.u32 %d1, "
                  "%thread;\ncall (%d2, kept), mixed, (%d1, b);\nld.param.b32 %r0, [kept];\n"
                  "cvt.u32.u64 %r1, %d2;\nmad.lo.u32 %r0, %r1, 1000, %r0;\n}") +
      kStore)
      .ok();
  for (uint32_t t = 0; t < 32; ++t) CHECK_EQ(run.out[t], 1000 * (t > 15 ? 7 : t + 1) + t);
  run(std::string("and.b32 %r1, %thread, 7;\ncall (%r0), factorial, (%r1);") + kStore).ok();
  CHECK_EQ(run.out[0], 1u);
  CHECK_EQ(run.out[13], 120u);
}

}  // namespace

int main(int argc, char** argv) { return run_all(argc, argv); }
