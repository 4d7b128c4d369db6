// Barriers, mbarriers, clusters, asynchronous copies, deadlocks.
#include "emulator/tests/machine_run.h"

using namespace bwgemm::emulator;
using namespace bwgemm::emulator::testing;

namespace {

TEST(an_mbarrier_wait_lets_other_lanes_run) {
  Run run;
  run(std::string(
          ".shared .align 8 .b64 bar;\nmov.u32 %r1, bar;\nsetp.eq.u32 %p0, %thread, 0;\n@%p0 "
          "mbarrier.init.shared.b64 [%r1], 31;\nbar.warp.sync -1;\n"
          "@!%p0 bra ARRIVE;\nWAIT:\nmbarrier.try_wait.parity.shared.b64 %p1, [%r1], "
          "0;\n@!%p1 bra WAIT;\nmov.u32 %r0, 7;\nbra JOIN;\nARRIVE:\n"
          "mbarrier.arrive.shared.b64 _, [%r1];\nmov.u32 %r0, 1;\nJOIN:") +
      kStore)
      .ok();
  CHECK_EQ(run.out[0], 7u);
  CHECK_EQ(run.out[5], 1u);
}

TEST(named_barriers) {
  // Warps 0 and 1 produce for warp 2 through barrier 3: arrive does not wait.
  for (uint64_t seed = 0; seed < 8; ++seed) {
    Run run;
    run.config.seed = seed;
    run.block.x = 96;
    run(".shared .align 4 .u32 s[64];\nmov.u32 %r1, s;\nsetp.ge.u32 %p0, %thread, 64;\n@%p0 bra "
        "CONSUME;\nmad.lo.u32 %r2, %thread, 4, %r1;\nst.shared.u32 [%r2], %thread;\n"
        "bar.arrive 3, 96;\nbra END;\nCONSUME:\nbar.sync 3, 96;\nsub.u32 %r3, %thread, "
        "64;\nmad.lo.u32 %r2, %r3, 8, %r1;\nld.shared.v2.u32 {%r4, %r5}, [%r2];\n"
        "add.u32 %r4, %r4, %r5;\nmul.wide.u32 %at, %r3, 4;\nadd.s64 %at, %at, %out;\nst.global.u32 "
        "[%at], %r4;\nEND:")
        .ok();
    for (uint32_t t = 0; t < 32; ++t) CHECK_EQ(run.out[t], 4 * t + 1);
  }
}

TEST(named_barrier_faults) {
  Run run;
  run.block.x = 64;
  run("bar.sync 16;").fails(ErrorKind::kFault, "barrier 16: there are 16");
  run("bar.sync 1, 33;")
      .fails(ErrorKind::kFault, "barrier 1 with 33 threads: not a positive multiple of 32");
  run("setp.lt.u32 %p0, %thread, 32;\n@%p0 bra ONE;\nbar.sync 1, 96;\nbra END;\nONE:\nbar.sync 1, "
      "64;\nEND:")
      .fails(ErrorKind::kFault, "barrier 1 is used with");
  run("setp.lt.u32 %p0, %thread, 32;\n@%p0 bra END;\nbar.sync 2, 64;\nEND:")
      .fails(ErrorKind::kDeadlock, "waits for barrier 2: 32 of 64 threads have arrived");
}

TEST(exited_warps_do_not_hold_up_a_barrier) {
  Run run;
  run.block.x = 96;
  run(std::string("setp.lt.u32 %p0, %thread, 32;\n@%p0 exit;\nbar.sync 0;\nmov.u32 %r0, 5;") +
      kStore)
      .ok();
  CHECK_EQ(run.out[40], 5u);
}

TEST(clusters_share_memory) {
  for (uint64_t seed = 0; seed < 4; ++seed) {
    Run run;
    run.grid.x = 4;
    run.cluster.x = 2;
    run.config.seed = seed;
    // Each CTA writes its id into its neighbour, then reads its own.
    run(std::string(
            ".shared .align 4 .u32 s[32];\nmov.u32 %r1, s;\nmad.lo.u32 %r1, %thread, 4, "
            "%r1;\nxor.b32 "
            "%r2, %rank, 1;\nmapa.shared::cluster.u32 %r3, %r1, %r2;\n"
            "add.u32 %r4, %cta, 100;\nbarrier.cluster.arrive.relaxed.aligned;\n"
            "barrier.cluster.wait.aligned;\nst.shared::cluster.u32 [%r3], "
            "%r4;\nbarrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;\n"
            "ld.shared.u32 %r0, "
            "[%r1];\nbarrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;") +
        kStore)
        .ok();
    for (uint32_t i = 0; i < 128; ++i) CHECK_EQ(run.out[i], (i / 32 ^ 1) + 100);
  }
}

TEST(cluster_faults) {
  Run run;
  run.grid.x = run.cluster.x = 2;
  run(".shared .align 4 .u32 s;\nmov.u32 %r1, s;\nmapa.shared::cluster.u32 %r2, %r1, 2;")
      .fails(ErrorKind::kFault, "mapa with rank 2 in a cluster of 2");
  run(".shared .align 4 .u32 s;\nmov.u32 %r1, s;\nxor.b32 %r2, %rank, 1;\nmapa.shared::cluster.u32 "
      "%r2, %r1, %r2;\nld.shared::cta.u32 %r0, [%r2];")
      .fails(ErrorKind::kFault, "is not in the shared memory of this CTA");
  run("barrier.cluster.wait;")
      .fails(ErrorKind::kFault, "barrier.cluster.wait without an arrive before it");
  run("barrier.cluster.arrive;\nbarrier.cluster.arrive;")
      .fails(ErrorKind::kFault, "barrier.cluster.arrive twice without a wait in between");
  // One CTA leaves early; writing to it afterwards is an error on every schedule that gets there
  // later.
  bool seen = false;
  for (uint64_t seed = 0; seed < 10; ++seed) {
    run.config.seed = seed;
    run(".shared .align 4 .u32 s;\nmov.u32 %r1, s;\nsetp.eq.u32 %p0, %rank, 1;\n@%p0 "
        "exit;\nmapa.shared::cluster.u32 %r2, %r1, 1;\nnanosleep.u32 1000;\nst.shared::cluster.u32 "
        "[%r2], 1;");
    seen = seen || run.result.error.find("which has exited") != std::string::npos;
  }
  CHECK(seen);
}

TEST(mbarrier_phases_and_counts) {
  Run run;
  run(".shared .align 8 .b64 bar;\nsetp.ne.u32 %p0, %thread, 0;\n@%p0 exit;\nmov.u32 %r1, "
      "bar;\nmbarrier.init.shared::cta.b64 [%r1], 2;\n"
      "mbarrier.arrive.shared::cta.b64 %d1, [%r1];\nmbarrier.pending_count.b64 %r2, "
      "%d1;\nst.global.u32 [%out], %r2;\n"
      "mbarrier.test_wait.shared::cta.b64 %p1, [%r1], %d1;\nselp.u32 %r2, 1, 0, "
      "%p1;\nst.global.u32 [%out+4], %r2;\n"
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], "
      "64;\nmbarrier.test_wait.parity.shared::cta.b64 %p1, [%r1], 0;\nselp.u32 %r2, 1, 0, "
      "%p1;\nst.global.u32 [%out+8], %r2;\n"
      "mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r1], "
      "64;\nmbarrier.test_wait.parity.shared::cta.b64 %p1, [%r1], 0;\nselp.u32 %r2, 1, 0, "
      "%p1;\nst.global.u32 [%out+12], %r2;\n"
      "mbarrier.arrive_drop.shared::cta.b64 _, [%r1];\nmbarrier.arrive.shared::cta.b64 _, "
      "[%r1];\nmbarrier.arrive.shared::cta.b64 _, [%r1];\n"
      "mbarrier.test_wait.parity.shared::cta.b64 %p1, [%r1], 0;\nselp.u32 %r2, 1, 0, "
      "%p1;\nst.global.u32 [%out+16], %r2;")
      .ok();
  CHECK_EQ(run.out[0], 2u);  // pending before the first arrival
  CHECK_EQ(run.out[1], 0u);
  CHECK_EQ(run.out[2], 0u);  // bytes outstanding
  CHECK_EQ(run.out[3], 1u);
  CHECK_EQ(run.out[4], 1u);  // the third phase needed one arrival only
}

