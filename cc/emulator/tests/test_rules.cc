// Rules: names, severities, what a report says, and the rules that look at one thread or warp.
#include "emulator/machine/rules.h"
#include "emulator/tests/rule_cases.h"

using namespace bwgemm::emulator;
using namespace bwgemm::emulator::testing;

namespace {

// Warp 0 allocates 32 columns; %r6 is the address in this warp's lanes.
std::string with_tensor_memory(const std::string& body) {
  return "setp.ne.u32 %p1, %r1, 0;\n@%p1 bra ALLOCED;\n"
         "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r5], 32;\nALLOCED:\n"
         "bar.sync 0;\nld.shared.b32 %r7, [%r5];\nshl.b32 %r6, %r1, 21;\n"
         "add.u32 %r6, %r6, %r7;\n" +
         body +
         "bar.sync 0;\n@%p1 bra FREED;\n"
         "tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r7, 32;\nFREED:\n";
}

}  // namespace

TEST(severities_are_set_by_name) {
  Rules rules;
  CHECK(rules[Rule::kAsyncHazard] == Severity::kError);
  CHECK(!rules.on(Rule::kUninitializedShared));
  CHECK(rules.set("uninitialized-shared", "warning"));
  CHECK(rules[Rule::kUninitializedShared] == Severity::kWarning);
  CHECK(!rules.set("uninitialized", "warning"));
  CHECK(!rules.set("async-hazard", "loud"));
  for (size_t i = 0; i < kRuleCount; ++i) {
    CHECK(rules.set(info(static_cast<Rule>(i)).name, "off"));
    CHECK(!rules.on(static_cast<Rule>(i)));
  }
}

TEST(a_report_names_variable_and_source_line) {
  Launcher launcher;
  launcher.block.x = 32;
  launcher.config.rules.set(Rule::kUninitializedShared, Severity::kWarning);
  const std::string text = kernel("",
                                  ".loc 1 16 3\nadd.u32 %r10, %r3, 32;\n.loc 1 17 5\n"
                                  "ld.shared.u32 %r11, [%r10];\nld.shared.u32 %r11, [%r10];\n") +
                           ".file 1 \"kernel.cu\"\n";
  const LaunchResult warned = launcher.run(text, Params());
  CHECK_TEXT(warned.error, "");
  CHECK_EQ(warned.warnings.size(), size_t{2});
  const Warning& first = warned.warnings[0];
  CHECK_TEXT(first.text,
             "read of shared memory 0x420 ('buf'+0x20) that nothing has written: "
             "ld.shared.u32 %r11, [%r10]; (kernel.cu:17)");
  CHECK_TEXT(first.text, "[rule uninitialized-shared]");
  CHECK_EQ(first.count, uint64_t{32});
  launcher.config.rules.set(Rule::kUninitializedShared, Severity::kError);
  const LaunchResult failed = launcher.run(text, Params());
  CHECK_TEXT(failed.error, first.text);
  CHECK_EQ(failed.rule, "uninitialized-shared");
}

TEST(a_place_ends_with_its_function) {
  const std::string text =
      ".version 8.8\n.target sm_100a\n.address_size 64\n.file 1 \"a.cu\"\n"
      ".visible .entry j()\n{\n.loc 1 5 0\nret;\n}\n.visible .entry k()\n{\n.reg .b64 %d<2>;\n"
      "st.global.u32 [0], 1;\nret;\n}\n";
  const LaunchResult result = Launcher().run(text, Params());
  CHECK_TEXT(result.error, "st.global.u32 [0], 1; [CTA");
}

