// Kernels that never end, and kernels that take long to.
#include "emulator/tests/machine_run.h"

using namespace bwgemm::emulator;
using namespace bwgemm::emulator::testing;

namespace {

const char* const kSays = "deadlock: every warp is blocked, or repeats a loop";

// Spins until `condition` of %r20, which `load` sets, is false.
std::string spin(const std::string& load, const std::string& condition = "eq.u32 %p4, %r20, 0") {
  return "SPIN:\n" + load + "\nsetp." + condition + ";\n@%p4 bra SPIN;\n";
}

TEST(loops_in_which_nothing_changes) {
  const std::string loops[] = {
      "L:\nbra L;", spin("ld.global.u32 %r20, [%out];"),
      spin("ld.volatile.global.u32 %r20, [%out];"), spin("ld.acquire.gpu.global.u32 %r20, [%out];"),
      // The same value is stored again and again.
      spin("st.relaxed.gpu.global.u32 [%out], 0;\nld.relaxed.gpu.global.u32 %r20, [%out];"),
      // The lock is never released: nothing but failing attempts of the second CTA.
      "setp.ne.u32 %p0, %thread, 0;\n@%p0 bra E;\n" +
          spin("atom.acquire.gpu.global.cas.b32 %r20, [%out], 0, 1;", "ne.u32 %p4, %r20, 0") +
          "E:\n"};
  uint64_t seed = 0;
  for (const std::string& loop : loops) {
    Run run;
    run.config.seed = ++seed;
    run.grid.x = 2;
    run.block.x = 64;
    run(loop).fails(ErrorKind::kDeadlock, kSays);
  }
}

TEST(loops_that_count_their_attempts) {
  Run run;
  run.config.step_limit = 1 << 24;
  run("mov.u32 %r1, 0;\n" + spin("add.u32 %r1, %r1, 1;\nld.acquire.gpu.global.u32 %r20, [%out];"))
      .fails(ErrorKind::kDeadlock, kSays);
  run("mov.u32 %r1, 0;\n" + spin("mov.u64 %d1, %clock64;\nld.acquire.gpu.global.u32 %r20, [%out];"))
      .fails(ErrorKind::kDeadlock, kSays);
}

TEST(one_warp_spins_and_another_one_waits) {
  for (uint64_t seed = 0; seed < 2; ++seed) {
    Run run;
    run.config.seed = seed;
    run.block.x = 64;
    run(".shared .align 8 .b64 bar;\nmov.u32 %r1, bar;\nsetp.eq.u32 %p0, %thread, 0;\n@%p0 "
        "mbarrier.init.shared.b64 [%r1], 1;\nbar.sync 0;\nsetp.lt.u32 %p1, %thread, 32;\n@%p1 bra "
        "FLAG;\nWAIT:\nmbarrier.try_wait.parity.shared.b64 %p2, [%r1], 0;\n@!%p2 bra WAIT;\n@%p0 "
        "st.release.gpu.global.u32 [%out], 1;\nbra END;\nFLAG:\n" +
        spin("ld.acquire.gpu.global.u32 %r20, [%out];") +
        "@%p0 mbarrier.arrive.shared.b64 _, [%r1];\nEND:\n")
        .fails(ErrorKind::kDeadlock, kSays);
  }
}

const std::string kGridBarrier =
    "setp.ne.u32 %p0, %thread, 0;\n@%p0 bra E;\nmov.u32 %r10, %nctaid.x;\n"
    "red.release.gpu.global.add.u32 [%out], 1;\n" +
    spin("ld.acquire.gpu.global.u32 %r20, [%out];", "lt.u32 %p4, %r20, %r10") + "E:\n";

TEST(grid_barriers) {
  for (const int threads : {1, 2}) {
    Run run;
    run.config.threads = threads;
    run.block.x = 1024;
    run.grid.x = 8;  // two on each SM
    run(kGridBarrier).ok();
    run.grid.x = 9;
    run(kGridBarrier).fails(ErrorKind::kDeadlock, "1 of the grid's 9 clusters have not started");
  }
}

TEST(long_computations_are_no_livelocks) {
  Run run;
  run.config.step_limit = 1 << 24;
  // Others wait for a loop that stores nothing for a million instructions.
  run.block.x = 64;
  run("setp.lt.u32 %p0, %thread, 32;\n@%p0 bra WAIT;\nmov.u32 %r1, 350000;\nL:\nsub.u32 %r1, %r1, "
      "1;\nsetp.ne.u32 %p1, %r1, 0;\n@%p1 bra L;\nsetp.eq.u32 %p2, %thread, 32;\n@%p2 "
      "st.release.gpu.global.u32 [%out], 1;\nbra END;\nWAIT:\n" +
      spin("ld.acquire.gpu.global.u32 %r20, [%out];") + "END:\n")
      .ok();
  // The counter lies in local memory, and registers hold the same in every turn.
  run.block.x = 32;
  run(std::string(
          ".local .align 4 .b8 n[4];\nmov.u32 %r1, 100000;\nst.local.u32 [n], %r1;\nmov.u32 "
          "%r1, 0;\nL:\nld.local.u32 %r1, [n];\nsub.u32 %r1, %r1, 1;\nst.local.u32 [n], "
          "%r1;\nsetp.ne.u32 %p1, %r1, 0;\nmov.u32 %r1, 0;\n@%p1 bra L;\nmov.u32 %r0, 5;") +
      kStore)
      .ok();
  CHECK_EQ(run.out[3], 5u);
  // A loop until a time.
  run(std::string("mov.u64 %d1, %clock64;\nadd.u64 %d1, %d1, 1000000;\nL:\nmov.u64 %d2, "
                  "%clock64;\nsetp.lt.u64 %p1, %d2, %d1;\nmov.u64 %d2, 0;\n@%p1 bra L;\nmov.u32 "
                  "%r0, 6;") +
      kStore)
      .ok();
  CHECK_EQ(run.out[3], 6u);
  // Lanes of one warp: those behind spin on what the others have yet to do.
  run("setp.lt.u32 %p0, %thread, 16;\n@!%p0 bra WORK;\n" +
      spin("ld.acquire.gpu.global.u32 %r20, [%out];") +
      "bra END;\nWORK:\nmov.u32 %r1, 100000;\nL:\nsub.u32 %r1, %r1, 1;\nsetp.ne.u32 %p1, %r1, "
      "0;\n@%p1 bra L;\nsetp.eq.u32 %p2, %thread, 16;\n@%p2 st.release.gpu.global.u32 [%out], "
      "1;\nEND:\n")
      .ok();
}

}  // namespace

int main(int argc, char** argv) { return run_all(argc, argv); }
