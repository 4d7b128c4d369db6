// Cluster launch control: running clusters take over the ones that have not started.
#include "emulator/tests/tensor_kernel.h"

using namespace bwgemm::emulator;
using namespace bwgemm::emulator::testing;

namespace {

// Every CTA marks out[its id], then asks for another one until there is none. Thread 0 of rank 0
// asks for the whole cluster; `per_cta` asks with the form that answers its own CTA only.
std::string persistent_kernel(bool multicast) {
  return kernel(
      ".param .u64 out",
      "ld.param.u64 %d0, [out];\n" + init_barriers() +
          "mov.u32 %r10, %ctaid.x;\nmov.u32 %r20, %ctaid.y;\nmov.b32 %r11, 0;\n"
          "NEXT:\n"
          // out[y * 64 + x] += 1 by thread 0 of each CTA
          "mad.lo.u32 %r21, %r20, 64, %r10;\nmul.wide.u32 %d1, %r21, 4;\nadd.u64 %d1, %d1, %d0;\n"
          "@%p0 red.global.add.u32 [%d1], 1;\n"
          "@%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r4], 16;\n" +
          cluster_sync() +
          "setp.eq.u32 %p1, %r2, 0;\nand.pred %p1, %p1, %p0;\n"
          "@%p1 clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes" +
          (multicast ? ".multicast::cluster::all" : "") +
          ".b128 [%r5], [%r4];\n"
          "FULL:\nmbarrier.try_wait.parity.shared::cta.b64 %p7, [%r4], %r11;\n@!%p7 bra FULL;\n"
          "xor.b32 %r11, %r11, 1;\n"
          "{\n.reg .b128 answer;\nld.shared.b128 answer, [%r5];\n"
          "clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p2, answer;\n"
          "@%p2 clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {%r12, %r20, _, _}, "
          "answer;\n"
          "@%p2 clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 %r13, answer;\n}\n" +
          cluster_sync() + "add.u32 %r10, %r13, %r2;\n@%p2 bra NEXT;\n");
}

}  // namespace

TEST(every_cluster_is_run_once) {
  for (const uint32_t cluster : {1u, 2u}) {
    for (uint64_t seed = 0; seed < 5; ++seed) {
      Buffer out(64 * 4 * 4);
      Launcher launcher;
      launcher.config.seed = seed;
      launcher.config.sm_count = 2;
      launcher.config.shared_per_sm = 100 * 1024;  // one CTA on an SM
      launcher.grid = Dim3{14, 3, 1};
      launcher.cluster = Dim3{cluster, 1, 1};
      launcher.add(out, true, "out");
      const LaunchResult result =
          launcher.run(persistent_kernel(cluster == 2), Params().u64(out.address()));
      CHECK_TEXT(result.error, "");
      int wrong = 0;
      for (uint32_t y = 0; y < 4; ++y) {
        for (uint32_t x = 0; x < 64; ++x)
          wrong += out.as<uint32_t>()[y * 64 + x] != (x < 14 && y < 3);
      }
      CHECK_EQ(wrong, 0);
      CHECK(result.stats.clusters_cancelled > 0);
      CHECK_EQ(result.stats.clusters_cancelled * cluster + result.stats.ctas, 14u * 3);
    }
  }
}

TEST(queries_refuse) {
  const auto refused = [](const std::string& body, const char* why) {
    Launcher launcher;
    const LaunchResult result = launcher.run(kernel("", body), Params());
    CHECK(!result.ok);
    CHECK_TEXT(result.error, why);
  };
  refused(
      "{\n.reg .b128 answer;\nmov.b64 %d0, 5;\nmov.b128 answer, {%d0, %d0};\n"
      "clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p2, answer;\n}\n",
      "not a response of clusterlaunchcontrol.try_cancel");
  // The only cluster asks: none is left, and then there is no first CTA.
  refused(init_barriers() +
              "@%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r4], 16;\n"
              "@%p0 "
              "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 "
              "[%r5], [%r4];\n" +
              wait(0, 0, "FULL") +
              "{\n.reg .b128 answer;\nld.shared.b128 answer, [%r5];\n"
              "clusterlaunchcontrol.query_cancel.get_first_ctaid::y.b32.b128 %r13, answer;\n}\n",
          "a request that was not granted");
  refused("clusterlaunchcontrol.try_cancel.mbarrier::complete_tx::bytes.b128 [%r5], [%r4];\n",
          "needs .async");
  refused(
      "{\n.reg .b128 answer;\nclusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {%r1}, "
      "answer;\n}\n",
      "vector of 4");
}

int main(int argc, char** argv) { return run_all(argc, argv); }