TEST(mbarrier_faults) {
  const std::string one =
      ".shared .align 8 .b64 bar;\nsetp.ne.u32 %p0, %thread, 0;\n@%p0 exit;\nmov.u32 %r1, bar;\n";
  Run run;
  run(one + "mbarrier.arrive.shared.b64 _, [%r1];")
      .fails(ErrorKind::kFault, "mbarrier 0x400 of CTA 0 is not initialised");
  run(one +
      "mbarrier.init.shared.b64 [%r1], 1;\nmbarrier.inval.shared.b64 "
      "[%r1];\nmbarrier.arrive.shared.b64 _, [%r1];")
      .fails(ErrorKind::kFault, "is not initialised");
  run(one + "mbarrier.init.shared.b64 [%r1], 0;")
      .fails(ErrorKind::kFault, "mbarrier.init with count 0");
  run(one + "mbarrier.init.shared.b64 [%r1], 2;\nmbarrier.arrive.shared.b64 _, [%r1], 3;")
      .fails(ErrorKind::kFault,
             "arrive with count 3 on mbarrier 0x400 of CTA 0, which has 2 arrivals pending (of 2)");
  run(one +
      "mbarrier.init.shared.b64 [%r1], 1;\nmbarrier.expect_tx.relaxed.cta.shared.b64 [%r1], "
      "1048576;")
      .fails(ErrorKind::kFault, "the tx-count leaves its range");
  run(one + "mbarrier.init.shared.b64 [%r1+4], 1;")
      .fails(ErrorKind::kFault, "is not a multiple of 8");
}

