// Divergence and reconvergence, functions, scheduling, statistics.
#include "emulator/tests/machine_run.h"

using namespace bwgemm::emulator;
using namespace bwgemm::emulator::testing;

namespace {

TEST(loops_of_different_length_reconverge) {
  Run run;
  run(std::string(
          "mov.u32 %r0, 0;\nmov.u32 %r1, 0;\nLOOP:\nsetp.ge.u32 %p0, %r1, %thread;\n@%p0 bra "
          "DONE;\nadd.u32 %r0, %r0, %r1;\nadd.u32 %r1, %r1, 1;\n"
          "bra LOOP;\nDONE:\nactivemask.b32 %r2;\nsetp.eq.u32 %p1, %r2, -1;\n@!%p1 mov.u32 "
          "%r0, 9999;") +
      kStore)
      .ok();
  for (uint32_t t = 0; t < 32; ++t) CHECK_EQ(run.out[t], t * (t - 1) / 2);
}

TEST(nested_divergence) {
  Run run;
  run(std::string(
          "and.b32 %r1, %thread, 1;\nsetp.eq.u32 %p0, %r1, 0;\n@%p0 bra EVEN;\nand.b32 %r2, "
          "%thread, 2;\nsetp.eq.u32 %p1, %r2, 0;\n@%p1 bra ODD0;\n"
          "mov.u32 %r0, 3;\nbra JOIN;\nODD0:\nmov.u32 %r0, 1;\nbra JOIN;\nEVEN:\nmov.u32 "
          "%r0, 0;\nJOIN:\nshfl.sync.bfly.b32 %r3, %r0, 1, 31, -1;\n"
          "mad.lo.u32 %r0, %r3, 16, %r0;") +
      kStore)
      .ok();
  for (uint32_t t = 0; t < 32; ++t) {
    const auto value = [](uint32_t i) { return i % 2 == 0 ? 0u : i % 4; };
    CHECK_EQ(run.out[t], value(t ^ 1) * 16 + value(t));
  }
}

TEST(lanes_of_a_warp_may_wait_for_each_other) {
  // A spin lock taken by all lanes of a warp needs progress of the lane that holds it.
  for (uint64_t seed = 0; seed < 6; ++seed) {
    Run run;
    run.config.seed = seed;
    run.block.x = 64;
    run(".shared .align 4 .u32 lock, count;\nsetp.eq.u32 %p0, %thread, 0;\n@%p0 st.shared.u32 "
        "[lock], "
        "0;\n@%p0 st.shared.u32 [count], 0;\nbar.sync 0;\n"
        "SPIN:\natom.acquire.cta.shared.cas.b32 %r1, [lock], 0, 1;\nsetp.ne.u32 %p1, %r1, 0;\n@%p1 "
        "bra "
        "SPIN;\nld.shared.u32 %r2, [count];\nadd.u32 %r2, %r2, 1;\n"
        "st.shared.u32 [count], %r2;\natom.release.cta.shared.exch.b32 %r1, [lock], 0;\nbar.sync "
        "0;\nld.shared.u32 %r0, [count];\n@%p0 st.global.u32 [%out], %r0;")
        .ok();
    CHECK_EQ(run.out[0], 64u);
  }
}

TEST(functions) {
  Run run;
  run.declarations =
      ".func (.param .b32 result) square(.param .b32 x) {\n.reg .b32 %r<4>;\nld.param.b32 %r1, "
      "[x];\nmul.lo.u32 %r2, %r1, %r1;\nst.param.b32 [result], %r2;\nret;\n}\n"
      ".func (.param .b32 result) choose(.param .b32 x, .param .align 8 .b8 y[8]) {\n.reg .b32 "
      "%r<8>;\n.reg .pred %p<2>;\nld.param.b32 %r1, [x];\nld.param.b32 %r2, [y+4];\n"
      "and.b32 %r3, %r1, 1;\nsetp.eq.u32 %p0, %r3, 0;\n@%p0 bra EVEN;\nst.param.b32 [result], "
      "%r2;\nret;\nEVEN:\n{\n.param .b32 a;\n.param .b32 b;\n"
      "st.param.b32 [a], %r1;\ncall.uni (b), square, (a);\nld.param.b32 %r4, [b];\n}\nst.param.b32 "
      "[result], %r4;\nret;\n}\n";
  run(std::string("{\n.param .b32 a;\n.param .align 8 .b8 b[8];\n.param .b32 c;\nst.param.b32 [a], "
                  "%thread;\nst.param.b32 [b], 1;\nst.param.b32 [b+4], 1000;\n"
                  "call (c), choose, (a, b);\nld.param.b32 %r0, [c];\n}") +
      kStore)
      .ok();
  for (uint32_t t = 0; t < 32; ++t) CHECK_EQ(run.out[t], t % 2 == 0 ? t * t : 1000u);
}

TEST(functions_that_cannot_be_called) {
  Run run;
  run.declarations = ".func f() {\ncall.uni f;\nret;\n}\n";
  run("call.uni f;").fails(ErrorKind::kFault, "recursive call of 'f': the stack of lane 0 is full");
  run.declarations =
      ".func f() {\n.local .align 32 .b8 x[8];\n.reg .b64 %d<2>;\nmov.u64 %d0, x;\ncall.uni "
      "f;\nret;\n}\n";
  run("call.uni f;").fails(ErrorKind::kUnsupported, "variable of a recursive function: too large");
  run.declarations =
      ".func f() {\n.local .b8 x[8];\n.reg .b32 %r<2>;\nmov.u32 %r0, x;\ncall.uni f;\nret;\n}\n";
  run("call.uni f;")
      .fails(ErrorKind::kUnsupported, "32-bit address of a variable of a recursive function");
  run.declarations = ".extern .func g();\n";
  run("call.uni g;").fails(ErrorKind::kFault, "call of 'g', which has no PTX body");
  run.declarations =
      ".global .align 1 .b8 why[5] = {110, 111, 112, 101, 0};\n.extern .func __assertfail(.param "
      ".b64 a, .param .b64 b, .param .b32 c, .param .b64 d, .param .b64 e);\n";
  run("{\n.param .b64 a;\n.param .b64 b;\n.param .b32 c;\n.param .b64 d;\n.param .b64 e;\nmov.u64 "
      "%d1, why;\nst.param.b64 [a], %d1;\nst.param.b64 [b], %d1;\nst.param.b32 [c], 42;\n"
      "st.param.b64 [d], %d1;\nst.param.b64 [e], 1;\ncall.uni __assertfail, (a, b, c, d, e);\n}")
      .fails(ErrorKind::kFault, "device assertion failed in lane 0: 'nope' at nope:42");
  run.declarations.clear();
  run("call.uni nowhere;").fails(ErrorKind::kParse, "call of unknown function 'nowhere'");
}

// A kernel that prints: `values` stores the arguments at [args], which is 64 bytes of local memory.
Run& prints(Run& run, const std::string& format, const std::string& values) {
  std::string bytes;
  for (const char c : format) bytes += std::to_string(int{c}) + ", ";
  run.declarations = ".global .align 1 .b8 format[" + std::to_string(format.size() + 1) + "] = {" +
                     bytes +
                     "0};\n.global .align 1 .b8 word[3] = {104, 105, 0};\n"
                     ".extern .func (.param .b32 r) vprintf(.param .b64 a, .param .b64 b);\n";
  return run("{\n.local .align 8 .b8 args[64];\n.param .b64 a;\n.param .b64 b;\n.param .b32 r;\n" +
             values +
             "mov.u64 %d1, format;\nst.param.b64 [a], %d1;\nmov.u64 %d2, args;\n"
             "cvta.local.u64 %d2, %d2;\nst.param.b64 [b], %d2;\n"
             "call.uni (r), vprintf, (a, b);\nld.param.b32 %r0, [r];\n}" +
             kStore);
}

TEST(printf_of_kernels) {
  std::string printed;
  Run run;
  run.block = {2, 1, 1};
  run.config.print = [&](const std::string& text) { printed += text; };
  prints(run, "%d|%5.2f|%-3s|%llx|%c|%%|%*u\n",
         "add.u32 %r1, %thread, 7;\nst.local.u32 [args], %r1;\n"
         "mov.b64 %d3, 0d3FF8000000000000;\nst.local.b64 [args+8], %d3;\n"
         "mov.u64 %d4, word;\nst.local.u64 [args+16], %d4;\n"
         "mov.u64 %d5, 0x1234567890;\nst.local.u64 [args+24], %d5;\n"
         "mov.u32 %r2, 65;\nst.local.u32 [args+32], %r2;\n"
         "mov.u32 %r3, 4;\nst.local.u32 [args+36], %r3;\nst.local.u32 [args+40], %r3;\n")
      .ok();
  CHECK_EQ(printed, "7| 1.50|hi |1234567890|A|%|   4\n8| 1.50|hi |1234567890|A|%|   4\n");
  CHECK_EQ(run.out[1], 32u);
  printed.clear();
  prints(run, "100%", "").fails(ErrorKind::kFault, "printf: '%' is no conversion");
  prints(run, "%y", "").fails(ErrorKind::kFault, "printf: '%y' is no conversion");
  prints(run, "%9999d", "").fails(ErrorKind::kFault, "a width or precision of more than 4096");
  CHECK_EQ(printed, "");
}

// Damaged formats are printed somehow or reported.
TEST(any_format_ends) {
  const std::string alphabet = "%%%diuxcsfgpe*.0#-+lh 19n";
  uint64_t state = 1;
  int ran = 0, reported = 0;
  for (int turn = 0; turn < 400; ++turn) {
    std::string format = "%";
    for (int i = 0; i < 5; ++i) {
      state = state * 6364136223846793005ull + 1442695040888963407ull;
      format += alphabet[(state >> 33) % alphabet.size()];
    }
    Run run;
    run.block = {1, 1, 1};
    run.config.print = [](const std::string&) {};
    prints(run, format, "st.local.b64 [args], -7;\n");
    ++(run.result.ok ? ran : reported);
    if (!run.result.ok)
      CHECK_EQ(static_cast<int>(run.result.kind), static_cast<int>(ErrorKind::kFault));
  }
  CHECK(ran > 50 && reported > 50);
}

TEST(branch_table) {
  Run run;
  run(std::string("and.b32 %r1, %thread, 3;\nbrx.idx %r1, TABLE;\nA:\nmov.u32 %r0, 10;\nbra "
                  "JOIN;\nB:\nmov.u32 %r0, 11;\nbra JOIN;\nC:\nmov.u32 %r0, 12;\nJOIN:\n"
                  "TABLE: .branchtargets A, B, C, A;\n") +
      kStore)
      .ok();
  for (uint32_t t = 0; t < 32; ++t) CHECK_EQ(run.out[t], t % 4 == 1 ? 11u : t % 4 == 2 ? 12u : 10u);
  run("brx.idx %thread, TABLE;\nA:\nTABLE: .branchtargets A;")
      .fails(ErrorKind::kFault, "brx.idx with index 1 of 1 targets");
}

TEST(warp_barrier_at_two_places) {
  Run run;
  run(std::string("setp.lt.u32 %p0, %thread, 16;\n@%p0 bra LOW;\nbar.warp.sync -1;\nmov.u32 %r0, "
                  "2;\nbra JOIN;\nLOW:\nmov.u32 %r0, 1;\nbar.warp.sync -1;\nJOIN:") +
      kStore)
      .ok();
  CHECK_EQ(run.out[0], 1u);
  CHECK_EQ(run.out[31], 2u);
}

// Tiles of 8 lanes, half of which come on another way.
TEST(lanes_of_a_warp_name_different_members) {
  Run run;
  run(std::string("and.b32 %r1, %thread, 24;\nshl.b32 %r2, 0xff, %r1;\nsetp.lt.u32 %p0, %thread, "
                  "12;\n@%p0 bra LOW;\nbar.warp.sync %r2;\nbra JOIN;\nLOW:\nbar.warp.sync %r2;\n"
                  "JOIN:\nredux.sync.add.u32 %r0, %thread, %r2;\n") +
      kStore)
      .ok();
  CHECK_EQ(run.out[0], 28u);
  CHECK_EQ(run.out[15], 92u);
  CHECK_EQ(run.out[24], 220u);
}

TEST(collectives_need_their_lanes) {
  Run run;
  run("setp.lt.u32 %p0, %thread, 4;\n@%p0 bra END;\nvote.sync.ballot.b32 %r0, %p0, "
      "-1;\nEND:")
      .ok();  // lanes 0-3 exit, so the rest are all
  run("setp.lt.u32 %p0, %thread, 4;\n@%p0 vote.sync.ballot.b32 %r0, %p0, -1;")
      .fails(ErrorKind::kFault,
             "names lanes 0xfffffff0 that reach the instruction but do not execute it");
  run("vote.sync.ballot.b32 %r0, %p0, 1;")
      .fails(ErrorKind::kFault, "execute this without being in its membermask 0x00000001");
  run("setp.lt.u32 %p0, %thread, 4;\n@%p0 bra OTHER;\nvote.sync.ballot.b32 %r0, %p0, -1;\nbra "
      "END;\nOTHER:\nvote.sync.any.pred %p1, %p0, -1;\nEND:")
      .fails(ErrorKind::kDeadlock, "waits for lanes");
  // Even lanes wait for odd ones, which name others.
  run("and.b32 %r0, %thread, 1;\nsetp.eq.u32 %p0, %r0, 0;\nselp.b32 %r1, -1, -2, %p0;\n"
      "vote.sync.ballot.b32 %r0, %p0, %r1;")
      .fails(ErrorKind::kFault, "no membermask names only lanes that name the same members");
}

TEST(reserved_shared_memory_is_there_for_who_asks_where) {
  Run run;
  run(std::string("mov.u32 %r1, %reserved_smem_offset_1;\nmad.lo.u32 %r1, %thread, 4, %r1;\n"
                  "st.shared.u32 [%r1], %thread;\nld.shared.u32 %r0, [%r1];\n") +
      kStore)
      .ok();
  CHECK_EQ(run.out[31], 31u);
  run("mov.u32 %r1, %reserved_smem_offset_begin;\nld.shared.u32 %r0, [%r1];")
      .fails(ErrorKind::kFault, "outside the CTA's shared memory [0x100,");
  run("ld.shared.u32 %r0, [640];").fails(ErrorKind::kFault, "outside the CTA's shared memory");
}

TEST(addresses_of_32_bits_wrap) {
  Run run;
  run(std::string(".shared .align 4 .b8 s[128];\nmov.u32 %r1, s;\nmad.lo.u32 %r2, %thread, 4, "
                  "%r1;\nst.shared.u32 [%r2], %thread;\nbar.sync 0;\nmul.lo.u32 %r3, %thread, "
                  "-4;\nadd.u32 %r3, %r3, %r1;\nsub.u32 %r3, %r3, 4096;\nld.shared.u32 %r0, "
                  "[%r3+4220];") +
      kStore)
      .ok();
  for (uint32_t t = 0; t < 32; ++t) CHECK_EQ(run.out[t], 31 - t);
  run(std::string(".local .align 4 .b8 n[4];\nst.local.u32 [n], 9;\nmov.u32 %r1, n;\nadd.u32 %r1, "
                  "%r1, -2000;\nld.local.u32 %r0, [%r1+2000];") +
      kStore)
      .ok();
  CHECK_EQ(run.out[0], 9u);
}

TEST(step_limit_stops_endless_loops) {
  Run run;
  run.config.step_limit = 100000;
  run("LOOP:\nbra LOOP;").fails(ErrorKind::kStepLimit, "the kernel has not finished after");
  run("LOOP:\nnanosleep.u32 20;\nbra LOOP;");
  CHECK(!run.result.ok);
}

TEST(more_ctas_than_fit) {
  Run run;
  run.grid = {50, 3, 2};
  run.block.x = 40;  // a partial warp
  run.config.sm_count = 2;
  run("atom.global.add.u32 %r1, [%out], 1;\nmov.u32 %r2, %smid;\nmul.wide.u32 %at, %r2, "
      "4;\nadd.s64 %at, %at, %out;\nred.global.add.u32 [%at+4], 1;")
      .ok();
  CHECK_EQ(run.out[0], 50u * 3 * 2 * 40);
  CHECK_EQ(run.out[1] + run.out[2], 50u * 3 * 2 * 40);
  CHECK(run.out[1] > 0 && run.out[2] > 0);
  CHECK_EQ(run.result.stats.ctas, uint64_t{300});
}

TEST(a_seed_reproduces_a_run) {
  const std::string body =
      "atom.global.add.u32 %r0, [%out], 1;\nmov.u32 %r30, %ntid.x;\nmad.lo.u32 %r31, %cta, %r30, "
      "%thread;\nmul.wide.u32 %at, %r31, 4;\nadd.s64 %at, %at, %out;\n"
      "st.global.u32 [%at+4], %r0;";
  const auto order = [&](uint64_t seed) {
    Run run;
    run.grid.x = 4;
    run.block.x = 128;
    run.config.seed = seed;
    run(body).ok();
    return std::vector<uint32_t>(run.out + 1, run.out + 513);
  };
  const auto first = order(1);
  CHECK(first == order(1));
  int different = 0;
  for (uint64_t seed = 2; seed < 8; ++seed) {
    auto other = order(seed);
    different += other != first;
    std::sort(other.begin(), other.end());
    for (uint32_t i = 0; i < 512; ++i) CHECK_EQ(other[i], i);
  }
  CHECK(different >= 4);
}

TEST(trace_and_statistics) {
  struct Sink : TraceSink {
    void event(const TraceEvent& event) override { events.push_back(event); }
    std::vector<TraceEvent> events;
  } sink;
  Run run;
  run.block.x = 64;
  run.config.trace = &sink;
  run("setp.lt.u32 %p0, %thread, 32;\n@%p0 nanosleep.u32 100;\nbar.sync 0;").ok();
  CHECK_EQ(run.result.stats.warps.size(), size_t{2});
  CHECK(run.result.stats.instructions > 10);
  CHECK(run.result.stats.thread_instructions > run.result.stats.instructions);
  bool slept = false;
  for (const TraceEvent& e : sink.events)
    slept = slept || (std::string(e.name) == "nanosleep" && e.kind == TraceEvent::Kind::kWait &&
                      e.end > e.begin && e.warp == 0);
  CHECK(slept);
  CHECK(run.result.stats.warps[0].waits >= 1);
}

}  // namespace

int main(int argc, char** argv) { return run_all(argc, argv); }
