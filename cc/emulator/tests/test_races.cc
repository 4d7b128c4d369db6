// Races: each kernel has a fault that this run's schedule may well forgive, and a corrected twin.
#include "emulator/tests/rule_cases.h"

using namespace bwgemm::emulator;
using namespace bwgemm::emulator::testing;

namespace {

// %d2: this thread's word of the output, by thread of the grid.
const char* const kOut =
    "mov.u32 %r40, %ctaid.x;\nmov.u32 %r41, %ntid.x;\nmad.lo.u32 %r42, %r40, %r41, %r0;\n"
    "mul.wide.u32 %d2, %r42, 4;\nadd.s64 %d2, %d2, %d1;\n";
// %r20: this thread's word of buf; %r21: that of the thread in the next warp.
const char* const kWords =
    "mad.lo.u32 %r20, %r0, 4, %r3;\nadd.u32 %r21, %r0, 32;\nand.b32 %r21, %r21, 127;\n"
    "mad.lo.u32 %r21, %r21, 4, %r3;\n";
const char* const kBar = "bar.sync 0;\n";

// Barrier 0 and 1 with one arrival each.
const char* const kInit =
    "@%p0 mbarrier.init.shared::cta.b64 [%r4], 1;\n"
    "@%p0 mbarrier.init.shared::cta.b64 [%r4+8], 1;\n"
    "fence.mbarrier_init.release.cluster;\nbar.sync 0;\n";

std::string load(const char* offset) {
  return std::string(
             "@%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r4], 1024;\n"
             "@%p0 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r3+") +
         offset + "], [%d1+4096], 1024, [%r4];\n";
}

Setting clusters(uint32_t ctas, uint32_t size) {
  Setting setting;
  setting.grid.x = ctas;
  setting.cluster.x = size;
  return setting;
}

}  // namespace

TEST(two_warps_and_one_word) {
  const std::string words = kWords;
  // Read after write.
  check_rule(Rule::kSharedRace, words + "st.shared.u32 [%r20], %r0;\nld.shared.u32 %r10, [%r21];\n",
             words + "st.shared.u32 [%r20], %r0;\n" + kBar + "ld.shared.u32 %r10, [%r21];\n",
             "races with the");
  // Write after read.
  check_rule(Rule::kSharedRace,
             words + "st.shared.u32 [%r20], %r0;\n" + kBar +
                 "ld.shared.u32 %r10, [%r21];\nst.shared.u32 [%r20], %r10;\n",
             words + "st.shared.u32 [%r20], %r0;\n" + kBar + "ld.shared.u32 %r10, [%r21];\n" +
                 kBar + "st.shared.u32 [%r20], %r10;\n",
             "races with the");
  // Write after write.
  check_rule(Rule::kSharedRace, "st.shared.u32 [%r3], %r0;\n", "@%p0 st.shared.u32 [%r3], %r0;\n",
             "races with the write");
  // A barrier that only some of the warps wait at.
  check_rule(Rule::kSharedRace,
             words +
                 "st.shared.u32 [%r20], %r0;\nshr.u32 %r22, %r1, 1;\nadd.u32 %r22, %r22, 1;\n"
                 "bar.sync %r22, 64;\nld.shared.u32 %r10, [%r21];\n",
             words + "st.shared.u32 [%r20], %r0;\nbar.sync 1, 128;\nld.shared.u32 %r10, [%r21];\n",
             "races with the");
}