TEST(deadlock_report_names_who_waits_for_what) {
  Run run;
  run.block.x = 64;
  run(".shared .align 8 .b64 bar;\nmov.u32 %r1, bar;\nsetp.eq.u32 %p0, %thread, 0;\n@%p0 "
      "mbarrier.init.shared.b64 [%r1], 3;\n@%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%r1], "
      "512;\nbar.sync 0;\n"
      "setp.ge.u32 %p1, %thread, 32;\n@%p1 bra OTHER;\nWAIT:\nmbarrier.try_wait.parity.shared.b64 "
      "%p2, [%r1], 0;\n@!%p2 bra WAIT;\nbra END;\nOTHER:\nbar.sync 5, 64;\nEND:")
      .fails(ErrorKind::kDeadlock, "deadlock: no warp can continue");
  CHECK_TEXT(
      run.result.error,
      "CTA (0,0,0) rank 0 warp 0 lanes 0xffffffff line 23 mbarrier.try_wait.parity.shared.b64: "
      "waits for mbarrier 0x400 of CTA 0: in phase with parity 0, 2 of 3 "
      "arrivals pending, tx-count 512");
  CHECK_TEXT(run.result.error,
             "warp 1 lanes 0xffffffff line 27 bar.sync: waits for barrier 5: 32 of 64 threads have "
             "arrived");
}

TEST(polling_another_cta) {
  for (uint64_t seed = 0; seed < 8; ++seed) {
    Run run;
    run.config.seed = seed;
    run.grid.x = 2;
    run("setp.ne.u32 %p0, %thread, 0;\n@%p0 exit;\nsetp.eq.u32 %p1, %cta, 0;\n@%p1 bra "
        "WRITE;\nPOLL:\nld.acquire.gpu.global.u32 %r1, [%out];\nsetp.eq.u32 %p2, %r1, 0;\n@%p2 "
        "nanosleep.u32 64;\n"
        "@%p2 bra POLL;\nst.global.u32 [%out+4], %r1;\nbra END;\nWRITE:\nst.release.gpu.global.u32 "
        "[%out], 6;\nEND:")
        .ok();
    CHECK_EQ(run.out[1], 6u);
  }
}

const char* kCopy =
    ".shared .align 16 .b8 s[512];\n.shared .align 8 .b64 bar;\nmov.u32 %r1, s;\nmad.lo.u32 %r2, "
    "%thread, 16, %r1;\nmul.wide.u32 %d1, %thread, 16;\nadd.s64 %d1, %d1, %out;\n"
    "st.global.u32 [%d1], %thread;\n";