TEST(a_thread_must_not_exit_with_bulk_stores_in_flight) {
  const std::string store =
      "st.shared.u32 [%r3], 1;\nfence.proxy.async.shared::cta;\nbar.sync 0;\n@!%p0 bra END;\n"
      "cp.async.bulk.global.shared::cta.bulk_group [%d1], [%r3], 16;\n"
      "cp.async.bulk.commit_group;\n";
  const std::string init = "@%p0 ";
  const char* message = "exits while bulk stores that it has issued may still read shared memory";
  check_rule(Rule::kBulkExit, init + store + "END:\n",
             init + store + "cp.async.bulk.wait_group.read 0;\nEND:\n", message);
  // All but the last group.
  check_rule(Rule::kBulkExit,
             init + store +
                 "cp.async.bulk.global.shared::cta.bulk_group [%d1], [%r3], 16;\n"
                 "cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 1;\nEND:\n",
             init + store + "cp.async.bulk.wait_group 0;\nEND:\n", message);
}

TEST(parities_are_0_and_1) {
  const auto body = [](const char* parity) {
    return std::string("@%p0 mbarrier.init.shared::cta.b64 [%r4], 1;\nbar.sync 0;\n") +
           "@%p0 mbarrier.arrive.shared::cta.b64 _, [%r4];\n"
           "WAIT:\nmbarrier.try_wait.parity.shared::cta.b64 %p1, [%r4], " +
           parity +
           ";\n@!%p1 bra WAIT;\nmul.wide.u32 %d2, %r0, 4;\nadd.s64 %d2, %d2, %d1;\n"
           "st.global.u32 [%d2], 1;\n";
  };
  check_rule(Rule::kMbarrierParity, body("2"), body("0"),
             "phase parity 2 is neither 0 nor 1: its last bit counts");
  // Without the arrival only odd ones end: the phase before the first one is over.
  const auto without = [&](const char* parity) {
    std::string text = body(parity);
    const size_t at = text.find("@%p0 mbarrier.arrive");
    return run_rule(text.erase(at, text.find('\n', at) - at), Rule::kMbarrierParity,
                    Severity::kWarning, 0, {});
  };
  const LaunchResult odd = without("0xffffffff");
  CHECK_TEXT(odd.error, "");
  CHECK_EQ(odd.warnings.size(), size_t{1});
  CHECK_TEXT(without("0xfffffffe").error, "(waits for the end of the phase with parity 0)");
}

TEST(registers_of_a_tensor_memory_load_need_its_wait) {
  const std::string fill =
      "tcgen05.st.sync.aligned.32x32b.x2.b32 [%r6], {%r0, %r0};\n"
      "tcgen05.wait::st.sync.aligned;\n";
  const std::string load = "tcgen05.ld.sync.aligned.32x32b.x2.b32 {%r10, %r11}, [%r6];\n";
  const std::string wait = "tcgen05.wait::ld.sync.aligned;\n";
  check_rule(Rule::kLoadWait, with_tensor_memory(fill + load + "add.u32 %r12, %r10, 1;\n" + wait),
             with_tensor_memory(fill + load + "add.u32 %r12, %r0, 1;\nmov.b32 %r13, %r11;\n" +
                                wait + "add.u32 %r12, %r10, %r13;\n"),
             "uses a register that an earlier tcgen05.ld loads");
}

TEST(a_warp_names_its_own_lanes_of_tensor_memory) {
  const std::string wait = "tcgen05.wait::st.sync.aligned;\n";
  check_rule(Rule::kTensorLanes,
             with_tensor_memory("tcgen05.st.sync.aligned.32x32b.x1.b32 [%r7], {%r0};\n" + wait),
             with_tensor_memory("tcgen05.st.sync.aligned.32x32b.x1.b32 [%r6], {%r0};\n" + wait),
             "of tensor memory, not lanes 0-31: its own are accessed");
}