TEST(two_lanes_and_one_word) {
  Setting one;
  one.block.x = 32;
  // %r21: the word of the next lane.
  const std::string words =
      "mad.lo.u32 %r20, %r0, 4, %r3;\nadd.u32 %r21, %r0, 1;\nand.b32 %r21, %r21, 31;\n"
      "mad.lo.u32 %r21, %r21, 4, %r3;\n";
  const std::string store = "st.shared.u32 [%r20], %r0;\n", load = "ld.shared.u32 %r10, [%r21];\n";
  const std::string sync = "bar.warp.sync -1;\n";
  const char* message = "of the same warp in line";
  check_rule(Rule::kSharedRace, words + store + load, words + store + sync + load, message, one);
  check_rule(Rule::kSharedRace, words + store + sync + load + store,
             words + store + sync + load + sync + store, message, one);
  // A shuffle orders no memory; a lane's own word needs no order.
  check_rule(Rule::kSharedRace, words + store + "shfl.sync.bfly.b32 %r11, %r0, 1, 31, -1;\n" + load,
             words + store + "ld.shared.u32 %r10, [%r20];\n" + store, message, one);
  // One lane alone reads what the others wrote.
  check_rule(Rule::kSharedRace, words + store + "@%p0 ld.shared.u32 %r10, [%r3+64];\n",
             words + store + sync + "@%p0 ld.shared.u32 %r10, [%r3+64];\n", message, one);
  // In global memory.
  const std::string out = "mul.wide.u32 %d2, %r0, 4;\nadd.s64 %d2, %d2, %d1;\n";
  const std::string global = out + "st.global.u32 [%d2], %r0;\n";
  check_rule(Rule::kGlobalRace, global + "@%p0 ld.global.u32 %r10, [%d1+64];\n",
             global + sync + "@%p0 ld.global.u32 %r10, [%d1+64];\n", message, one);
}

TEST(a_bulk_store_of_what_other_lanes_wrote) {
  Setting one;
  one.block.x = 32;
  const auto copy = [](const char* sync) {
    return std::string(
               "mad.lo.u32 %r20, %r0, 4, %r3;\nst.shared.u32 [%r20], %r0;\n"
               "fence.proxy.async.shared::cta;\n") +
           sync +
           "@%p0 cp.async.bulk.global.shared::cta.bulk_group [%d1], [%r3], 128;\n"
           "@%p0 cp.async.bulk.commit_group;\n@%p0 cp.async.bulk.wait_group 0;\n";
  };
  check_rule(Rule::kSharedRace, copy(""), copy("bar.warp.sync -1;\n"), "of the same warp in line",
             one);
}

// Compilers let several warps store what all of them hold.
TEST(the_same_matrix_of_several_warps) {
  const std::string address =
      "and.b32 %r10, %r0, 7;\nshl.b32 %r10, %r10, 4;\nadd.u32 %r10, %r10, %r3;\nmov.b32 %r11, 1;\n"
      "stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r10], ";
  check_rule(Rule::kSharedRace, address + "{%r1};\n", address + "{%r11};\n",
             "races with the write");
}

TEST(neighbouring_bytes_are_apart) {
  // Bytes, halves and words of one granule written by different warps.
  const std::string bytes =
      "setp.eq.u32 %p1, %r1, 1;\nsetp.eq.u32 %p2, %r1, 2;\n"
      "and.b32 %r10, %r0, 31;\nsetp.eq.u32 %p3, %r10, 0;\n";
  const auto stores = [&](const char* at1, const char* at2) {
    return bytes + "@%p0 st.shared.u8 [%r3+1], 1;\n@!%p3 bra END;\n@%p1 st.shared.u16 [%r3+" + at1 +
           "], 1;\n@%p2 st.shared.u32 [%r3+" + at2 + "], 1;\nEND:\n";
  };
  check_rule(Rule::kSharedRace, stores("2", "0"), stores("2", "4"), "races with the write");
  check_rule(Rule::kSharedRace, stores("0", "8"), stores("2", "8"), "races with the write");
}

TEST(atomics_on_shared_memory) {
  check_rule(Rule::kSharedRace,
             "ld.shared.u32 %r10, [%r3];\nadd.u32 %r10, %r10, 1;\nst.shared.u32 [%r3], %r10;\n",
             "atom.shared.add.u32 %r10, [%r3], 1;\n", "races with the");
  check_rule(Rule::kSharedRace, "@%p0 st.shared.u32 [%r3], 0;\nred.shared.add.u32 [%r3], 1;\n",
             "@%p0 st.shared.u32 [%r3], 0;\nbar.sync 0;\nred.shared.add.u32 [%r3], 1;\n"
             "bar.sync 0;\nld.shared.u32 %r10, [%r3];\n",
             "races with the");
}

