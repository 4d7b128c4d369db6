// The machine: divergence, scheduling, barriers, clusters, memory faults, asynchronous copies, deadlock and launch errors.
#include <algorithm>
#include <cstring>

#include "emulator/tests/tensor_kernel.h"

using namespace bwgemm::emulator;
using namespace bwgemm::emulator::testing;

namespace {

constexpr int kOut = 4096;

// A kernel with %out (u64, pointer to kOut u32, preset to 0), %tid, %cta, %rank; registers %r<32>, %d<16>, %p<8>, %f<8>.
struct Run {
  Dim3 grid, block{32, 1, 1}, cluster;
  LaunchConfig config;
  std::string declarations;  // before the entry
  std::string directives;    // after the parameters
  LaunchResult result;
  uint32_t out[kOut];

  static std::string text(const std::string& declarations, const std::string& directives, const std::string& body) {
    return ".version 8.8\n.target sm_100a\n.address_size 64\n" + declarations +
           "\n.visible .entry k(.param .u64 out) " + directives +
           "{\n.reg .b64 %out, %at, %d<16>;\n.reg .b32 %tid, %cta, %rank, %r<32>;\n.reg .pred %p<8>;\n.reg .f32 %f<8>;\n"
           "ld.param.u64 %out, [out];\nmov.u32 %tid, %tid.x;\nmov.u32 %cta, %ctaid.x;\nmov.u32 %rank, %cluster_ctarank;\n" +
           body + "\nret;\n}\n";
  }

  Run& operator()(const std::string& body) {
    Launcher launcher;
    launcher.grid = grid;
    launcher.block = block;
    launcher.cluster = cluster;
    launcher.config = config;
    Buffer buffer(kOut * 4);
    launcher.add(buffer, true, "out");
    result = launcher.run(text(declarations, directives, body), Params().u64(buffer.address()));
    std::memcpy(out, buffer.data(), sizeof out);
    return *this;
  }
  Run& ok() {
    CHECK_TEXT(result.error, "");
    CHECK(result.ok);
    return *this;
  }
  Run& fails(ErrorKind kind, const std::string& message) {
    CHECK(!result.ok);
    CHECK_EQ(static_cast<int>(result.kind), static_cast<int>(kind));
    CHECK_TEXT(result.error, message);
    return *this;
  }
};

// out[global thread] = %r0.
const char* kStore =
    "\nmov.u32 %r30, %ntid.x;\nmad.lo.u32 %r31, %cta, %r30, %tid;\nmul.wide.u32 %at, %r31, 4;\nadd.s64 %at, %at, %out;\nst.global.u32 [%at], %r0;\n";

TEST(loops_of_different_length_reconverge) {
  Run run;
  run(std::string("mov.u32 %r0, 0;\nmov.u32 %r1, 0;\nLOOP:\nsetp.ge.u32 %p0, %r1, %tid;\n@%p0 bra DONE;\nadd.u32 %r0, %r0, %r1;\nadd.u32 %r1, %r1, 1;\n"
                  "bra LOOP;\nDONE:\nactivemask.b32 %r2;\nsetp.eq.u32 %p1, %r2, -1;\n@!%p1 mov.u32 %r0, 9999;") + kStore).ok();
  for (uint32_t t = 0; t < 32; ++t) CHECK_EQ(run.out[t], t * (t - 1) / 2);
}

TEST(nested_divergence) {
  Run run;
  run(std::string("and.b32 %r1, %tid, 1;\nsetp.eq.u32 %p0, %r1, 0;\n@%p0 bra EVEN;\nand.b32 %r2, %tid, 2;\nsetp.eq.u32 %p1, %r2, 0;\n@%p1 bra ODD0;\n"
                  "mov.u32 %r0, 3;\nbra JOIN;\nODD0:\nmov.u32 %r0, 1;\nbra JOIN;\nEVEN:\nmov.u32 %r0, 0;\nJOIN:\nshfl.sync.bfly.b32 %r3, %r0, 1, 31, -1;\n"
                  "mad.lo.u32 %r0, %r3, 16, %r0;") + kStore).ok();
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
    run(".shared .align 4 .u32 lock, count;\nsetp.eq.u32 %p0, %tid, 0;\n@%p0 st.shared.u32 [lock], 0;\n@%p0 st.shared.u32 [count], 0;\nbar.sync 0;\n"
        "SPIN:\natom.shared.cas.b32 %r1, [lock], 0, 1;\nsetp.ne.u32 %p1, %r1, 0;\n@%p1 bra SPIN;\nld.shared.u32 %r2, [count];\nadd.u32 %r2, %r2, 1;\n"
        "st.shared.u32 [count], %r2;\natom.shared.exch.b32 %r1, [lock], 0;\nbar.sync 0;\nld.shared.u32 %r0, [count];\nst.global.u32 [%out], %r0;").ok();
    CHECK_EQ(run.out[0], 64u);
  }
}