TEST(relaxed_loads_and_stores_need_no_wait) {
  const std::string body = with_tensor_memory(
      "tcgen05.st.sync.aligned.32x32b.x1.b32 [%r6], {%r0};\n"
      "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r10}, [%r6];\n"
      "mul.wide.u32 %d2, %r0, 4;\nadd.s64 %d2, %d2, %d1;\nst.global.u32 [%d2], %r10;\n");
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    Launcher launcher;
    launcher.config.seed = seed;
    Buffer out(1024);
    launcher.add(out, true, "out");
    const std::string text = kernel(".param .u64 out", "ld.param.u64 %d1, [out];\n" + body);
    CHECK_TEXT(launcher.run(text, Params().u64(out.address())).error,
               "its completion has not been waited for");
    launcher.config.relaxed = true;
    CHECK_TEXT(launcher.run(text, Params().u64(out.address())).error, "");
    for (uint32_t t = 0; t < 128; ++t) CHECK_EQ(out.as<uint32_t>()[t], t);
  }
}

TEST(shuffles_read_lanes_that_take_part) {
  const std::string leave = "setp.ge.u32 %p1, %r0, 16;\n@%p1 exit;\n";
  const std::string use = "st.global.u32 [%d1], %r10;\n";
  Setting one;
  one.block.x = 32;
  const auto down = [&](const std::string& lanes) {
    return leave + "shfl.sync.down.b32 %r10, %r0, 8, 31, 0xffff;\nsetp.lt.u32 %p2, %r0, " + lanes +
           ";\n@!%p2 exit;\nbar.warp.sync 0xff;\nmul.wide.u32 %d2, %r0, 4;\nadd.s64 %d2, %d2, "
           "%d1;\n"
           "st.global.u32 [%d2], %r10;\n";
  };
  check_rule(Rule::kShuffleSource, leave + "shfl.sync.bfly.b32 %r10, %r0, 16, 31, 0xffff;\n" + use,
             down("8"),
             "lanes 0x0000ffff use what a shuffle has read of a lane that does not execute it",
             one);
  check_rule(Rule::kExitedLanes, leave + "shfl.sync.bfly.b32 %r10, %r0, 8, 31, -1;\n",
             leave + "shfl.sync.bfly.b32 %r10, %r0, 8, 31, 0xffff;\n",
             "this is for lanes 0xffffffff, of which 0xffff0000 have exited", one);
  const std::string registers = "setmaxnreg.dec.sync.aligned.u32 40;\n";
  check_rule(Rule::kExitedLanes, leave + registers, registers + leave,
             "this is for lanes 0xffffffff, of which 0xffff0000 have exited", one);
}

TEST(one_lane_waits_for_itself) {
  const auto body = [](const std::string& meet) {
    return "shl.b32 %r10, %r0, 2;\nadd.u32 %r10, %r10, %r3;\nst.shared.u32 [%r10], %r0;\n"
           "fence.proxy.async.shared::cta;\nbar.warp.sync -1;\nsetp.eq.u32 %p1, %r0, 0;\n"
           "@%p1 cp.async.bulk.global.shared::cta.bulk_group [%d1], [%r3], 128;\n"
           "@%p1 cp.async.bulk.commit_group;\n@%p1 cp.async.bulk.wait_group.read 0;\n" +
           meet + "st.shared.u32 [%r10], %r0;\n@%p1 cp.async.bulk.wait_group 0;\n";
  };
  Setting one;
  one.block.x = 32;
  check_rule(Rule::kLaneWait, body(""), body("bar.warp.sync -1;\n"),
             "for which another lane of this warp has waited: no bar.warp.sync follows the wait",
             one);
}

// %d2: this thread's word of the output.
const char* const kOwnWord = "mul.wide.u32 %d2, %r0, 4;\nadd.s64 %d2, %d2, %d1;\n";

