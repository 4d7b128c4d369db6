// Forms of instructions that PTX does not have: the tables of isa/forms.cc.
#include "emulator/tests/refusals.h"

using namespace bwgemm::emulator;
using namespace bwgemm::emulator::testing;

namespace {

// Each decodes, but for a type or modifier that this instruction does not have.
TEST(forms_that_do_not_exist) {
  const std::vector<std::string> bodies = {
      "add.b32 %r0, %r1, %r2;",
      "add.ftz.f64 %d0, %d1, %d2;",
      "add.sat.f32x2 %d0, %d1, %d2;",
      "add.cc.u16x2 %r0, %r1, %r2;",
      "subc.b32 %r0, %r1, %r2;",
      "mul.ftz.bf16x2 %r0, %r1, %r2;",
      "mul.lo.b32 %r0, %r1, %r2;",
      "mad.f32 %f0, %f1, %f2, %f3;",
      "madc.u32 %r0, %r1, %r2, %r3;",
      "mul24.u32 %r0, %r1, %r2;",
      "fma.f32 %f0, %f1, %f2, %f3;",
      "fma.rn.sat.relu.f16x2 %r0, %r1, %r2, %r3;",
      "div.f32 %f0, %f1, %f2;",
      "div.approx.f64 %d0, %d1, %d2;",
      "div.full.rn.f32 %f0, %f1, %f2;",
      "abs.s16x2 %r0, %r1;",
      "neg.ftz.f64 %d0, %d1;",
      "min.b32 %r0, %r1, %r2;",
      "max.abs.f32 %f0, %f1, %f2;",
      "max.NaN.f64 %d0, %d1, %d2;",
      "max.xorsign.abs.f32 %f0, %f1, %f2, %f3;",
      "rcp.f32 %f0, %f1;",
      "sqrt.approx.f64 %d0, %d1;",
      "sin.f32 %f0, %f1;",
      "ex2.approx.bf16x2 %r0, %r1;",
      "tanh.approx.ftz.bf16x2 %r0, %r1;",
      "tanh.approx.ftz.f32 %f0, %f1;",
      kHalf + "tanh.approx.ftz.bf16 %h0, %h1;",
      kHalf + "ex2.approx.bf16 %h0, %h1;",
      "popc.u32 %r0, %r1;",
      "bfe.b32 %r0, %r1, %r2, %r3;",
      "bmsk.b32 %r0, %r1, %r2;",
      "dp4a.b32.u32 %r0, %r1, %r2, %r3;",
      "setp.lt.b32 %p0, %r1, %r2;",
      "setp.lo.s32 %p0, %r1, %r2;",
      "setp.eq.ftz.f64 %p0, %d1, %d2;",
      "set.eq.b32.u32 %r0, %r1, %r2;",
      "selp.f16x2 %r0, %r1, %r2, %p0;",
      "slct.ftz.u32.s32 %r0, %r1, %r2, %r3;",
      "and.u32 %r0, %r1, %r2;",
      "shl.u32 %r0, %r1, %r2;",
      "shf.l.wrap.u32 %r0, %r1, %r2, %r3;",
      "mov.f16x2 %r0, %r1;",
      "cvta.shared.s64 %d0, %d1;",
      "mapa.shared.u32 %r0, %r1, 0;",
      kHalf + "cvt.rni.f16.f32 %h0, %f0;",
      kHalf + "cvt.rn.bf16x2.e4m3x2 %r0, %h0;",
      kHalf + "cvt.rn.e5m2x2.f32 %h0, %f0, %f1;",
      "cvt.sat.s64.s32 %d0, %r0;",
      "cvt.rn.s32.f32 %r0, %f0;",
      "cvt.rzi.f32.s32 %f0, %r0;",
      "cvt.rzi.f32.f64 %f0, %d0;",
      "cvt.b32.u32 %r0, %r1;",
      "cvt.pack.sat.u8.s32 %r0, %r1, %r2, %r3;",
      "shfl.sync.idx.u32 %r0, %r1, 0, 31, -1;",
      "match.any.sync.u32 %r0, %r1, -1;",
      "redux.sync.and.u32 %r0, %r1, -1;",
      "redux.sync.add.b32 %r0, %r1, -1;",
      "vote.sync.ballot.pred %r0, %p1, -1;",
      "atom.global.add.s64 %d0, [%out], %d1;",
      "atom.global.exch.u32 %r0, [%out], %r1;",
      "atom.global.add.noftz.f32 %f0, [%out], %f1;",
      "atom.global.add.f16x2 %r0, [%out], %r1;",
      "red.global.exch.b32 [%out], %r1;",
      "red.shared.add.v2.f32 [%r1], {%f0, %f1};",
      "bar.sync.aligned 0;",
      "barrier.cluster.wait.release;",
      "barrier.cluster.arrive.acquire;",
      "fence.acq_rel;",
      "fence.proxy.async.shared;",
      "fence.proxy.tensormap::generic.release;",
      "fence.mbarrier_init.acquire.cluster;",
      "membar.gpu;",
      "mbarrier.init.shared [%r1], 1;",
      "mbarrier.arrive.acquire.cta.shared.b64 _, [%r1];",
      "mbarrier.arrive.noComplete.shared::cluster.b64 _, [%r1], 1;",
      "mbarrier.try_wait.release.cta.shared.b64 %p0, [%r1], %d0;",
      "mbarrier.test_wait.shared::cluster.b64 %p0, [%r1], %d0;",
      "cp.async.ca [%r1], [%out], 16;",
      "prefetch.shared.L1 [%r1];",
      "createpolicy.fractional.L2::evict_first.L2::evict_last.b64 %d0, 1.0;",
      "setmaxnreg.inc.u32 64;",
      "nanosleep 10;",
      "movmatrix.sync.aligned.m8n8.b16 %r0, %r1;",
  };
  for (const std::string& body : bodies) check_all({{body, "PTX 8.8 has no form '"}});
  check_all({
      {"red.acquire.gpu.global.add.u32 [%out], %r0;", "red cannot acquire"},
      {kHalf + "setp.eq.f16 %p0|%p1, %h0, %h1;", "no p|q with .f16"},
      {"mov.u64 %d0, {%r0, %r1};", "a vector needs a .b type"},
      {".reg .b8 %c<8>;\nmov.b64 %d0, {%c0, %c1, %c2, %c3, %c4, %c5, %c6, %c7};",
       "vector of this size"},
      {"mbarrier.arrive.shared::cluster.b64 [%r1];", "too few operands"},
      {"mbarrier.arrive.shared::cluster.b64 %d0, [%r1];",
       "a state from .shared::cluster must be '_'"},
  });
}

// The memory of a load or store decides which modifiers it has, and how large its vectors are.
TEST(forms_of_loads_and_stores) {
  const std::vector<std::string> bodies = {
      kHalf + "ld.global.f16 %h0, [%out];",
      "ld.global.f16x2 %r0, [%out];",
      "ld.wb.u32 %r0, [%out];",
      "ld.nc.u32 %r0, [%out];",
      "ld.shared.nc.u32 %r0, [%r1];",
      "ld.global.lu.nc.u32 %r0, [%out];",
      "ld.global.cg.nc.L1::evict_last.u32 %r0, [%out];",
      "ld.global.ca.L1::evict_last.u32 %r0, [%out];",
      "ld.global.L1::evict_last.L1::evict_first.u32 %r0, [%out];",
      "ld.global.L1::evict_sometimes.u32 %r0, [%out];",
      "ld.global.L2::32B.u32 %r0, [%out];",
      "ld.shared.L1::evict_last.u32 %r0, [%r1];",
      "ld.local.L2::128B.u32 %r0, [%r1];",
      "ld.relaxed.u32 %r0, [%out];",
      "ld.relaxed.gpu.global.cg.u32 %r0, [%out];",
      "ld.acquire.gpu.local.u32 %r0, [%r1];",
      "ld.release.gpu.global.u32 %r0, [%out];",
      "ld.gpu.global.u32 %r0, [%out];",
      "ld.volatile.cta.global.u32 %r0, [%out];",
      "ld.volatile.local.u32 %r0, [%r1];",
      "ld.volatile.global.L1::evict_last.u32 %r0, [%out];",
      "ld.mmio.relaxed.gpu.global.u32 %r0, [%out];",
      "ld.mmio.relaxed.sys.global.v2.u32 {%r0, %r1}, [%out];",
      "ldu.shared.u32 %r0, [%r1];",
      "ldu.global.ca.u32 %r0, [%out];",
      "st.global.ca.u32 [%out], %r0;",
      "st.global.nc.u32 [%out], %r0;",
      "st.global.L2::128B.u32 [%out], %r0;",
      "st.shared.L2::cache_hint.u32 [%r1], %r0, %d0;",
      "st.acquire.gpu.global.u32 [%out], %r0;",
      "st.release.global.u32 [%out], %r0;",
      "st.relaxed.gpu.global.wt.u32 [%out], %r0;",
      "st.volatile.global.L2::cache_hint.u32 [%out], %r0, %d0;",
      "st.async.shared::cluster.u32 [%r1], 1, [%r1];",
      "st.async.cluster.shared::cta.mbarrier::complete_tx::bytes.u32 [%r1], 1, [%r1];",
      "st.async.relaxed.mbarrier::complete_tx::bytes.u32 [%r1], 1, [%r1];",
      "red.async.mbarrier::complete_tx::bytes.add.u32 [%r1], 1, [%r1];",
      "red.async.relaxed.cluster.add.u32 [%r1], 1, [%r1];",
      "red.async.relaxed.cluster.mbarrier::complete_tx::bytes.min.u64 [%r1], %d0, [%r1];",
      "red.async.relaxed.cluster.mbarrier::complete_tx::bytes.and.u32 [%r1], 1, [%r1];",
  };
  for (const std::string& body : bodies) check_all({{body, "PTX 8.8 has no form '"}});
  const std::string eight = "{%r0, %r1, %r2, %r3, %r4, %r5, %r6, %r7}",
                    four = "{%d0, %d1, %d2, %d3}";
  const char *size = "unsupported vector of this size", *evicts = "belongs to vectors of 256 bits";
  check_all({
      {"ld.shared.v8.u32 " + eight + ", [%r1];", size},
      {"ld.relaxed.gpu.shared::cta.v4.u64 " + four + ", [%r1];", size},
      {"ldu.global.v4.u64 " + four + ", [%out];", size},
      {"st.local.v4.b64 [%r1], " + four + ";", size},
      {kWide + "ld.global.v2.b128 {%q0, %q1}, [%out];", size},
      {"ld.global.L2::evict_first.u32 %r0, [%out];", evicts},
      {"st.global.L2::evict_last.v4.u32 [%out], {%r0, %r1, %r2, %r3};", evicts},
  });
}

// Each has every modifier of its form.
TEST(accepted_loads_and_stores) {
  const std::string eight = "{%r0, %r1, %r2, %r3, %r4, %r5, %r6, %r7}",
                    four = "{%r0, %r1, %r2, %r3}",
                    policy = "createpolicy.fractional.L2::evict_first.b64 %d0, 1.0;\n";
  Run run;
  const std::vector<std::string> bodies = {
      "ld.weak.global.L1::no_allocate.L2::evict_last.L2::cache_hint.L2::256B.v8.b32 " + eight +
          ", [%out], %d0;",
      "ld.global.cs.nc.L2::cache_hint.L2::128B.v4.b32 " + four + ", [%out], %d0;",
      "ld.relaxed.gpu.global.L1::evict_last.L2::cache_hint.L2::64B.v4.u32 " + four +
          ", [%out], %d0;",
      "ld.acquire.sys.u32 %r0, [%out];",
      "ld.volatile.global.L2::64B.v2.f32 {%f0, %f1}, [%out];",
      "ld.mmio.relaxed.sys.global.u32 %r0, [%out];",
      "ldu.global.v4.u32 " + four + ", [%out];",
      "ld.global.cg.L2::cache_hint.u32 %r0, [%out], %d0;",
      "st.weak.global.L1::evict_last.L2::evict_first.L2::cache_hint.v8.f32 [%out], {%f0, %f1, "
      "%f2, %f3, %f4, %f5, %f6, %f7}, %d0;",
      "st.global.wt.L2::cache_hint.v2.u64 [%out], {%d0, %d0}, %d0;",
      "st.release.gpu.global.L1::no_allocate.u32 [%out], %r0;",
      "st.volatile.global.v4.u32 [%out], " + four + ";",
      "st.mmio.relaxed.sys.global.u32 [%out], %r0;",
  };
  for (const std::string& body : bodies) {
    std::string defined = policy;
    for (int i = 0; i < 8; ++i) {
      defined += "mov.u32 %r" + std::to_string(i) + ", 0;\nmov.f32 %f" + std::to_string(i) +
                 ", 0f00000000;\n";
    }
    run(defined + body).ok();
  }
}

}  // namespace

int main(int argc, char** argv) { return run_all(argc, argv); }