TEST(plain_stores_and_increments_of_one_global_word) {
  Setting grid = clusters(4, 1);
  grid.block.x = 32;
  check_rule(Rule::kGlobalRace, "mov.u32 %r40, %ctaid.x;\n@%p0 st.global.u32 [%d1], %r40;\n",
             std::string(kOut) + "st.global.u32 [%d2], 1;\n", "of 'out'", grid);
  check_rule(Rule::kSameValue, "@%p0 st.global.u32 [%d1], 1;\n",
             std::string(kOut) + "st.global.u32 [%d2], 1;\n", "write of the same value", grid);
  check_rule(Rule::kGlobalRace,
             "@!%p0 bra END;\nld.global.u32 %r10, [%d1];\nadd.u32 %r10, %r10, 1;\n"
             "st.global.u32 [%d1], %r10;\nEND:\n",
             "@%p0 atom.global.add.u32 %r10, [%d1], 1;\n", "races with the", grid);
  // An atomic of the CTA only.
  check_rule(Rule::kGlobalRace, "@%p0 red.relaxed.cta.global.add.u32 [%d1], 1;\n",
             "@%p0 red.relaxed.gpu.global.add.u32 [%d1], 1;\n", "races with the", grid);
}

// As CUDA's manual writes an addition of doubles.
TEST(a_loop_around_compare_and_swap) {
  Setting grid = clusters(4, 1);
  grid.block.x = 32;
  const auto add = [](const std::string& load) {
    return "@!%p0 bra END;\n" + load +
           " %r10, [%d1];\nAGAIN:\nmov.u32 %r11, %r10;\nadd.u32 %r12, %r11, 3;\n"
           "atom.global.cas.b32 %r10, [%d1], %r11, %r12;\nsetp.ne.u32 %p1, %r10, %r11;\n"
           "@%p1 bra AGAIN;\nEND:\n";
  };
  check_rule(Rule::kCasRead, add("ld.global.u32"), add("ld.relaxed.gpu.global.u32"), "of 'out'",
             grid);
  // Another atomic operation than that is a race with a plain read.
  check_rule(Rule::kGlobalRace,
             "@!%p0 bra END;\nld.global.u32 %r10, [%d1];\n"
             "red.global.add.u32 [%d1], 1;\nEND:\n",
             "@!%p0 bra END;\nld.relaxed.gpu.global.u32 %r10, [%d1];\n"
             "red.global.add.u32 [%d1], 1;\nEND:\n",
             "races with the", grid);
}

TEST(a_flag_hands_over_data_with_release_and_acquire) {
  Setting pair = clusters(2, 1);
  pair.block.x = 32;
  const auto hand_over = [](const char* store, const char* load) {
    return std::string(
               "@!%p0 bra END;\nmov.u32 %r40, %ctaid.x;\nsetp.eq.u32 %p1, %r40, 0;\n"
               "@!%p1 bra READ;\nst.global.u32 [%d1+64], 5;\n") +
           store + " [%d1], 1;\nbra END;\nREAD:\n" + load +
           " %r10, [%d1];\nsetp.eq.u32 %p2, %r10, 0;\n@%p2 bra READ;\n"
           "ld.global.u32 %r11, [%d1+64];\nEND:\n";
  };
  const std::string right = hand_over("st.release.gpu.global.u32", "ld.acquire.gpu.global.u32");
  check_rule(Rule::kGlobalRace, hand_over("st.relaxed.gpu.global.u32", "ld.acquire.gpu.global.u32"),
             right, "races with the write", pair);
  check_rule(Rule::kGlobalRace, hand_over("st.release.gpu.global.u32", "ld.relaxed.gpu.global.u32"),
             right, "races with the write", pair);
  check_rule(Rule::kGlobalRace, hand_over("st.global.u32", "ld.acquire.gpu.global.u32"), right,
             "races with the", pair);
  // A weak load that spins.
  check_rule(Rule::kGlobalRace, hand_over("st.release.gpu.global.u32", "ld.global.u32"), right,
             "races with the", pair);
  // Fences around relaxed accesses do as well.
  check_rule(
      Rule::kGlobalRace, hand_over("membar.gl;\nst.volatile.global.u32", "ld.volatile.global.u32"),
      "@!%p0 bra END;\nmov.u32 %r40, %ctaid.x;\nsetp.eq.u32 %p1, %r40, 0;\n@!%p1 bra READ;\n"
      "st.global.u32 [%d1+64], 5;\nfence.acq_rel.gpu;\nred.relaxed.gpu.global.add.u32 [%d1], "
      "1;\nbra END;\nREAD:\nld.relaxed.gpu.global.u32 %r10, [%d1];\nsetp.eq.u32 %p2, %r10, "
      "0;\n@%p2 bra READ;\nfence.acq_rel.gpu;\nld.global.u32 %r11, [%d1+64];\nEND:\n",
      "races with the write", pair);
}

