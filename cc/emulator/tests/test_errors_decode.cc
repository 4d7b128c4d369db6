// What decoding refuses, and the faults that single instructions report: the message of each.
#include "emulator/tests/refusals.h"

using namespace bwgemm::emulator;
using namespace bwgemm::emulator::testing;

namespace {

TEST(operands) {
  check_all({
      {"add %r0, %r1, %r2;", "instruction without a type"},
      {kWide + "mov.b128 %q0, 5;", "a 128-bit operand must be a register"},
      {kWide + "mov.b128 %q0, %tid.x;", "special register in a 128-bit operand"},
      {kHalf + "mov.b16 %h0, 1.5;", "floating-point literal for an operand of this size"},
      {kHalf + "mov.f16 %h0, 1.5;", "floating-point literal of a 16-bit type"},
      {"add.u32 %r0, [%r1], %r2;", "expected a register or an immediate"},
      {"add.u32 %r0, %r1+4, %r2;", "a register cannot have an offset here"},
      {"add.u32 %r0, %tid.x+4, %r2;", "a register cannot have an offset here"},
      {kHalf + ".shared .b32 s;\nmov.b16 %h0, s;", "needs a 32- or 64-bit operand"},
      {"mov.u32 %r0, k;", "the address of a function needs a 64-bit operand"},
      {"add.u32 %r0, %clock, 1;", "unsupported special register '%clock' outside mov"},
      {"mov.u64 %d0, %clock;", "special register of another size"},
      {"add.u32 5, %r1, %r2;", "expected a register as destination"},
      {"add.u32 %r0+4, %r1, %r2;", "malformed destination"},
      {"selp.u32 %r0, 1, 0, [%r1];", "expected a predicate"},
      {"setp.eq.u32 5, %r1, %r2;", "expected a predicate as destination"},
      {"ld.global.u32 %r0, %d0;", "expected an address in brackets"},
      {"ld.param.u32 %r0, %d0;", "expected an address in brackets"},
      {"ld.global.u32 %r0, [{%d0, %d1}];", "malformed address"},
      {kHalf + "ld.global.u32 %r0, [%h0];", "an address register must have 32 or 64 bits"},
      {".shared .b32 s;\nld.u32 %r0, [s];", "shared variable in a generic address"},
      {"ld.global.u32 %r0, [%p0];", "'%p0' cannot be an address"},
      {"lop3.b32 %r0, %r1, %r2, %r3, %r4;", "expected an integer constant"},
      {"bra 5;", "expected a label"},
  });
}

constexpr char kNeedsRounding[] = "a conversion to a float of fewer bits needs a rounding mode";

TEST(arithmetic) {
  check_all({
      {"add.sat.u32 %r0, %r1, %r2;", "unsupported .sat with .u32"},
      {kHalf + "addc.s16 %h0, %h1, %h2;", "unsupported type .s16"},
      {"mul.s32 %r0, %r1, %r2;", "integer mul needs .lo, .hi or .wide"},
      {"mul.wide.s64 %d0, %d1, %d2;", "unsupported type .s64"},
      {"mad.s32 %r0, %r1, %r2, %r3;", "integer mad needs .lo, .hi or .wide"},
      {"mad.lo.sat.s32 %r0, %r1, %r2, %r3;", "unsupported .sat with .s32"},
      {"max.relu.u32 %r0, %r1, %r2;", "unsupported .relu with .u32"},
      {"mul.lo.u16x2 %r0, %r1, %r2;", "unsupported type .u16x2"},
      {"abs.u32 %r0, %r1;", "unsupported type .u32"},
      {"mul24.lo.u64 %d0, %d1, %d2;", "unsupported type .u64"},
      {"rcp.rn.u32 %r0, %r1;", "unsupported type .u32"},
      {"shf.l.b32 %r0, %r1, %r2, %r3;", "shf needs .l or .r and .clamp or .wrap"},
      {kHalf + "popc.b16 %r0, %h1;", "unsupported type .b16"},
      {"setp.u32 %p0, %r1, %r2;", "comparison without an operator"},
      {"setp.eq.f16x2 %p0, %r1, %r2;", "the packed form needs p|q"},
      {"setp.num.s32 %p0, %r1, %r2;", "a comparison that integers do not have"},
      {"set.equ.u32.u32 %r0, %r1, %r2;", "a comparison that integers do not have"},
      {"set.eq.u64.u32 %d0, %r1, %r2;", "unsupported type .u64"},
      {"slct.u32.u32 %r0, %r1, %r2, %r3;", "unsupported type .u32"},
      {"testp.f32 %p0, %f1;", "testp without a property"},
      {"cvt.pred.u32 %p0, %r0;", "unsupported type .pred or .b128"},
      {"cvt.rn.satfinite.e4m3x4.f32 %r0, %f0;", "unsupported four-element conversion"},
      {"cvt.rn.bf16x2.s32 %r0, %r1, %r2;", "unsupported type .s32"},
      {kWide + "cvt.u64.u32 %q0, %r1;", "unsupported 128-bit register in cvt"},
      {"cvt.rn.bf16x2.f16x2 %r0, %r1;", "unsupported conversion between these types"},
      {kHalf + "cvt.f32.e4m3 %f0, %h0;", "unsupported conversion of a single 8-bit float"},
      {"cvt.s32.f32 %r0, %f0;", "a conversion from float to integer needs a rounding mode"},
      {"cvt.f32.s32 %f0, %r0;", "a conversion from integer to float needs a rounding mode"},
      {kHalf + "cvt.sat.f16.f32 %h0, %f0;", kNeedsRounding},
      {"cvt.f32.f64 %f0, %d0;", kNeedsRounding},
      {"cvt.tf32.f32 %r0, %f0;", kNeedsRounding},
      {"cvt.bf16x2.f32 %r0, %f0, %f1;", kNeedsRounding},
      {kHalf + "cvt.f16x2.e4m3x2 %r0, %h0;", kNeedsRounding},
      {kHalf + "cvt.satfinite.e5m2x2.f16x2 %h0, %r0;", kNeedsRounding},
      {"ex2.approx.ftz.f16x2 %r0, %r1;", "no .ftz with .f16x2"},
      {kHalf + "tanh.approx.ftz.f16 %h0, %h1;", "no .ftz with .f16"},
      {"cvt.rs.bf16x2.f32 %r0, %f0, %f1, %r1;", "unsupported stochastic rounding"},
      {"lop3.or.b32 %r0|%p0, %r1, %r2, %r3, 0x1e, %p1;", "unsupported lop3 with predicates"},
      {"vadd2.s32.s32.s32.sat %r0.h10, %r1, %r2, %r3;", "unsupported selector or mask '%r0.h10'"},
      {"vavrg4.u32.u32.u32 %r0, %r1.b7654, %r2, %r3;", "unsupported selector or mask '%r1.b7654'"},
      {"cvt.pack.s16.s32 %r0, %r1, %r2;", "cvt.pack needs .sat"},
      {"cvt.pack.sat.s32.s32 %r0, %r1, %r2;", "unsupported conversion between these types"},
  });
}

TEST(moves_and_memory) {
  check_all({
      {"mov.b64 %d0, {%r0, %r1, %r2};", "vector of this size"},
      {kHalf + "mov.b16 %h0, {%h0, %h1, %h2, %h3};", "vector elements of this size"},
      {"cvta.shared.u32 %r0, %r1;", "unsupported 32-bit addresses"},
      {"cvta.u64 %d0, %d1;", "cvta without a state space"},
      {"isspacep.const %p0, %d0;", "unsupported state space"},
      {"mapa.u32 %r0, %r1, 0;", "unsupported 32-bit generic addresses"},
      {"mapa.u64 %d0, %out, 0;", "which is not a shared address"},
      {"ld.global.v8.u64 {%d0}, [%out];", "unsupported vector of this size"},
      {"ld.global.v2.u32 {%r0}, [%out];", "the vector operand has another number of elements"},
      {"ld.global.b128 _, [%out];", "'_' in a 128-bit load"},
      {kWide + "ld.global.u32 %q0, [%out];", "128-bit register in an access of another size"},
      {"st.param.u64 [out], %d0;", "unsupported access to this state space"},
      {"prefetch.global [%out];", "prefetch without a cache level"},
      {"membar;", "membar without a level"},
      {"fence.proxy.bogus;", "unsupported proxy.bogus"},
      {"atom.global.u32 %r0, [%out], 1;", "atomic operation missing"},
      {"atom.global.min.f32 %f0, [%out], %f1;", "unsupported atomic operation on type .f32"},
      {"atom.local.add.u32 %r0, [%out], 1;", "unsupported state space"},
      {"red.global.add.v2.u32 [%out], {%r0, %r1};", "unsupported vector atomic of this type"},
      {"red.global.add.v2.f32 [%out], {%f0};", "the vector operand has another number of elements"},
      {"cp.async.shared.global [1024], [%out], 16;", "cp.async needs .ca or .cg"},
      {"cp.async.cg.shared.global [1024], [%out], 8;", "cp-size must be 4, 8 or 16 (with .cg 16)"},
      {".shared .align 16 .b8 s[16];\ncp.async.ca.shared.global [s], [%out], 8, 9;",
       "src-size 9 is larger than cp-size 8"},
      {"cp.async.wait_group -1;", "negative group count"},
      {"mbarrier.init.global.b64 [%out], 1;", "an mbarrier lies in shared memory"},
      {"mbarrier.arrive.expect_tx.shared.b64 _, [1024];", "missing count"},
      {"red.async.mbarrier::complete_tx::bytes.u32 [1024], 1, [1024];",
       "red.async without an operation"},
      {kHalf + "cp.async.bulk.tensor.3d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes "
               "[%r0], [%d1, {%r1, %r1, %r1}], [%r0], {%h1};",
       "unsupported load mode .im2col is not implemented"},
      {kHalf + "cp.async.bulk.prefetch.tensor.3d.L2.global.im2col::w [%d1, {%r1, %r1, %r1}], {%h1, "
               "%h1};",
       "unsupported load mode .im2col::w is not implemented"},
      {"cp.async.bulk.tensor.3d.global.shared::cta.im2col_no_offs.bulk_group [%d1, {%r1, %r1, "
       "%r1}], [%r0];",
       "unsupported load mode .im2col_no_offs is not implemented"},
      {"red.async.mmio.release.gpu.global.add.u32 [%out], %r0;",
       "unsupported form without an mbarrier, of global memory"},
      {"st.async.mmio.release.sys.global.u32 [%out], %r0;",
       "unsupported form without an mbarrier, of global memory"},
      {"st.async.mbarrier::complete_tx::bytes.v4.u64 [1024], {%d0, %d0, %d0, %d0}, [1024];",
       "unsupported vector of this size"},
      {"st.async.mbarrier::complete_tx::bytes.v2.u32 [1024], {%r0}, [1024];",
       "the vector operand has another number of elements"},
  });
}

TEST(control_and_warps) {
  check_all(
      {
          {"brx.idx %r0, NOWHERE;", "brx.idx needs the name of a .branchtargets list"},
          {"call (%r0), 5;", "call without a function"},
          {"call.uni wide, (%d0);", "an argument or result of this size must be a .param variable"},
          {"call.uni (%d0), result, ();",
           "an argument or result of this size must be a .param variable"},
          {"call.uni wide;", "call of 'wide' with the wrong number of arguments or results"},
          {"griddepcontrol;", "griddepcontrol needs .wait or .launch_dependents"},
          {"setmaxnreg.sync.aligned.u32 64;", "setmaxnreg needs .inc or .dec"},
          {"applypriority.global.L2::evict_normal [%d0], 64;", "the size must be 128"},
          {"discard.global.L2 [%d0], 64;", "the size must be 128"},
          {"bar.aligned 0;", "barrier without .sync, .arrive or .red"},
          {"bar.red.u32 %r0, 0, %p0;", "barrier reduction without an operation"},
          {"barrier.cluster;", "barrier.cluster needs .arrive or .wait"},
          {"shfl.sync.b32 %r0, %r1, 0, 31, -1;", "shfl.sync without a mode"},
          {"vote.sync.pred %p0, %p1, -1;", "vote.sync without a mode"},
          {"vote.ballot.b32 %r0, %p1;", "unsupported vote without .sync"},
          {"shfl.up.b32 %r0, %r1, 1, 0;", "unsupported shfl without .sync"},
          {"redux.add.s32 %r0, %r1, -1;", "unsupported redux without .sync"},
          {"match.any.b32 %r0, %r1, -1;", "match needs .any.sync or .all.sync"},
          {"match.any.sync.b32 %r0|%p0, %r1, -1;", "match.any has no predicate"},
          {"redux.sync.s32 %r0, %r1, -1;", "redux.sync without an operation"},
          {"redux.sync.add.f32 %f0, %f1, -1;", "unsupported type .f32"},
          {"elect.sync %r0, -1;", "elect.sync needs d|p"},
      },
      ".func wide(.param .align 16 .b8 x[16]) {\nret;\n}\n"
      ".func (.param .align 16 .b8 x[16]) result() {\nret;\n}\n");
}

TEST(matrices) {
  const std::string mma = "mma.sync.aligned.", four = "{%r0, %r1, %r2, %r3}";
  check_all({
      {"ldmatrix.m8n8.x1.shared.b16 {%r0}, [1024];", "needs .sync.aligned"},
      {"ldmatrix.sync.aligned.m8n16.x1.shared.b8x16.b4x16_p64 {%r0}, [1024];",
       "unsupported matrix shape or type .m8n16.b8x16"},
      {"ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r0}, [1024];",
       "the vector operand has another number of elements"},
      {"setp.lt.u32 %p0, %thread, 4;\n@%p0 ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r0}, [1024];",
       "ldmatrix needs all 32 lanes"},
      {"setp.lt.u32 %p0, %thread, 4;\n@%p0 stmatrix.sync.aligned.m8n8.x1.shared.b16 [1024], {%r0};",
       "stmatrix needs all 32 lanes"},
      {"setp.lt.u32 %p0, %thread, 4;\n@%p0 movmatrix.sync.aligned.m8n8.trans.b16 %r0, %r1;",
       "movmatrix needs all 32 lanes"},
      {"mma.sync.m16n8k16.row.col.f32.f16.f16.f32 " + four + ", " + four + ", {%r0, %r1}, " + four +
           ";",
       "mma.sync needs .aligned"},
      {mma + "m16n8k128.row.col.f32.f16.f16.f32 " + four + ", " + four + ", {%r0, %r1}, " + four +
           ";",
       "unsupported shape"},
      {mma + "m16n8k16.col.col.f32.f16.f16.f32 " + four + ", " + four + ", {%r0, %r1}, " + four +
           ";",
       "unsupported layout other than .row.col"},
      {mma + "m16n8k16.row.col.f32.f16 " + four + ", " + four + ", {%r0, %r1}, " + four + ";",
       "mma.sync needs four types"},
      {mma + "m16n8k16.row.col.f32.b1.b1.f32 " + four + ", " + four + ", {%r0, %r1}, " + four + ";",
       "unsupported type .b1"},
      {mma + "m8n8k4.row.col.f32.f16.f16.f32 " + four + ", " + four + ", {%r0, %r1}, " + four + ";",
       "unsupported type .f32 with m8n8k4"},
      {mma + "m16n8k16.row.col.f32.f16.e4m3.f32 " + four + ", " + four + ", {%r0, %r1}, " + four +
           ";",
       "unsupported A and B of different widths"},
      {mma + "m16n8k32.row.col.f32.s8.s8.f32 " + four + ", " + four + ", {%r0, %r1}, " + four + ";",
       "unsupported combination of types"},
      {mma + "m16n8k16.row.col.bf16.bf16.bf16.f32 " + four + ", " + four + ", {%r0, %r1}, " + four +
           ";",
       "unsupported accumulator type"},
      {mma + "m16n8k64.row.col.f32.f16.f16.f32 " + four + ", " + four + ", {%r0, %r1}, " + four +
           ";",
       "unsupported shape .m16n8k64 with .f16"},
      {mma + "m16n8k16.row.col.f32.f16.f16.f32 " + four + ", {%r0}, {%r0, %r1}, " + four + ";",
       "operand 2 has 1 registers, this shape needs 4"},
      {"setp.lt.u32 %p0, %thread, 4;\n@%p0 " + mma + "m16n8k16.row.col.f32.f16.f16.f32 " + four +
           ", " + four + ", {%r0, %r1}, " + four + ";",
       "mma.sync needs all 32 lanes"},
  });
}

TEST(counts_of_mbarriers) {
  const std::string one =
      ".shared .align 8 .b64 bar;\nsetp.ne.u32 %p0, %thread, 0;\n@%p0 exit;\nmov.u32 %r1, bar;\n";
  check_all({
      {one + "mbarrier.init.shared.b64 [%r1], 2;\nmbarrier.complete_tx.relaxed.cta.shared.b64 "
             "[%r1], 1048576;",
       "complete_tx of 1048576 bytes on mbarrier 0x400: the tx-count leaves its range"},
      {one + "mbarrier.init.shared.b64 [%r1], 1048575;\ncp.async.mbarrier.arrive.shared.b64 [%r1];",
       "too many pending arrivals"},
      {"setp.eq.u32 %p0, %thread, 0;\n@%p0 barrier.arrive 1, 32;\nbarrier.arrive 1, 32;",
       "barrier 1: 33 threads have arrived, 32 were expected"},
  });
  Run run;
  run.config.rules.set(Rule::kUninitializedShared, Severity::kError);
  run(".shared .align 16 .b8 s[64];\nld.shared.u32 %r0, [s];")
      .fails(ErrorKind::kFault, "read of shared memory 0x400 ('s') that nothing has written");
  run(".shared .align 16 .b8 s[64];\nmov.u32 %r1, s;\nsetp.eq.u32 %p0, %thread, 0;\n@%p0 "
      "cp.async.bulk.global.shared::cta.bulk_group [%out], [%r1], 16;")
      .fails(ErrorKind::kFault,
             "asynchronous read of shared memory 0x400 ('s') that nothing has written");
  run.grid.x = run.cluster.x = 2;
  run(".shared .align 8 .b64 bar;\nmov.u32 %r1, bar;\nxor.b32 %r2, %rank, "
      "1;\nmapa.shared::cluster.u32 %r2, %r1, %r2;\n"
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [%r2], 1, [%r1];")
      .fails(ErrorKind::kFault, "the mbarrier is in another CTA than the data");
}

TEST(halves_of_a_tensor_load) {
  for (const char* columns : {"-1", "-100000000", "512", "2147483647", "4294967296"}) {
    check_all(
        {{std::string("tcgen05.ld.sync.aligned.16x32bx2.x1.b32 {%r0}, [%r1], ") + columns + ";",
          "the halves are 0 to 511 columns apart"},
         {std::string("tcgen05.st.sync.aligned.16x32bx2.x1.b32 [%r1], ") + columns + ", {%r0};",
          "the halves are 0 to 511 columns apart"}});
  }
}

TEST(calls_of_kernels) { check_all({{"call k, (%d0);", "call of 'k', which is a kernel"}}); }

}  // namespace

int main(int argc, char** argv) { return run_all(argc, argv); }