TEST(an_mbarrier_wait_lets_other_lanes_run) {
  Run run;
  run(std::string(".shared .align 8 .b64 bar;\nmov.u32 %r1, bar;\nsetp.eq.u32 %p0, %tid, 0;\n@%p0 mbarrier.init.shared.b64 [%r1], 31;\nbar.warp.sync -1;\n"
                  "@!%p0 bra ARRIVE;\nWAIT:\nmbarrier.try_wait.parity.shared.b64 %p1, [%r1], 0;\n@!%p1 bra WAIT;\nmov.u32 %r0, 7;\nbra JOIN;\nARRIVE:\n"
                  "mbarrier.arrive.shared.b64 _, [%r1];\nmov.u32 %r0, 1;\nJOIN:") + kStore).ok();
  CHECK_EQ(run.out[0], 7u);
  CHECK_EQ(run.out[5], 1u);
}

TEST(functions) {
  Run run;
  run.declarations =
      ".func (.param .b32 result) square(.param .b32 x) {\n.reg .b32 %r<4>;\nld.param.b32 %r1, [x];\nmul.lo.u32 %r2, %r1, %r1;\nst.param.b32 [result], %r2;\nret;\n}\n"
      ".func (.param .b32 result) choose(.param .b32 x, .param .align 8 .b8 y[8]) {\n.reg .b32 %r<8>;\n.reg .pred %p<2>;\nld.param.b32 %r1, [x];\nld.param.b32 %r2, [y+4];\n"
      "and.b32 %r3, %r1, 1;\nsetp.eq.u32 %p0, %r3, 0;\n@%p0 bra EVEN;\nst.param.b32 [result], %r2;\nret;\nEVEN:\n{\n.param .b32 a;\n.param .b32 b;\n"
      "st.param.b32 [a], %r1;\ncall.uni (b), square, (a);\nld.param.b32 %r4, [b];\n}\nst.param.b32 [result], %r4;\nret;\n}\n";
  run(std::string("{\n.param .b32 a;\n.param .align 8 .b8 b[8];\n.param .b32 c;\nst.param.b32 [a], %tid;\nst.param.b32 [b], 1;\nst.param.b32 [b+4], 1000;\n"
                  "call (c), choose, (a, b);\nld.param.b32 %r0, [c];\n}") + kStore).ok();
  for (uint32_t t = 0; t < 32; ++t) CHECK_EQ(run.out[t], t % 2 == 0 ? t * t : 1000u);
}

TEST(functions_that_cannot_be_called) {
  Run run;
  run.declarations = ".func f() {\ncall.uni f;\nret;\n}\n";
  run("call.uni f;").fails(ErrorKind::kUnsupported, "recursive function 'f'");
  run.declarations = ".extern .func g();\n";
  run("call.uni g;").fails(ErrorKind::kFault, "call of 'g', which has no PTX body");
  run.declarations = ".global .align 1 .b8 why[5] = {110, 111, 112, 101, 0};\n.extern .func __assertfail(.param .b64 a, .param .b64 b, .param .b32 c, .param .b64 d, .param .b64 e);\n";
  run("{\n.param .b64 a;\n.param .b64 b;\n.param .b32 c;\n.param .b64 d;\n.param .b64 e;\nmov.u64 %d1, why;\nst.param.b64 [a], %d1;\nst.param.b64 [b], %d1;\nst.param.b32 [c], 42;\n"
      "st.param.b64 [d], %d1;\nst.param.b64 [e], 1;\ncall.uni __assertfail, (a, b, c, d, e);\n}")
      .fails(ErrorKind::kFault, "device assertion failed in lane 0: 'nope' at nope:42");
  run.declarations.clear();
  run("call.uni nowhere;").fails(ErrorKind::kUnsupported, "indirect call through 'nowhere'");
}