TEST(cp_async) {
  for (uint64_t seed = 0; seed < 8; ++seed) {
    Run run;
    run.config.seed = seed;
    run(std::string(kCopy) +
        "cp.async.cg.shared.global [%r2], [%d1], 16;\ncp.async.commit_group;\ncp.async.wait_group "
        "0;\nld.shared.u32 %r0, [%r2];\nst.global.u32 [%d1+8], %r0;")
        .ok();
    for (uint32_t t = 0; t < 32; ++t) CHECK_EQ(run.out[4 * t + 2], t);
    run(std::string(kCopy) +
        "cp.async.ca.shared.global [%r2], [%d1], 16, 4;\ncp.async.wait_all;\nld.shared.v2.u32 "
        "{%r0, %r3}, [%r2];\nadd.u32 %r0, %r0, %r3;\nst.global.u32 [%d1+8], %r0;")
        .ok();
    for (uint32_t t = 0; t < 32; ++t) CHECK_EQ(run.out[4 * t + 2], t);
    run(std::string(kCopy) +
        "mov.u32 %r5, bar;\nsetp.eq.u32 %p0, %thread, 0;\n@%p0 mbarrier.init.shared.b64 [%r5], "
        "32;\nbar.warp.sync -1;\ncp.async.cg.shared.global [%r2], [%d1], 16;\n"
        "cp.async.mbarrier.arrive.noinc.shared.b64 "
        "[%r5];\nWAIT:\nmbarrier.try_wait.parity.shared.b64 %p1, [%r5], 0;\n@!%p1 bra "
        "WAIT;\nld.shared.u32 %r0, [%r2];\nst.global.u32 [%d1+8], %r0;")
        .ok();
    for (uint32_t t = 0; t < 32; ++t) CHECK_EQ(run.out[4 * t + 2], t);
  }
}

// Surplus lanes copy what lane 28 copies, as those of cooperative_groups::memcpy_async do.
TEST(lanes_of_one_instruction_copy_the_same) {
  const auto copy = [](const char* source) {
    return std::string(kCopy) +
           "min.u32 %r6, %thread, 28;\nmad.lo.u32 %r2, %r6, 16, %r1;\nmul.wide.u32 %d2, %r6, "
           "16;\nadd.s64 %d2, %d2, %out;\nbar.warp.sync -1;\ncp.async.cg.shared.global [%r2], [" +
           source +
           "], 16;\ncp.async.wait_all;\nld.shared.u32 %r0, [%r2];\nbar.warp.sync "
           "-1;\nst.global.u32 [%d1+8], %r0;";
  };
  for (uint64_t seed = 0; seed < 8; ++seed) {
    Run run;
    run.config.seed = seed;
    run(copy("%d2")).ok();
    CHECK(run.result.warnings.empty());
    for (uint32_t t = 0; t < 32; ++t) CHECK_EQ(run.out[4 * t + 2], std::min(t, 28u));
    run(copy("%d1")).fails(ErrorKind::kFault, "asynchronous write of shared memory");
    CHECK_EQ(run.result.rule, "async-hazard");
  }
}

TEST(reading_a_copy_too_early) {
  int caught = 0;
  for (uint64_t seed = 0; seed < 10; ++seed) {
    Run run;
    run.config.seed = seed;
    run(std::string(kCopy) +
        "cp.async.cg.shared.global [%r2], [%d1], 16;\ncp.async.commit_group;\ncp.async.wait_group "
        "1;\nld.shared.u32 %r0, [%r2];\nst.global.u32 [%d1+8], %r0;");
    caught += !run.result.ok && run.result.rule == "async-hazard";
  }
  CHECK_EQ(caught, 10);
}

// Neighbouring copies of one 16-byte granule are apart: the first of two 4-byte copies may be read
// while the second is on its way, the second may not.
TEST(copies_in_flight_are_told_apart_byte_by_byte) {
  const std::string copies =
      std::string(kCopy) +
      "cp.async.ca.shared.global [%r2], [%d1], 4;\ncp.async.commit_group;\n"
      "cp.async.ca.shared.global [%r2+4], [%d1], 4;\ncp.async.commit_group;\n"
      "cp.async.wait_group 1;\n";
  int early = 0;
  for (uint64_t seed = 0; seed < 16; ++seed) {
    Run run;
    run.config.seed = seed;
    run(copies +
        "ld.shared.u32 %r0, [%r2];\nst.shared.u8 [%r2+9], 1;\ncp.async.wait_all;\n"
        "ld.shared.u32 %r3, [%r2+4];\nadd.u32 %r0, %r0, %r3;\nst.global.u32 [%d1+8], %r0;")
        .ok();
    for (uint32_t t = 0; t < 32; ++t) CHECK_EQ(run.out[4 * t + 2], 2 * t);
    run(copies + "ld.shared.u16 %r3, [%r2+6];");
    early += !run.result.ok && run.result.rule == "async-hazard";
  }
  CHECK_EQ(early, 16);
}