TEST(bulk_loads_see_global_writes_beyond_a_proxy_fence) {
  const auto copy = [](const char* fence) {
    return std::string(kInit) + "@!%p0 bra WAIT;\nst.global.u32 [%d1+4096], 7;\n" + fence +
           "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r4], 1024;\n"
           "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r3], [%d1+4096], "
           "1024, [%r4];\n" +
           wait(0, 0, "WAIT");
  };
  check_rule(Rule::kProxyFence, copy(""), copy("fence.proxy.async;\n"),
             "the asynchronous proxy reads byte 4096 of 'out'");
}

TEST(asynchronous_copies_need_their_wait) {
  // Read before the wait, whether or not the data has arrived.
  check_rule(Rule::kAsyncHazard,
             kInit + load("0") + "nanosleep.u32 100000;\nld.shared.u32 %r10, [%r3];\n" +
                 wait(0, 0, "WAIT"),
             kInit + load("0") + wait(0, 0, "WAIT") + "ld.shared.u32 %r10, [%r3];\n",
             "of shared memory");
  // Waits for another barrier's phase.
  check_rule(Rule::kAsyncHazard,
             kInit + load("0") + "@%p0 mbarrier.arrive.shared::cta.b64 _, [%r4+8];\n" +
                 wait(1, 0, "OTHER") + "ld.shared.u32 %r10, [%r3];\n" + wait(0, 0, "WAIT"),
             kInit + load("0") + "@%p0 mbarrier.arrive.shared::cta.b64 _, [%r4+8];\n" +
                 wait(1, 0, "OTHER") + wait(0, 0, "WAIT") + "ld.shared.u32 %r10, [%r3];\n",
             "of shared memory");
  // Written again while others may still read.
  const std::string first = kInit + load("0") + wait(0, 0, "WAIT") + "ld.shared.u32 %r10, [%r3];\n";
  check_rule(Rule::kAsyncHazard, first + "bar.warp.sync -1;\n" + load("0") + wait(0, 1, "AGAIN"),
             first + kBar + load("0") + wait(0, 1, "AGAIN"), "of shared memory");
}

TEST(a_bulk_load_must_be_waited_for) {
  check_rule(Rule::kCtaExit, kInit + load("0"), kInit + load("0") + wait(0, 0, "WAIT"), "CTA 0");
}

TEST(distributed_shared_memory_outlives_its_readers) {
  const std::string peer = "xor.b32 %r10, %r2, 1;\nmapa.shared::cluster.u32 %r11, %r3, %r10;\n";
  const std::string fill = "@%p0 st.shared.u32 [%r3], 1;\n" + cluster_sync() + peer;
  check_rule(Rule::kCtaExit, fill + "ld.shared::cluster.u32 %r12, [%r11];\n",
             fill + "ld.shared::cluster.u32 %r12, [%r11];\n" + cluster_sync(), "CTA",
             clusters(2, 2));
}

TEST(too_many_arrivals) {
  // Each warp's leader arrives where one arrival is expected.
  const std::string init =
      std::string(kInit) + "and.b32 %r10, %r0, 31;\nsetp.eq.u32 %p1, %r10, 0;\n";
  check_rule(Rule::kMbarrierOverrun, init + "@%p1 mbarrier.arrive.shared::cta.b64 _, [%r4];\n",
             init + "@%p0 mbarrier.arrive.shared::cta.b64 _, [%r4];\n" + wait(0, 0, "WAIT") + kBar +
                 "@%p0 mbarrier.arrive.shared::cta.b64 _, [%r4];\n" + wait(0, 1, "AGAIN"),
             "may come before the end of the last phase");
}