TEST(branch_table) {
  Run run;
  run(std::string("and.b32 %r1, %tid, 3;\nbrx.idx %r1, TABLE;\nA:\nmov.u32 %r0, 10;\nbra JOIN;\nB:\nmov.u32 %r0, 11;\nbra JOIN;\nC:\nmov.u32 %r0, 12;\nJOIN:\n"
                  "TABLE: .branchtargets A, B, C, A;\n") + kStore).ok();
  for (uint32_t t = 0; t < 32; ++t) CHECK_EQ(run.out[t], t % 4 == 1 ? 11u : t % 4 == 2 ? 12u : 10u);
  run("brx.idx %tid, TABLE;\nA:\nTABLE: .branchtargets A;").fails(ErrorKind::kFault, "brx.idx with index 1 of 1 targets");
}

TEST(named_barriers) {
  // Warps 0 and 1 produce for warp 2 through barrier 3: arrive does not wait.
  for (uint64_t seed = 0; seed < 8; ++seed) {
    Run run;
    run.config.seed = seed;
    run.block.x = 96;
    run(".shared .align 4 .u32 s[64];\nmov.u32 %r1, s;\nsetp.ge.u32 %p0, %tid, 64;\n@%p0 bra CONSUME;\nmad.lo.u32 %r2, %tid, 4, %r1;\nst.shared.u32 [%r2], %tid;\n"
        "bar.arrive 3, 96;\nbra END;\nCONSUME:\nbar.sync 3, 96;\nsub.u32 %r3, %tid, 64;\nmad.lo.u32 %r2, %r3, 8, %r1;\nld.shared.v2.u32 {%r4, %r5}, [%r2];\n"
        "add.u32 %r4, %r4, %r5;\nmul.wide.u32 %at, %r3, 4;\nadd.s64 %at, %at, %out;\nst.global.u32 [%at], %r4;\nEND:").ok();
    for (uint32_t t = 0; t < 32; ++t) CHECK_EQ(run.out[t], 4 * t + 1);
  }
}

TEST(named_barrier_faults) {
  Run run;
  run.block.x = 64;
  run("bar.sync 16;").fails(ErrorKind::kFault, "barrier 16: there are 16");
  run("bar.sync 1, 33;").fails(ErrorKind::kFault, "barrier 1 with 33 threads: not a positive multiple of 32");
  run("setp.lt.u32 %p0, %tid, 32;\n@%p0 bra ONE;\nbar.sync 1, 96;\nbra END;\nONE:\nbar.sync 1, 64;\nEND:").fails(ErrorKind::kFault, "barrier 1 is used with");
  run("setp.lt.u32 %p0, %tid, 32;\n@%p0 bra END;\nbar.sync 2, 64;\nEND:").fails(ErrorKind::kDeadlock, "waits for barrier 2: 32 of 64 threads have arrived");
}

TEST(exited_warps_do_not_hold_up_a_barrier) {
  Run run;
  run.block.x = 96;
  run(std::string("setp.lt.u32 %p0, %tid, 32;\n@%p0 exit;\nbar.sync 0;\nmov.u32 %r0, 5;") + kStore).ok();
  CHECK_EQ(run.out[40], 5u);
}

TEST(warp_barrier_at_two_places) {
  Run run;
  run(std::string("setp.lt.u32 %p0, %tid, 16;\n@%p0 bra LOW;\nbar.warp.sync -1;\nmov.u32 %r0, 2;\nbra JOIN;\nLOW:\nmov.u32 %r0, 1;\nbar.warp.sync -1;\nJOIN:") + kStore).ok();
  CHECK_EQ(run.out[0], 1u);
  CHECK_EQ(run.out[31], 2u);
}

TEST(collectives_need_their_lanes) {
  Run run;
  run("setp.lt.u32 %p0, %tid, 4;\n@%p0 bra END;\nshfl.sync.idx.b32 %r0, %tid, 0, 31, -1;\nEND:").ok();  // lanes 0-3 exit, so the rest are all
  run("setp.lt.u32 %p0, %tid, 4;\n@%p0 vote.sync.ballot.b32 %r0, %p0, -1;").fails(ErrorKind::kFault, "names lanes 0xfffffff0 that reach the instruction but do not execute it");
  run("vote.sync.ballot.b32 %r0, %p0, 1;").fails(ErrorKind::kFault, "execute this without being in its membermask 0x00000001");
  run("setp.lt.u32 %p0, %tid, 4;\n@%p0 bra OTHER;\nvote.sync.ballot.b32 %r0, %p0, -1;\nbra END;\nOTHER:\nvote.sync.any.pred %p1, %p0, -1;\nEND:")
      .fails(ErrorKind::kDeadlock, "waits for lanes");
}

