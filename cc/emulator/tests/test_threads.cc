// Launches by several threads: results, shared words, faults, deadlocks.
#include "emulator/tests/machine_run.h"

using namespace bwgemm::emulator;
using namespace bwgemm::emulator::testing;

namespace {

Run on_threads(int threads, uint32_t ctas, int sm_count) {
  Run run;
  run.config.threads = threads;
  run.config.sm_count = sm_count;
  run.grid.x = ctas;
  return run;
}

TEST(every_cta_runs_once) {
  for (int threads : {1, 2, 3, 8, 64}) {
    Run run = on_threads(threads, 100, 8);
    run(std::string("add.u32 %r0, %cta, 7;") + kStore).ok();
    for (uint32_t i = 0; i < 100 * 32; ++i) CHECK_EQ(run.out[i], i / 32 + 7);
    CHECK_EQ(run.result.stats.ctas, 100u);
  }
}

TEST(atomics_of_all_threads_add_up) {
  Run run = on_threads(4, 64, 8);
  run("mov.u32 %r1, 0;\nL:\nred.global.add.u32 [%out], 1;\nadd.u32 %r1, %r1, 1;\n"
      "setp.lt.u32 %p1, %r1, 20;\n@%p1 bra L;\n"
      "atom.global.cas.b32 %r2, [%out+4], %cta, %cta;")
      .ok();
  CHECK_EQ(run.out[0], 64u * 32 * 20);
}

// Every CTA waits for the one before it, which another thread may run.
TEST(words_are_handed_from_cta_to_cta) {
  for (const char* wait : {"", "nanosleep.u32 20;\n"}) {
    Run run = on_threads(4, 8, 8);
    run(std::string("mul.wide.u32 %d1, %cta, 4;\nadd.s64 %d1, %out, %d1;\n"
                    "setp.eq.u32 %p1, %cta, 0;\n@%p1 bra FIRST;\nWAIT:\n") +
        wait +
        "ld.acquire.gpu.global.u32 %r1, [%d1+-4];\nsetp.eq.u32 %p2, %r1, 0;\n@%p2 bra WAIT;\n"
        "FIRST:\nadd.u32 %r1, %r1, 1;\n@%p1 mov.u32 %r1, 1;\n"
        "setp.eq.u32 %p3, %thread, 0;\n@%p3 st.release.gpu.global.u32 [%d1], %r1;")
        .ok();
    for (uint32_t i = 0; i < 8; ++i) CHECK_EQ(run.out[i], i + 1);
  }
}

TEST(a_fault_of_one_thread_ends_all) {
  Run run = on_threads(2, 64, 4);
  run("setp.eq.u32 %p1, %cta, 37;\n@%p1 trap;\nL:\nnanosleep.u32 10;\n"
      "setp.lt.u32 %p2, %cta, 37;\n@!%p2 bra L;")
      .fails(ErrorKind::kFault, "trap executed");
  CHECK(run.result.error.find("CTA (37,0,0)") != std::string::npos);
}

TEST(nobody_will_set_the_flag) {
  Run run = on_threads(3, 6, 6);
  run("WAIT:\nnanosleep.u32 20;\nld.relaxed.gpu.global.u32 %r1, [%out];\n"
      "setp.eq.u32 %p1, %r1, 0;\n@%p1 bra WAIT;")
      .fails(ErrorKind::kDeadlock, "deadlock: ");
}

// All CTAs are there at once: each waits for all.
TEST(multiprocessors_are_shared_out) {
  Run run = on_threads(3, 7, 7);
  run(std::string("mov.u32 %r0, %smid;\nmov.u32 %r2, %nsmid;\nmad.lo.u32 %r0, %r2, 100, %r0;\n"
                  "setp.ne.u32 %p1, %thread, 0;\n@%p1 bra DONE;\n"
                  "red.release.gpu.global.add.u32 [%out+16000], 1;\nWAIT:\n"
                  "ld.acquire.gpu.global.u32 %r1, [%out+16000];\nsetp.lt.u32 %p2, %r1, 7;\n"
                  "@%p2 bra WAIT;\nDONE:\nbar.sync 0;\n") +
      kStore)
      .ok();
  for (uint32_t i = 0; i < 7; ++i) {
    CHECK_EQ(run.out[i * 32] / 100, 7u);
    CHECK(run.out[i * 32] % 100 < 7);
  }
}

TEST(stopped_by_its_progress_callback) {
  Run run = on_threads(2, 4, 4);
  run.config.step_limit = ~uint64_t{0};  // however long the callbacks take to come
  int calls = 0;
  run.config.progress = [&](uint64_t, uint64_t) { return ++calls < 3; };
  run("L:\nadd.u32 %r1, %r1, 1;\nbra L;")
      .fails(ErrorKind::kLaunch, "launch stopped by its progress callback");
}

TEST(warnings_of_all_threads_are_one_list) {
  Run run = on_threads(4, 16, 8);
  run.config.rules.set("uninitialized-register", "warning");
  run(std::string("add.u32 %r0, %r5, 1;") + kStore).ok();
  CHECK_EQ(run.result.warnings.size(), 1u);
  CHECK_EQ(run.result.warnings[0].count, 16u);
}

}  // namespace

int main(int argc, char** argv) { return run_all(argc, argv); }
