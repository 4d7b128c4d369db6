// Memory faults, module variables, damaged texts and wrong launches.
#include "emulator/tests/machine_run.h"

using namespace bwgemm::emulator;
using namespace bwgemm::emulator::testing;

namespace {

TEST(memory_faults) {
  Run run;
  run("ld.global.u32 %r0, [%out+16384];").fails(ErrorKind::kFault, "0 bytes past the end of 'out'");
  run("st.global.u32 [%out+-4], %r0;").fails(ErrorKind::kFault, "4 bytes before 'out'");
  run("ld.global.u32 %r0, [%out+2];").fails(ErrorKind::kFault, "is not a multiple of 4");
  run("ld.global.v4.u32 {%r0, %r1, %r2, %r3}, [%out+8];")
      .fails(ErrorKind::kFault, "is not a multiple of 16");
  run("ld.global.u32 %r0, [16];").fails(ErrorKind::kFault, "in no registered memory");
  run("ld.shared.u32 %r0, [1024];")
      .fails(ErrorKind::kFault, "are outside the CTA's shared memory [0x400, 0x400)");
  run("ld.shared.u32 %r0, [0];").fails(ErrorKind::kFault, "are outside the CTA's shared memory");
  run(".local .align 4 .b8 l[8];\nld.local.u32 %r0, [l+8];")
      .fails(ErrorKind::kFault, "are outside the thread's 8 bytes");
  run("mov.b64 %d1, out;\ncvta.param.u64 %d1, %d1;\nst.u64 [%d1], %d1;")
      .fails(ErrorKind::kFault, "write to the kernel's parameters");
  run("ld.param.u64 %d1, [out+8];")
      .fails(ErrorKind::kFault, "are outside the kernel's 8 bytes of parameters");
  run.declarations = ".const .align 4 .u32 c = 5;\n";
  run("mov.u64 %d1, c;\nst.global.u32 [%d1], 1;").fails(ErrorKind::kFault, "read-only");
  run("trap;").fails(ErrorKind::kFault, "trap executed");
  CHECK_TEXT(run.result.error, "line 15: trap executed: trap; [CTA (0,0,0), warp 0]");
  CHECK_EQ(run.result.line, 15);
}

TEST(module_variables) {
  Run run;
  run.declarations =
      ".global .align 4 .u32 table[4] = {1, 2, 3};\n.const .align 8 .u64 pointer = "
      "table+8;\n.global .align 4 .f32 real = 0f3F800000;\n.global .align 8 .b8 zero[16];\n";
  run(std::string("mov.u64 %d1, pointer;\nld.const.u64 %d2, [%d1];\nld.global.u32 %r1, "
                  "[%d2];\nld.global.u32 %r2, [table+4];\nld.global.f32 %f1, "
                  "[real];\ncvt.rzi.u32.f32 %r3, %f1;\n"
                  "ld.global.u32 %r4, [zero+12];\nmad.lo.u32 %r0, %r1, 10, %r2;\nmad.lo.u32 %r0, "
                  "%r0, 10, %r3;\nmad.lo.u32 %r0, %r0, 10, %r4;") +
      kStore)
      .ok();
  CHECK_EQ(run.out[0], 3210u);
}

TEST(unsupported_and_malformed) {
  Run run;
  run("frobnicate.u32 %r0, %r1;")
      .fails(ErrorKind::kUnsupported,
             "line 14: unsupported instruction 'frobnicate.u32': frobnicate.u32 %r0, %r1;");
  run("add.u32.bogus %r0, %r1, %r2;")
      .fails(ErrorKind::kUnsupported, "unsupported modifier '.bogus'");
  run("add.u32 %r0, %r1;").fails(ErrorKind::kParse, "too few operands");
  run("add.u32 %r0, %r1, %r2, %r3;").fails(ErrorKind::kParse, "too many operands");
  run("add.u32 %r0, %d1, %r2;").fails(ErrorKind::kParse, "register '%d1' has 64 bits, expected 32");
  run("add.u32 %r0, %r99, %r2;").fails(ErrorKind::kParse, "unknown register or variable '%r99'");
  run("bra NOWHERE;").fails(ErrorKind::kParse, "unknown label 'NOWHERE'");
  run("add.u32 %p0, %r1, %r2;").fails(ErrorKind::kParse, "'%p0' is not a register");
  run("@%r1 bra NOWHERE;").fails(ErrorKind::kParse, "'%r1' is not a predicate");
  run("X:\nX:\n").fails(ErrorKind::kParse, "label 'X' is defined twice");
  run(".reg .b32 %thread;\n").fails(ErrorKind::kParse, "register '%thread' is declared twice");
  run("add.u32 %r0, %r1, %r2").fails(ErrorKind::kParse, "expected ';' before 'ret'");
  run("mov.u32 %r0, 0x;").fails(ErrorKind::kParse, "malformed number");
  run("{\n").fails(ErrorKind::kParse, "unexpected end of text inside a function");
  run("\x01").fails(ErrorKind::kParse, "unexpected character 0x01");
  run("setmaxnreg.inc.sync.aligned.u32 23;")
      .fails(ErrorKind::kParse, "register count must be a multiple of 8 from 24 to 256");
}

TEST(launch_errors) {
  Run run;
  run.block.x = 2000;
  run("").fails(ErrorKind::kLaunch, "has more than 1024 threads");
  run.block = {0, 1, 1};
  run("").fails(ErrorKind::kLaunch, "dimensions must be positive");
  run.block = {64, 1, 1};
  run.directives = ".maxntid 32 ";
  run("").fails(ErrorKind::kLaunch, "a block of 64 threads, but the kernel allows 32");
  run.directives = ".reqntid 128 ";
  run("").fails(ErrorKind::kLaunch, "the kernel requires (128,1,1) (.reqntid)");
  run.directives = ".reqnctapercluster 2 ";
  run("").fails(ErrorKind::kLaunch, "the kernel requires (2,1,1) (.reqnctapercluster)");
  run.directives.clear();
  run.cluster.x = 2;
  run("").fails(ErrorKind::kLaunch, "is not a multiple of the cluster");
  run.grid.x = run.cluster.x = 32;
  run("").fails(ErrorKind::kLaunch, "more than 16 CTAs");
  run.grid.x = run.cluster.x = 8;
  run("").fails(ErrorKind::kLaunch, "a cluster of 8 CTAs does not fit on 4 SMs");
  run.grid.x = run.cluster.x = 1;
  run(".shared .align 4 .b8 s[300000];\nmov.u32 %r1, s;")
      .fails(ErrorKind::kLaunch, "300000 bytes of shared memory per CTA, at most 232448 allowed");

  GlobalMemory memory;
  const auto module = Module::load(Run::text("", "", ""));
  LaunchConfig config;
  LaunchResult result = launch(memory, *module, "k", std::vector<uint8_t>(9), {1, 1, 1}, {32, 1, 1},
                               {1, 1, 1}, 0, config);
  CHECK_TEXT(result.error, "9 bytes of parameters, the kernel takes 8");
  result = launch(memory, *module, "other", std::vector<uint8_t>(8), {1, 1, 1}, {32, 1, 1},
                  {1, 1, 1}, 0, config);
  CHECK_TEXT(result.error, "the module has no kernel 'other'");
  config.progress = [](uint64_t, uint64_t) { return false; };
  result = launch(memory, *module, "k", std::vector<uint8_t>(8), {1, 1, 1}, {32, 1, 1}, {1, 1, 1},
                  0, config);
  CHECK_TEXT(result.error, "launch stopped by its progress callback");
}

TEST(memory_registration) {
  GlobalMemory memory;
  uint8_t bytes[64];
  memory.add(bytes, 32, true, "a");
  bool refused = false;
  try {
    memory.add(bytes + 16, 32, true, "b");
  } catch (const Error& error) {
    refused = true;
    CHECK_TEXT(error.what(), "memory 'b' overlaps 'a'");
  }
  CHECK(refused);
  CHECK(memory.find(reinterpret_cast<uintptr_t>(bytes), 32, true) == bytes);
  CHECK(memory.find(reinterpret_cast<uintptr_t>(bytes), 33, true) == nullptr);
  memory.remove(bytes);
  CHECK(memory.find(reinterpret_cast<uintptr_t>(bytes), 1, false) == nullptr);
}

}  // namespace

int main(int argc, char** argv) { return run_all(argc, argv); }