TEST(clusters_share_memory) {
  for (uint64_t seed = 0; seed < 4; ++seed) {
    Run run;
    run.grid.x = 4;
    run.cluster.x = 2;
    run.config.seed = seed;
    // Each CTA writes its id into its neighbour, then reads its own.
    run(std::string(".shared .align 4 .u32 s[32];\nmov.u32 %r1, s;\nmad.lo.u32 %r1, %tid, 4, %r1;\nxor.b32 %r2, %rank, 1;\nmapa.shared::cluster.u32 %r3, %r1, %r2;\n"
                    "add.u32 %r4, %cta, 100;\nst.shared::cluster.u32 [%r3], %r4;\nbarrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;\n"
                    "ld.shared.u32 %r0, [%r1];\nbarrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;") + kStore).ok();
    for (uint32_t i = 0; i < 128; ++i) CHECK_EQ(run.out[i], (i / 32 ^ 1) + 100);
  }
}

TEST(cluster_faults) {
  Run run;
  run.grid.x = run.cluster.x = 2;
  run(".shared .align 4 .u32 s;\nmov.u32 %r1, s;\nmapa.shared::cluster.u32 %r2, %r1, 2;").fails(ErrorKind::kFault, "mapa with rank 2 in a cluster of 2");
  run(".shared .align 4 .u32 s;\nmov.u32 %r1, s;\nxor.b32 %r2, %rank, 1;\nmapa.shared::cluster.u32 %r2, %r1, %r2;\nld.shared::cta.u32 %r0, [%r2];")
      .fails(ErrorKind::kFault, "is not in the shared memory of this CTA");
  run("barrier.cluster.wait;").fails(ErrorKind::kFault, "barrier.cluster.wait without an arrive before it");
  run("barrier.cluster.arrive;\nbarrier.cluster.arrive;").fails(ErrorKind::kFault, "barrier.cluster.arrive twice without a wait in between");
  // One CTA leaves early; writing to it afterwards is an error on every schedule that gets there later.
  bool seen = false;
  for (uint64_t seed = 0; seed < 10; ++seed) {
    run.config.seed = seed;
    run(".shared .align 4 .u32 s;\nmov.u32 %r1, s;\nsetp.eq.u32 %p0, %rank, 1;\n@%p0 exit;\nmapa.shared::cluster.u32 %r2, %r1, 1;\nnanosleep.u32 1000;\nst.shared::cluster.u32 [%r2], 1;");
    seen = seen || run.result.error.find("which has exited") != std::string::npos;
  }
  CHECK(seen);
}

TEST(mbarrier_phases_and_counts) {
  Run run;
  run(".shared .align 8 .b64 bar;\nsetp.ne.u32 %p0, %tid, 0;\n@%p0 exit;\nmov.u32 %r1, bar;\nmbarrier.init.shared::cta.b64 [%r1], 2;\n"
      "mbarrier.arrive.shared::cta.b64 %d1, [%r1];\nmbarrier.pending_count.b64 %r2, %d1;\nst.global.u32 [%out], %r2;\n"
      "mbarrier.test_wait.shared::cta.b64 %p1, [%r1], %d1;\nselp.u32 %r2, 1, 0, %p1;\nst.global.u32 [%out+4], %r2;\n"
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], 64;\nmbarrier.test_wait.parity.shared::cta.b64 %p1, [%r1], 0;\nselp.u32 %r2, 1, 0, %p1;\nst.global.u32 [%out+8], %r2;\n"
      "mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r1], 64;\nmbarrier.test_wait.parity.shared::cta.b64 %p1, [%r1], 0;\nselp.u32 %r2, 1, 0, %p1;\nst.global.u32 [%out+12], %r2;\n"
      "mbarrier.arrive_drop.shared::cta.b64 _, [%r1];\nmbarrier.arrive.shared::cta.b64 _, [%r1];\nmbarrier.arrive.shared::cta.b64 _, [%r1];\n"
      "mbarrier.test_wait.parity.shared::cta.b64 %p1, [%r1], 0;\nselp.u32 %r2, 1, 0, %p1;\nst.global.u32 [%out+16], %r2;").ok();
  CHECK_EQ(run.out[0], 2u);  // pending before the first arrival
  CHECK_EQ(run.out[1], 0u);
  CHECK_EQ(run.out[2], 0u);  // bytes outstanding
  CHECK_EQ(run.out[3], 1u);
  CHECK_EQ(run.out[4], 1u);  // the third phase needed one arrival only
}