TEST(st_async_and_red_async) {
  Run run;
  run.grid.x = run.cluster.x = 2;
  run(".shared .align 16 .b8 s[128];\n.shared .align 8 .b64 bar;\nmov.u32 %r1, s;\nmov.u32 %r2, "
      "bar;\nsetp.eq.u32 %p0, %thread, 0;\n@%p0 mbarrier.init.shared.b64 [%r2], 1;\n"
      "@%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%r2], "
      "128;\nfence.mbarrier_init.release.cluster;\nbarrier.cluster.arrive.aligned;\nbarrier."
      "cluster.wait.aligned;\nxor.b32 %r3, %rank, "
      "1;\nmad.lo.u32 %r4, %thread, 4, %r1;\n"
      "mapa.shared::cluster.u32 %r5, %r4, %r3;\nmapa.shared::cluster.u32 %r6, %r2, "
      "%r3;\nmad.lo.u32 %r7, %rank, 1000, %thread;\n"
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [%r5], %r7, "
      "[%r6];\nWAIT:\nmbarrier.try_wait.parity.shared.b64 %p1, [%r2], 0;\n@!%p1 bra WAIT;\n"
      "@%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%r2], "
      "128;\nbarrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n"
      "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%r5], 5, "
      "[%r6];\nWAIT2:\nmbarrier.try_wait.parity.shared.b64 %p1, [%r2], 1;\n@!%p1 bra WAIT2;\n"
      "ld.shared.u32 %r0, [%r4];\nmad.lo.u32 %r8, %cta, 32, %thread;\nmul.wide.u32 %at, %r8, "
      "4;\nadd.s64 %at, %at, %out;\nst.global.u32 [%at], %r0;\n"
      "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;")
      .ok();
  for (uint32_t i = 0; i < 64; ++i) CHECK_EQ(run.out[i], (i < 32 ? 1000u : 0u) + i % 32 + 5);
}

// Lanes 48 and up exit before or after the others arrive, whichever path comes first in the text.
void check_barriers_with_exited_lanes(Run run, const std::string& barrier) {
  const std::string leave = kStore + std::string("exit;\n"), stay = barrier + "\nbra END;\n";
  for (const bool exits_first : {true, false}) {
    for (uint64_t seed = 0; seed < 6; ++seed) {
      run.config.seed = seed;
      run("setp.ge.u32 %p0, %thread, 48;\n" +
          (exits_first ? "@!%p0 bra OTHER;\n" + leave + "OTHER:\n" + stay
                       : "@%p0 bra OTHER;\n" + stay + "OTHER:\n" + leave) +
          "END:\n" + kStore)
          .ok();
    }
  }
}

TEST(exited_lanes_do_not_hold_up_a_barrier) {
  Run run;
  run.block.x = 64;
  for (const char* barrier :
       {"barrier.sync 1;", "barrier.sync 1, 64;", "bar.sync 1, 64;",
        "barrier.cta.red.popc.u32 %r1, 1, 64, !%p0;\nsetp.ne.u32 %p1, %r1, 48;\n@%p1 trap;",
        "barrier.cta.red.and.pred %p2, 1, 64, !%p0;\n@!%p2 trap;",
        "barrier.sync 1;\nbarrier.sync 1;\nbarrier.sync 2, 64;",
        "barrier.cluster.arrive;\nbarrier.cluster.wait;",
        "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;"})
    check_barriers_with_exited_lanes(run, barrier);
  run.grid.x = run.cluster.x = 2;
  check_barriers_with_exited_lanes(run,
                                   "barrier.cluster.arrive;\nbarrier.cluster.wait;\n"
                                   "barrier.cluster.arrive;\nbarrier.cluster.wait;");
  // They are not all that is missing.
  run("setp.ge.u32 %p0, %thread, 48;\n@%p0 exit;\nbarrier.sync 1, 96;")
      .fails(ErrorKind::kDeadlock, "waits for barrier 1: 64 of 96 threads have arrived");
}

TEST(parts_of_a_warp_arrive_at_a_barrier) {
  // Sixteen lanes have exited; eight arrive, and then the other eight.
  Run run;
  run.block.x = 64;
  run(std::string(
          "setp.lt.u32 %p0, %thread, 16;\n@%p0 exit;\nsetp.lt.u32 %p1, %thread, 24;\n@%p1 "
          "bra FIRST;\nbarrier.sync 1, 64;\nmov.u32 %r0, 5;\nbra END;\nFIRST:\nbarrier.sync "
          "1, 64;\nmov.u32 %r0, 6;\nEND:\n") +
      kStore)
      .ok();
  CHECK_EQ(run.out[16], 6u);
  CHECK_EQ(run.out[63], 5u);
}