TEST(too_many_lanes_arrive) {
  const auto arrive = [](const char* instruction, const char* count) {
    return std::string("@%p0 mbarrier.init.shared::cta.b64 [%r4], ") + count +
           ";\nbar.sync 0;\nsetp.lt.u32 %p1, %r0, 32;\n@%p1 " + instruction + " [%r4];\n" +
           wait(0, 0, "WAIT");
  };
  for (const char* instruction :
       {"mbarrier.arrive.shared::cta.b64 _,", "cp.async.mbarrier.arrive.noinc.shared.b64"}) {
    for (const char* count : {"31", "17", "1"}) {
      check_rule(Rule::kMbarrierOverrun, arrive(instruction, count), arrive(instruction, "32"),
                 "more lanes arrive at mbarrier 0x10400 ('bar') of CTA 0 than its phase waits for: "
                 "any of them may be counted for the next phase");
    }
  }
  // Of two mbarriers, each lane arrives at one.
  const auto split = [](const char* count) {
    return std::string(
               "@%p0 mbarrier.init.shared::cta.b64 [%r4], 16;\n@%p0 "
               "mbarrier.init.shared::cta.b64 [%r4+8], ") +
           count +
           ";\nbar.sync 0;\nsetp.lt.u32 %p1, %r0, 32;\nand.b32 %r10, %r0, 1;\nmad.lo.u32 %r10, "
           "%r10, 8, %r4;\n@%p1 mbarrier.arrive.shared::cta.b64 _, [%r10];\n";
  };
  check_rule(Rule::kMbarrierOverrun, split("15"), split("16"), "('bar'+0x8) of CTA 0");
}

TEST(initialised_mbarriers_are_made_visible) {
  // A relaxed arrival at the cluster barrier orders the initialisation only with its fence.
  const auto remote = [](const char* fence, const char* arrive) {
    return std::string("@%p0 mbarrier.init.shared::cta.b64 [%r4], 1;\n") + fence +
           "barrier.cluster.arrive." + arrive +
           "aligned;\nbarrier.cluster.wait.aligned;\nxor.b32 %r10, %r2, 1;\n"
           "mapa.shared::cluster.u32 %r11, %r4, %r10;\n"
           "@%p0 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r11];\n" +
           wait(0, 0, "WAIT") + cluster_sync();
  };
  const char* fence = "fence.mbarrier_init.release.cluster;\n";
  check_rule(Rule::kMbarrierInit, remote("", "relaxed."), remote(fence, "relaxed."),
             "nothing orders that after its initialisation", clusters(2, 2));
  check_rule(Rule::kMbarrierInit, remote("", "relaxed."), remote("", "release."),
             "nothing orders that after its initialisation", clusters(2, 2));
  // The asynchronous proxy needs it too.
  const std::string copy = kInit + load("0") + wait(0, 0, "WAIT");
  const size_t at = copy.find("fence.mbarrier_init");
  check_rule(Rule::kMbarrierInit, std::string(copy).erase(at, copy.find('\n', at) - at + 1), copy,
             "no fence.mbarrier_init or fence.proxy.async follows its initialisation");
  // A fence behind the copy comes too late.
  const std::string late =
      kInit + load("0") + "fence.proxy.async.shared::cta;\n" + wait(0, 0, "WAIT");
  check_rule(Rule::kMbarrierInit, std::string(late).erase(at, copy.find('\n', at) - at + 1), late,
             "no fence.mbarrier_init or fence.proxy.async follows its initialisation");
}

TEST(without_histories_only_this_schedule_counts) {
  Launcher launcher;
  launcher.config.races = false;
  const LaunchResult result = launcher.run(kernel("", "st.shared.u32 [%r3], %r0;\n"), Params());
  CHECK_TEXT(result.error, "");
  CHECK(result.warnings.empty());
}

int main(int argc, char** argv) { return run_all(argc, argv); }