TEST(mbarrier_faults) {
  const std::string one = ".shared .align 8 .b64 bar;\nsetp.ne.u32 %p0, %tid, 0;\n@%p0 exit;\nmov.u32 %r1, bar;\n";
  Run run;
  run(one + "mbarrier.arrive.shared.b64 _, [%r1];").fails(ErrorKind::kFault, "mbarrier 0x400 of CTA 0 is not initialised");
  run(one + "mbarrier.init.shared.b64 [%r1], 1;\nmbarrier.inval.shared.b64 [%r1];\nmbarrier.arrive.shared.b64 _, [%r1];").fails(ErrorKind::kFault, "is not initialised");
  run(one + "mbarrier.init.shared.b64 [%r1], 0;").fails(ErrorKind::kFault, "mbarrier.init with count 0");
  run(one + "mbarrier.init.shared.b64 [%r1], 2;\nmbarrier.arrive.shared.b64 _, [%r1], 3;").fails(ErrorKind::kFault, "arrive with count 3 on mbarrier 0x400 of CTA 0, which has 2 arrivals pending (of 2)");
  run(one + "mbarrier.init.shared.b64 [%r1], 1;\nmbarrier.expect_tx.relaxed.cta.shared.b64 [%r1], 1048576;").fails(ErrorKind::kFault, "the tx-count leaves its range");
  run(one + "mbarrier.init.shared.b64 [%r1+4], 1;").fails(ErrorKind::kFault, "is not a multiple of 8");
  run(one + "mbarrier.init.shared.b64 [%r1], 1;\nmbarrier.try_wait.parity.shared.b64 %p1, [%r1], 2;").fails(ErrorKind::kFault, "phase parity 2 is neither 0 nor 1");
}

TEST(deadlock_report_names_who_waits_for_what) {
  Run run;
  run.block.x = 64;
  run(".shared .align 8 .b64 bar;\nmov.u32 %r1, bar;\nsetp.eq.u32 %p0, %tid, 0;\n@%p0 mbarrier.init.shared.b64 [%r1], 3;\n@%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%r1], 512;\nbar.sync 0;\n"
      "setp.ge.u32 %p1, %tid, 32;\n@%p1 bra OTHER;\nWAIT:\nmbarrier.try_wait.parity.shared.b64 %p2, [%r1], 0;\n@!%p2 bra WAIT;\nbra END;\nOTHER:\nbar.sync 5, 64;\nEND:")
      .fails(ErrorKind::kDeadlock, "deadlock: no warp can continue");
  CHECK_TEXT(run.result.error, "CTA (0,0,0) rank 0 warp 0 lanes 0xffffffff line 23 mbarrier.try_wait.parity.shared.b64: waits for mbarrier 0x400 of CTA 0: in phase with parity 0, 2 of 3 "
                               "arrivals pending, tx-count 512");
  CHECK_TEXT(run.result.error, "warp 1 lanes 0xffffffff line 27 bar.sync: waits for barrier 5: 32 of 64 threads have arrived");
}

TEST(step_limit_stops_endless_loops) {
  Run run;
  run("LOOP:\nbra LOOP;").fails(ErrorKind::kStepLimit, "the kernel has not finished after");
  run("LOOP:\nnanosleep.u32 20;\nbra LOOP;");
  CHECK(!run.result.ok);
}

