// Instructions, and forms of them, that the text's .target lacks.
#include "emulator/tests/refusals.h"

using namespace bwgemm::emulator;
using namespace bwgemm::emulator::testing;

namespace {

std::string refusal(const char* target, const std::string& instruction) {
  std::string text = Run::text("", "", instruction);
  text.replace(text.find("sm_100a"), 7, target);
  try {
    Module::load(text)->kernel("k");
    return "accepted";
  } catch (const Error& error) {
    return error.what();
  }
}

TEST(instructions_that_the_target_lacks) {
  const std::string wgmma = "wgmma.fence.sync.aligned;",
                    registers = "setmaxnreg.dec.sync.aligned.u32 40;",
                    tensor = "tcgen05.fence::before_thread_sync;",
                    elect = "elect.sync %r0|%p0, -1;", bulk = "cp.async.bulk.commit_group;";
  CHECK_TEXT(refusal("sm_100a", wgmma),
             "line 14: 'wgmma.fence.sync.aligned' needs .target sm_90a, not sm_100a: wgmma.fence");
  CHECK_TEXT(refusal("sm_90", wgmma), "needs .target sm_90a, not sm_90");
  CHECK_TEXT(refusal("sm_90a", tensor), "needs .target sm_100f or the like, not sm_90a");
  CHECK_TEXT(refusal("sm_120a", tensor), "needs .target sm_100f or the like, not sm_120a");
  CHECK_TEXT(refusal("sm_90", registers), "needs .target sm_90a, sm_100f or the like, not sm_90");
  CHECK_TEXT(refusal("sm_80", elect), "needs .target sm_90 or higher, not sm_80");
  CHECK_TEXT(refusal("sm_80", bulk), "needs .target sm_90 or higher, not sm_80");
  CHECK_TEXT(refusal("sm_90a",
                     "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::"
                     "bytes.b128 [%r0], [%r1];"),
             "needs .target sm_100 or higher, not sm_90a");
  for (const char* target : {"sm_90a", "sm_100f"})
    CHECK_TEXT(refusal(target, registers), "accepted");
  for (const char* target : {"sm_90", "sm_90a", "sm_100", "sm_120a"}) {
    CHECK_TEXT(refusal(target, elect), "accepted");
    CHECK_TEXT(refusal(target, bulk), "accepted");
  }
  CHECK_TEXT(refusal("sm_90a", wgmma), "accepted");
  CHECK_TEXT(refusal("sm_103a", tensor), "accepted");
  CHECK_TEXT(refusal("sm_80", "cp.async.commit_group;"), "accepted");
}

// A text that needs more than the instruction's other forms do.
TEST(forms_that_the_target_lacks) {
  const std::string eight = "{%r0, %r1, %r2, %r3, %r4, %r5, %r6, %r7}",
                    four = "{%d0, %d1, %d2, %d3}", five = "{%r0, %r1, %r2, %r3, %r4}",
                    bytes = ".reg .b8 %b<2>;\n", complete = "mbarrier::complete_tx::bytes ";
  const std::string higher = "sm_100 or higher", whole = "sm_100f, sm_120f or the like",
                    tensor = "sm_100f or the like", centre = "sm_100f, sm_103f or the like";
  const std::pair<std::string, std::string> forms[] = {
      {"add.rz.ftz.f32x2 %d0, %d1, %d2;", higher},
      {"sub.f32x2 %d0, %d1, %d2;", higher},
      {"mul.f32x2 %d0, %d1, %d2;", higher},
      {"fma.rn.f32x2 %d0, %d1, %d2, %d3;", higher},
      {"max.f32 %f0, %f1, %f2, %f3;", higher},
      {"min.NaN.ftz.abs.f32 %f0, %f1, %f2, %f3;", higher},
      {kHalf + "add.rn.f32.f16 %f0, %h1, %f2;", higher},
      {kHalf + "add.f32.bf16 %f0, %h1, %f2;", higher},
      {kHalf + "sub.rn.f32.f16 %f0, %h1, %f2;", higher},
      {kHalf + "sub.rn.f32.bf16 %f0, %h1, %f2;", higher},
      {kHalf + "fma.rn.f32.f16 %f0, %h1, %h2, %f3;", higher},
      {kHalf + "fma.rn.f32.bf16 %f0, %h1, %h2, %f3;", higher},
      {"cvt.rn.relu.satfinite.tf32.f32 %r0, %f0;", higher},
      {"cvt.rz.satfinite.tf32.f32 %r0, %f0;", higher},
      {kHalf + "cvt.rn.satfinite.relu.e2m3x2.f32 %h0, %f0, %f1;", whole},
      {kHalf + "cvt.rn.relu.f16x2.e3m2x2 %r0, %h0;", whole},
      {bytes + "cvt.rn.satfinite.relu.e2m1x2.f32 %b0, %f0, %f1;", whole},
      {bytes + "mov.u32 %r0, 0;\ncvt.u8.u32 %b0, %r0;\ncvt.rn.f16x2.e2m1x2 %r1, %b0;", whole},
      {kHalf + "cvt.rp.satfinite.ue8m0x2.f32 %h0, %f0, %f1;", whole},
      {kHalf + "cvt.rn.bf16x2.ue8m0x2 %r0, %h0;", whole},
      {"ld.global.v8.b32 " + eight + ", [%out];", higher},
      {"ld.global.v4.b64 " + four + ", [%out];", higher},
      {"ld.v4.u64 " + four + ", [%out];", higher},
      {"ld.v4.s64 " + four + ", [%out];", higher},
      {"st.global.v8.u32 [%out], " + eight + ";", higher},
      {"st.global.v4.b64 [%out], " + four + ";", higher},
      {"st.global.v4.u64 [%out], " + four + ";", higher},
      {"st.global.v4.s64 [%out], " + four + ";", higher},
      {".reg .f64 %g<4>;\nld.v4.f64 {%g0, %g1, %g2, %g3}, [%out];", higher},
      {".reg .f64 %g<4>;\nst.v4.f64 [%out], {%g0, %g1, %g2, %g3};", higher},
      {"st.bulk.weak.shared::cta [%r0], 64, 0;", higher},
      {"redux.sync.min.NaN.abs.f32 %f0, %f1, -1;", centre},
      {"cp.async.bulk.tensor.2d.shared::cta.global.tile::gather4." + complete + "[%r0], [%d1, " +
           five + "], [%r0];",
       higher},
      {"cp.async.bulk.tensor.2d.shared::cluster.global.tile::gather4." + complete +
           "[%r0], [%d1, " + five + "], [%r0];",
       tensor},
      {"cp.async.bulk.tensor.2d.global.shared::cta.tile::scatter4.bulk_group [%d1, " + five +
           "], [%r0];",
       tensor},
      {"cp.async.bulk.prefetch.tensor.2d.L2.global.tile::gather4 [%d1, " + five + "];", tensor},
      {"cp.async.bulk.tensor.2d.cta_group::1.shared::cluster.global.tile." + complete +
           "[%r0], [%d1, {%r0, %r1}], [%r0];",
       tensor},
      {"cp.async.bulk.tensor.2d.cta_group::2.shared::cluster.global.tile." + complete +
           "[%r0], [%d1, {%r0, %r1}], [%r0];",
       tensor},
      {"tensormap.replace.tile.swizzle_atomicity.shared::cta.b1024.b32 [%r0], 1;", whole},
      {"ldmatrix.sync.aligned.m16n16.x2.trans.shared.b8 {%r0, %r1, %r2, %r3}, [%r0];", whole},
      {"stmatrix.sync.aligned.m16n8.x4.trans.shared::cta.b8 [%r0], {%r0, %r1, %r2, %r3};", whole},
      {"clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.multicast::"
       "cluster::all.b128 [%r0], [%r1];",
       whole},
  };
  for (const auto& [form, need] : forms) {
    CHECK_TEXT(refusal("sm_90a", form), "needs .target " + need + ", not sm_90a");
    CHECK_TEXT(refusal("sm_100a", form), "accepted");
    CHECK_TEXT(refusal("sm_100", form), need == higher ? "accepted" : "needs .target " + need);
    CHECK_TEXT(refusal("sm_120a", form),
               need == higher || need == whole ? "accepted" : "needs .target " + need);
    CHECK_TEXT(refusal("sm_110a", form), need == centre ? "needs .target " + need : "accepted");
  }
  for (const std::string form :
       {"max.f32 %f0, %f1, %f2;", "cvt.rna.satfinite.tf32.f32 %r0, %f0;",
        "ld.global.v4.b32 {%r0, %r1, %r2, %r3}, [%out];", "redux.sync.min.s32 %r0, %r1, -1;",
        "ld.global.v8.u8 {%r0, %r1, %r2, %r3, %r4, %r5, %r6, %r7}, [%out];"})
    CHECK_TEXT(refusal("sm_90a", form), "accepted");
}

}  // namespace

int main(int argc, char** argv) { return run_all(argc, argv); }