TEST(undefined_registers_must_not_reach_a_result) {
  Setting one;
  one.block.x = 32;
  const auto check = [&](const std::string& wrong, const std::string& right) {
    check_rule(Rule::kUninitializedRegister, kOwnWord + wrong, kOwnWord + right,
               "use what comes from a register or local variable that nothing has written", one);
  };
  // Stored after arithmetic; undefined where a branch leaves it out, in one lane.
  check("add.u32 %r21, %r20, 1;\nst.global.u32 [%d2], %r21;\n",
        "mov.u32 %r20, 5;\nadd.u32 %r21, %r20, 1;\nst.global.u32 [%d2], %r21;\n");
  const auto branches = [](const char* other) {
    return std::string("setp.eq.u32 %p1, %r0, 7;\n@%p1 bra SKIP;\nmov.u32 %r20, 1;\nSKIP:\n") +
           other + "st.global.u32 [%d2], %r20;\n";
  };
  check(branches(""), branches("@%p1 mov.u32 %r20, 2;\n"));
  // A loop whose sum is never set to zero.
  const auto loop = [](const char* before) {
    return std::string(before) +
           "mov.u32 %r22, 0;\nLOOP:\nadd.u32 %r20, %r20, %r22;\nadd.u32 %r22, %r22, 1;\n"
           "setp.lt.u32 %p2, %r22, 4;\n@%p2 bra LOOP;\nst.global.u32 [%d2], %r20;\n";
  };
  check(loop(""), loop("mov.u32 %r20, 0;\n"));
  // What decides a branch, and what is an address.
  check("setp.eq.u32 %p2, %r20, 5;\n@%p2 bra END;\nst.global.u32 [%d2], 1;\nEND:\n",
        "mov.u32 %r20, 5;\nsetp.eq.u32 %p2, %r20, 5;\n@%p2 bra END;\nst.global.u32 [%d2], "
        "1;\nEND:\n");
  check(
      "and.b32 %r21, %r20, 4;\ncvt.u64.u32 %d3, %r21;\nadd.s64 %d3, %d3, %d1;\n"
      "ld.global.u32 %r22, [%d3];\n",
      "mov.u32 %r20, 4;\nand.b32 %r21, %r20, 4;\ncvt.u64.u32 %d3, %r21;\nadd.s64 %d3, %d3, "
      "%d1;\nld.global.u32 %r22, [%d3];\n");
  // Chosen by a selection; a predicate that nothing has written.
  check("setp.lt.u32 %p1, %r0, 16;\nselp.b32 %r21, %r20, 7, %p1;\nst.global.u32 [%d2], %r21;\n",
        "setp.lt.u32 %p1, %r0, 40;\nselp.b32 %r21, 7, %r20, %p1;\nst.global.u32 [%d2], %r21;\n");
  check("selp.b32 %r21, 1, 0, %p3;\nst.global.u32 [%d2], %r21;\n",
        "setp.eq.u32 %p3, %r0, 0;\nselp.b32 %r21, 1, 0, %p3;\nst.global.u32 [%d2], %r21;\n");
  // Of a packed register only the half that was set.
  check("mov.b32 %r21, {%h1, %h2};\nst.global.u32 [%d2], %r21;\n",
        "mov.u16 %h1, 3;\nmov.b32 %r21, {%h1, %h2};\nmov.b32 {%h3, %h4}, %r21;\n"
        "st.global.u16 [%d2], %h3;\n");
  // A dot product with a half of a register: the other half may hold anything.
  check("dp2a.lo.s32.s32 %r21, %r0, %r20, 5;\nst.global.u32 [%d2], %r21;\n",
        "prmt.b32 %r22, %r0, %r20, 0x5410;\ndp2a.lo.s32.s32 %r21, %r0, %r22, "
        "5;\nst.global.u32 [%d2], %r21;\n");
  // Lanes whose store is guarded may hold nothing; a value from another lane is defined there.
  check("setp.eq.u32 %p1, %r0, 0;\n@%p1 mov.u32 %r20, 9;\nst.global.u32 [%d2], %r20;\n",
        "setp.eq.u32 %p1, %r0, 0;\n@%p1 mov.u32 %r20, 9;\n@%p1 st.global.u32 [%d2], %r20;\n"
        "shfl.sync.idx.b32 %r21, %r20, 0, 31, 0xffffffff;\nst.global.u32 [%d2], %r21;\n");
}

int main(int argc, char** argv) { return run_all(argc, argv); }