TEST(polling_another_cta) {
  for (uint64_t seed = 0; seed < 8; ++seed) {
    Run run;
    run.config.seed = seed;
    run.grid.x = 2;
    run("setp.ne.u32 %p0, %tid, 0;\n@%p0 exit;\nsetp.eq.u32 %p1, %cta, 0;\n@%p1 bra WRITE;\nPOLL:\nld.acquire.gpu.global.u32 %r1, [%out];\nsetp.eq.u32 %p2, %r1, 0;\n@%p2 nanosleep.u32 64;\n"
        "@%p2 bra POLL;\nst.global.u32 [%out+4], %r1;\nbra END;\nWRITE:\nst.release.gpu.global.u32 [%out], 6;\nEND:").ok();
    CHECK_EQ(run.out[1], 6u);
  }
}

TEST(memory_faults) {
  Run run;
  run("ld.global.u32 %r0, [%out+16384];").fails(ErrorKind::kFault, "0 bytes past the end of 'out'");
  run("st.global.u32 [%out+-4], %r0;").fails(ErrorKind::kFault, "4 bytes before 'out'");
  run("ld.global.u32 %r0, [%out+2];").fails(ErrorKind::kFault, "is not a multiple of 4");
  run("ld.global.v4.u32 {%r0, %r1, %r2, %r3}, [%out+8];").fails(ErrorKind::kFault, "is not a multiple of 16");
  run("ld.global.u32 %r0, [16];").fails(ErrorKind::kFault, "in no registered memory");
  run("ld.shared.u32 %r0, [1024];").fails(ErrorKind::kFault, "are outside the CTA's shared memory [0x400, 0x400)");
  run("ld.shared.u32 %r0, [0];").fails(ErrorKind::kFault, "are outside the CTA's shared memory");
  run(".local .align 4 .b8 l[8];\nld.local.u32 %r0, [l+8];").fails(ErrorKind::kFault, "are outside the thread's 8 bytes");
  run("mov.b64 %d1, out;\ncvta.param.u64 %d1, %d1;\nst.u64 [%d1], %d1;").fails(ErrorKind::kFault, "write to the kernel's parameters");
  run("ld.param.u64 %d1, [out+8];").fails(ErrorKind::kFault, "are outside the kernel's 8 bytes of parameters");
  run.declarations = ".const .align 4 .u32 c = 5;\n";
  run("mov.u64 %d1, c;\nst.global.u32 [%d1], 1;").fails(ErrorKind::kFault, "read-only");
  run("trap;").fails(ErrorKind::kFault, "trap executed");
  CHECK_TEXT(run.result.error, "line 15: trap executed: trap; [CTA (0,0,0), warp 0]");
  CHECK_EQ(run.result.line, 15);
}

TEST(module_variables) {
  Run run;
  run.declarations =
      ".global .align 4 .u32 table[4] = {1, 2, 3};\n.const .align 8 .u64 pointer = table+8;\n.global .align 4 .f32 real = 0f3F800000;\n.global .align 8 .b8 zero[16];\n";
  run(std::string("mov.u64 %d1, pointer;\nld.const.u64 %d2, [%d1];\nld.global.u32 %r1, [%d2];\nld.global.u32 %r2, [table+4];\nld.global.f32 %f1, [real];\ncvt.rzi.u32.f32 %r3, %f1;\n"
                  "ld.global.u32 %r4, [zero+12];\nmad.lo.u32 %r0, %r1, 10, %r2;\nmad.lo.u32 %r0, %r0, 10, %r3;\nmad.lo.u32 %r0, %r0, 10, %r4;") + kStore).ok();
  CHECK_EQ(run.out[0], 3210u);
}

TEST(more_ctas_than_fit) {
  Run run;
  run.grid = {50, 3, 2};
  run.block.x = 40;  // a partial warp
  run.config.sm_count = 2;
  run("atom.global.add.u32 %r1, [%out], 1;\nmov.u32 %r2, %smid;\nmul.wide.u32 %at, %r2, 4;\nadd.s64 %at, %at, %out;\nred.global.add.u32 [%at+4], 1;").ok();
  CHECK_EQ(run.out[0], 50u * 3 * 2 * 40);
  CHECK_EQ(run.out[1] + run.out[2], 50u * 3 * 2 * 40);
  CHECK(run.out[1] > 0 && run.out[2] > 0);
  CHECK_EQ(run.result.stats.ctas, uint64_t{300});
}