TEST(lanes_of_a_warp_at_two_generations_of_the_cluster_barrier) {
  // Every second lane takes another way through each round.
  for (uint64_t seed = 0; seed < 8; ++seed) {
    Run run;
    run.block.x = 64;
    run.grid.x = run.cluster.x = 2;
    run.config.seed = seed;
    run(std::string("and.b32 %r1, %thread, 1;\nsetp.eq.u32 %p0, %r1, 0;\nmov.u32 %r0, "
                    "0;\nL:\nbarrier.cluster.arrive;\n@%p0 bra EVEN;\nadd.u32 %r0, %r0, "
                    "1;\nbarrier.cluster.wait;\nbra NEXT;\nEVEN:\nadd.u32 %r0, %r0, "
                    "2;\nbarrier.cluster.wait;\nNEXT:\nsetp.lt.u32 %p1, %r0, 8;\n@%p1 bra L;\n"
                    "@%p0 bra END;\nEND:\n") +
        kStore);
    // Odd lanes go on for four more rounds, in which even ones have exited.
    CHECK_TEXT(run.result.error, "");
    CHECK_EQ(run.out[0], 8u);
    CHECK_EQ(run.out[1], 8u);
  }
}

// Registers of 384 threads: two warpgroups wait for what the first gives back, and it has more
// itself before.
std::string exchange(const std::string& first, const std::string& others) {
  return "setp.ge.u32 %p0, %thread, 128;\n@%p0 bra OTHERS;\n" + first + "bra END;\nOTHERS:\n" +
         others + "END:\n";
}
const std::string kMeet = "bar.sync 1, 384;\n";
std::string registers(const char* direction, int count) {
  return "setmaxnreg." + std::string(direction) + ".sync.aligned.u32 " + std::to_string(count) +
         ";\n";
}

TEST(setmaxnreg_waits_for_registers) {
  for (uint64_t seed = 0; seed < 8; ++seed) {
    Run run;
    run.block.x = 384;
    run.config.seed = seed;
    run.directives = ".reqntid 384 .maxnreg 168 ";
    run(exchange(registers("inc", 256) + kMeet + registers("dec", 40) + kMeet,
                 registers("dec", 120) + kMeet + registers("inc", 232) + kMeet))
        .ok();
    // What the launch bounds allow is the same, and so is what an .inc tells of it.
    run.directives = ".maxntid 384 .minnctapersm 1 ";
    run(exchange(registers("dec", 40), registers("inc", 232))).ok();
    run(registers("inc", 160)).ok();
    // Never granted.
    run.directives = ".maxntid 384 .minnctapersm 2 ";
    run(exchange(registers("dec", 40), registers("inc", 232)))
        .fails(ErrorKind::kDeadlock,
               "setmaxnreg.inc.sync.aligned.u32: waits for registers: 232 for each thread, for "
               "which others of the CTA must give back");
    run.directives = ".reqntid 384 .maxnreg 64 ";
    run(exchange(registers("dec", 24) + kMeet, registers("inc", 128) + kMeet))
        .fails(ErrorKind::kDeadlock, "waits for registers: 128 for each thread");
  }
}

TEST(setmaxnreg_in_the_wrong_direction) {
  Run run;
  run.block.x = 128;
  run.directives = ".reqntid 128 .maxnreg 60 ";
  run(registers("inc", 56)).fails(ErrorKind::kFault, "setmaxnreg.inc to 56 registers from 64");
  run(registers("dec", 72)).fails(ErrorKind::kFault, "setmaxnreg.dec to 72 registers from 64");
  run(registers("dec", 40) + registers("inc", 64)).ok();
  run.directives.clear();
  run(registers("dec", 40) + registers("inc", 32))
      .fails(ErrorKind::kFault, "setmaxnreg.inc to 32 registers from 40");
  run.block.x = 384;
  run(registers("dec", 176)).fails(ErrorKind::kFault, "to 176 registers from at most 168");
  run(exchange(registers("dec", 120) + kMeet, kMeet + registers("inc", 112)))
      .fails(ErrorKind::kFault, "setmaxnreg.inc to 112 registers from at least 120");
}

}  // namespace

int main(int argc, char** argv) { return run_all(argc, argv); }