TEST(a_seed_reproduces_a_run) {
  const std::string body = "atom.global.add.u32 %r0, [%out], 1;\nmov.u32 %r30, %ntid.x;\nmad.lo.u32 %r31, %cta, %r30, %tid;\nmul.wide.u32 %at, %r31, 4;\nadd.s64 %at, %at, %out;\n"
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

const char* kCopy =
    ".shared .align 16 .b8 s[512];\n.shared .align 8 .b64 bar;\nmov.u32 %r1, s;\nmad.lo.u32 %r2, %tid, 16, %r1;\nmul.wide.u32 %d1, %tid, 16;\nadd.s64 %d1, %d1, %out;\n"
    "st.global.u32 [%d1], %tid;\n";

TEST(cp_async) {
  for (uint64_t seed = 0; seed < 8; ++seed) {
    Run run;
    run.config.seed = seed;
    run(std::string(kCopy) + "cp.async.cg.shared.global [%r2], [%d1], 16;\ncp.async.commit_group;\ncp.async.wait_group 0;\nld.shared.u32 %r0, [%r2];\nst.global.u32 [%d1+8], %r0;").ok();
    for (uint32_t t = 0; t < 32; ++t) CHECK_EQ(run.out[4 * t + 2], t);
    run(std::string(kCopy) + "cp.async.ca.shared.global [%r2], [%d1], 16, 4;\ncp.async.wait_all;\nld.shared.v2.u32 {%r0, %r3}, [%r2];\nadd.u32 %r0, %r0, %r3;\nst.global.u32 [%d1+8], %r0;").ok();
    for (uint32_t t = 0; t < 32; ++t) CHECK_EQ(run.out[4 * t + 2], t);
    run(std::string(kCopy) + "mov.u32 %r5, bar;\nsetp.eq.u32 %p0, %tid, 0;\n@%p0 mbarrier.init.shared.b64 [%r5], 32;\nbar.warp.sync -1;\ncp.async.cg.shared.global [%r2], [%d1], 16;\n"
        "cp.async.mbarrier.arrive.noinc.shared.b64 [%r5];\nWAIT:\nmbarrier.try_wait.parity.shared.b64 %p1, [%r5], 0;\n@!%p1 bra WAIT;\nld.shared.u32 %r0, [%r2];\nst.global.u32 [%d1+8], %r0;").ok();
    for (uint32_t t = 0; t < 32; ++t) CHECK_EQ(run.out[4 * t + 2], t);
  }
}

TEST(reading_a_copy_too_early) {
  int caught = 0;
  for (uint64_t seed = 0; seed < 10; ++seed) {
    Run run;
    run.config.seed = seed;
    run(std::string(kCopy) + "cp.async.cg.shared.global [%r2], [%d1], 16;\ncp.async.commit_group;\ncp.async.wait_group 1;\nld.shared.u32 %r0, [%r2];\nst.global.u32 [%d1+8], %r0;");
    caught += !run.result.ok && run.result.error.find("still writes it") != std::string::npos;
  }
  CHECK(caught > 0);
}

TEST(st_async_and_red_async) {
  Run run;
  run.grid.x = run.cluster.x = 2;
  run(".shared .align 16 .b8 s[128];\n.shared .align 8 .b64 bar;\nmov.u32 %r1, s;\nmov.u32 %r2, bar;\nsetp.eq.u32 %p0, %tid, 0;\n@%p0 mbarrier.init.shared.b64 [%r2], 1;\n"
      "@%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%r2], 128;\nbarrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\nxor.b32 %r3, %rank, 1;\nmad.lo.u32 %r4, %tid, 4, %r1;\n"
      "mapa.shared::cluster.u32 %r5, %r4, %r3;\nmapa.shared::cluster.u32 %r6, %r2, %r3;\nmad.lo.u32 %r7, %rank, 1000, %tid;\n"
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [%r5], %r7, [%r6];\nWAIT:\nmbarrier.try_wait.parity.shared.b64 %p1, [%r2], 0;\n@!%p1 bra WAIT;\n"
      "@%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%r2], 128;\nbarrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n"
      "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%r5], 5, [%r6];\nWAIT2:\nmbarrier.try_wait.parity.shared.b64 %p1, [%r2], 1;\n@!%p1 bra WAIT2;\n"
      "ld.shared.u32 %r0, [%r4];\nmad.lo.u32 %r8, %cta, 32, %tid;\nmul.wide.u32 %at, %r8, 4;\nadd.s64 %at, %at, %out;\nst.global.u32 [%at], %r0;\n"
      "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;").ok();
  for (uint32_t i = 0; i < 64; ++i) CHECK_EQ(run.out[i], (i < 32 ? 1000u : 0u) + i % 32 + 5);
}

TEST(unsupported_and_malformed) {
  Run run;
  run("frobnicate.u32 %r0, %r1;").fails(ErrorKind::kUnsupported, "line 14: unsupported instruction 'frobnicate.u32': frobnicate.u32 %r0, %r1;");
  run("add.u32.bogus %r0, %r1, %r2;").fails(ErrorKind::kUnsupported, "unsupported modifier '.bogus'");
  run("add.u32 %r0, %r1;").fails(ErrorKind::kParse, "too few operands");
  run("add.u32 %r0, %r1, %r2, %r3;").fails(ErrorKind::kParse, "too many operands");
  run("add.u32 %r0, %d1, %r2;").fails(ErrorKind::kParse, "register '%d1' has 64 bits, expected 32");
  run("add.u32 %r0, %r99, %r2;").fails(ErrorKind::kParse, "unknown register or variable '%r99'");
  run("bra NOWHERE;").fails(ErrorKind::kParse, "unknown label 'NOWHERE'");
  run("add.u32 %p0, %r1, %r2;").fails(ErrorKind::kParse, "'%p0' is not a register");
  run("@%r1 bra NOWHERE;").fails(ErrorKind::kParse, "'%r1' is not a predicate");
  run("X:\nX:\n").fails(ErrorKind::kParse, "label 'X' is defined twice");
  run(".reg .b32 %tid;\n").fails(ErrorKind::kParse, "register '%tid' is declared twice");
  run("add.u32 %r0, %r1, %r2").fails(ErrorKind::kParse, "expected ';' before 'ret'");
  run("mov.u32 %r0, 0x;").fails(ErrorKind::kParse, "malformed number");
  run("{\n").fails(ErrorKind::kParse, "unexpected end of text inside a function");
  run("\x01").fails(ErrorKind::kParse, "unexpected character 0x01");
  run("setmaxnreg.inc.sync.aligned.u32 23;").fails(ErrorKind::kParse, "register count must be a multiple of 8 from 24 to 256");
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
  run(".shared .align 4 .b8 s[300000];\nmov.u32 %r1, s;").fails(ErrorKind::kLaunch, "300000 bytes of shared memory per CTA, at most 232448 allowed");

  GlobalMemory memory;
  const auto module = Module::load(Run::text("", "", ""));
  LaunchConfig config;
  LaunchResult result = launch(memory, *module, "k", std::vector<uint8_t>(9), {1, 1, 1}, {32, 1, 1}, {1, 1, 1}, 0, config);
  CHECK_TEXT(result.error, "9 bytes of parameters, the kernel takes 8");
  result = launch(memory, *module, "other", std::vector<uint8_t>(8), {1, 1, 1}, {32, 1, 1}, {1, 1, 1}, 0, config);
  CHECK_TEXT(result.error, "the module has no kernel 'other'");
  config.progress = [](uint64_t, uint64_t) { return false; };
  result = launch(memory, *module, "k", std::vector<uint8_t>(8), {1, 1, 1}, {32, 1, 1}, {1, 1, 1}, 0, config);
  CHECK_TEXT(result.error, "launch stopped by its progress callback");
}

TEST(trace_and_statistics) {
  struct Sink : TraceSink {
    void event(const TraceEvent& event) override { events.push_back(event); }
    std::vector<TraceEvent> events;
  } sink;
  Run run;
  run.block.x = 64;
  run.config.trace = &sink;
  run("setp.lt.u32 %p0, %tid, 32;\n@%p0 nanosleep.u32 100;\nbar.sync 0;").ok();
  CHECK_EQ(run.result.stats.warps.size(), size_t{2});
  CHECK(run.result.stats.instructions > 10);
  CHECK(run.result.stats.thread_instructions > run.result.stats.instructions);
  bool slept = false;
  for (const TraceEvent& e : sink.events) slept = slept || (std::string(e.name) == "nanosleep" && e.kind == TraceEvent::Kind::kWait && e.end > e.begin && e.warp == 0);
  CHECK(slept);
  CHECK(run.result.stats.warps[0].waits >= 1);
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
