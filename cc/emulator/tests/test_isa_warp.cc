// Instructions among lanes, atomics, and warp-level matrix instructions.
#include "emulator/tests/isa_cases.h"

using namespace bwgemm::emulator;
using namespace bwgemm::emulator::testing;

namespace {

// Lanes see each other's values: expected values need the index of the lane, which body and
// expectation both derive from %tid.
struct WarpCase {
  const char* body;
  std::function<u32(const u32* a, int lane)> expect;
};

void run_warp(const WarpCase& c) {
  Launcher launcher;
  launcher.block = {kLanes, 1, 1};
  Buffer in(3 * kLanes * 8), out(kLanes * 32);
  fill(Values::kInts, in.as<u64>());
  u32 a[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) a[lane] = U(in.as<u64>()[3 * lane]);
  launcher.add(in, false, "in");
  launcher.add(out, true, "out");
  const LaunchResult result =
      launcher.run(text(c.body), Params().u64(in.address()).u64(out.address()));
  if (!result.ok) return fail(__FILE__, __LINE__, std::string(c.body) + ": " + result.error);
  record(c.body, 'r', 0, in, out);
  for (int lane = 0; lane < kLanes; ++lane) {
    u32 got;
    std::memcpy(&got, out.data() + 32 * lane + 8, 4);
    const u32 want = c.expect(a, lane);
    if (got != want) {
      char message[200];
      std::snprintf(message, sizeof message, "%s: lane %d gave 0x%x, expected 0x%x", c.body, lane,
                    got, want);
      return fail(__FILE__, __LINE__, message);
    }
  }
}

TEST(warp) {
  const auto sum_if = [](const u32* a, auto keep) {
    u32 mask = 0;
    for (int i = 0; i < 32; ++i) mask |= static_cast<u32>(keep(a[i])) << i;
    return mask;
  };
  const WarpCase cases[] = {
      {"shfl.sync.idx.b32 %r0, %ra, 5, 31, -1;", [](const u32* a, int) { return a[5]; }},
      {"shfl.idx.sync.b32 %r0, %ra, 5, 31, -1;", [](const u32* a, int) { return a[5]; }},
      {"shfl.sync.up.b32 %r0, %ra, 3, 0, -1;",
       [](const u32* a, int lane) { return lane >= 3 ? a[lane - 3] : a[lane]; }},
      {"shfl.sync.down.b32 %r0|%p1, %ra, 2, 0x1c03, -1; @!%p1 mov.u32 %r0, 77;",
       [](const u32* a, int lane) { return lane % 4 < 2 ? a[lane + 2] : 77; }},
      {"shfl.sync.bfly.b32 %r0, %ra, 16, 31, -1;",
       [](const u32* a, int lane) { return a[lane ^ 16]; }},
      {"vote.sync.ballot.b32 %r0, %pa, -1;",
       [=](const u32* a, int) { return sum_if(a, [](u32 v) { return (v & 1) != 0; }); }},
      {"vote.ballot.sync.b32 %r0, %pa, -1;",
       [=](const u32* a, int) { return sum_if(a, [](u32 v) { return (v & 1) != 0; }); }},
      {"vote.sync.any.pred %p1, %pa, -1; selp.u32 %r0, 1, 0, %p1;",
       [](const u32*, int) { return 1u; }},
      {"vote.sync.all.pred %p1, %pa, -1; selp.u32 %r0, 1, 0, %p1;",
       [](const u32*, int) { return 0u; }},
      {"vote.sync.uni.pred %p1, %p0, -1; selp.u32 %r0, 1, 0, %p1;",
       [](const u32*, int) { return 1u; }},
      {"match.any.sync.b32 %r0, %ra, -1;",
       [=](const u32* a, int lane) { return sum_if(a, [&](u32 v) { return v == a[lane]; }); }},
      {"match.all.sync.b32 %r0|%p1, 3, -1;", [](const u32*, int) { return ~0u; }},
      {"redux.sync.add.s32 %r0, %ra, -1;",
       [](const u32* a, int) {
         u32 s = 0;
         for (int i = 0; i < 32; ++i) s += a[i];
         return s;
       }},
      {"redux.sync.min.s32 %r0, %ra, -1;",
       [](const u32* a, int) {
         s32 s = S(a[0]);
         for (int i = 1; i < 32; ++i) s = std::min(s, S(a[i]));
         return U(static_cast<u64>(s));
       }},
      {"redux.xor.sync.b32 %r0, %ra, -1;",
       [](const u32* a, int) {
         u32 s = 0;
         for (int i = 0; i < 32; ++i) s ^= a[i];
         return s;
       }},
      // Tiles of 8 lanes name their own.
      {"and.b32 %r1, %thread, 24; shl.b32 %r2, 0xff, %r1; shfl.sync.bfly.b32 %r0, %ra, 4, 31, %r2;",
       [](const u32* a, int lane) { return a[lane ^ 4]; }},
      {"and.b32 %r1, %thread, 24; shl.b32 %r2, 0xff, %r1; redux.sync.max.u32 %r0, %ra, %r2;",
       [](const u32* a, int lane) {
         return *std::max_element(a + lane / 8 * 8, a + lane / 8 * 8 + 8);
       }},
      {"and.b32 %r1, %thread, 24; shl.b32 %r2, 0xff, %r1; match.any.sync.b32 %r0, 3, %r2;",
       [](const u32*, int lane) { return 0xffu << lane / 8 * 8; }},
      {"and.b32 %r1, %thread, 24; shl.b32 %r2, 0xff, %r1; elect.sync %r0|%p1, %r2; @%p1 add.u32 "
       "%r0, %r0, 100;",
       [](const u32*, int lane) { return lane / 8 * 8 + (lane % 8 == 0 ? 100u : 0u); }},
      {"elect.sync %r0|%p1, -1; @%p1 add.u32 %r0, %r0, 100;",
       [](const u32*, int lane) { return lane == 0 ? 100u : 0u; }},
      {"setp.lt.u32 %p1, %thread, 8; @%p1 bra SKIP; elect.sync %r0|%p2, 0xffffff00; SKIP: "
       "bar.warp.sync -1;",
       [](const u32*, int lane) { return lane < 8 ? 0u : 8u; }},
      {".shared .align 16 .b8 s[512]; mov.u32 %r1, s; mad.lo.u32 %r2, %thread, 4, %r1; "
       "st.shared.u32 "
       "[%r2], %ra; bar.warp.sync -1; and.b32 %r3, %thread, 7; mad.lo.u32 %r3, %r3, 16, %r1; "
       "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r0}, [%r3];",
       [](const u32* a, int lane) { return a[lane]; }},
      {".shared .align 16 .b8 s[512]; mov.u32 %r1, s; mad.lo.u32 %r2, %thread, 4, %r1; "
       "st.shared.u32 "
       "[%r2], %ra; bar.warp.sync -1; and.b32 %r3, %thread, 7; mad.lo.u32 %r3, %r3, 16, %r1; "
       "ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%r0}, [%r3];",
       [](const u32* a, int lane) {
         const auto at = [&](int row, int col) {
           return static_cast<u16>(a[4 * row + col / 2] >> (16 * (col % 2)));
         };
         return pair(at(2 * (lane % 4) + 1, lane / 4), at(2 * (lane % 4), lane / 4));
       }},
      {".shared .align 16 .b8 s[512]; mov.u32 %r1, s; and.b32 %r3, %thread, 7; mad.lo.u32 %r3, "
       "%r3, "
       "16, %r1; stmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [%r3], {%ra}; bar.warp.sync -1; "
       "ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%r0}, [%r3];",
       [](const u32* a, int lane) { return a[lane]; }},
      {"movmatrix.sync.aligned.m8n8.trans.b16 %r1, %ra; movmatrix.sync.aligned.m8n8.trans.b16 %r0, "
       "%r1;",
       [](const u32* a, int lane) { return a[lane]; }},
      {"bar.sync 0; bar.red.popc.u32 %r0, 1, %pa;",
       [](const u32* a, int) {
         u32 n = 0;
         for (int i = 0; i < 32; ++i) n += a[i] & 1;
         return n;
       }},
      {"bar.red.or.pred %p1, 1, 32, %pa; selp.u32 %r0, 1, 0, %p1;",
       [](const u32*, int) { return 1u; }},
      {".shared .align 4 .u32 s; setp.eq.u32 %p1, %thread, 0; @%p1 st.shared.u32 [s], 0; bar.sync "
       "0; "
       "atom.shared.add.u32 %r1, [s], 2; bar.sync 0; ld.shared.u32 %r0, [s];",
       [](const u32*, int) { return 64u; }},
      {".shared .align 4 .u32 s; setp.eq.u32 %p1, %thread, 0; @%p1 st.shared.u32 [s], 5; bar.sync "
       "0; "
       "red.shared.max.u32 [s], %thread; bar.sync 0; atom.shared.exch.b32 %r1, [s], 31; "
       "ld.shared.u32 "
       "%r0, [s];",
       [](const u32*, int) { return 31u; }},
      {".shared .align 4 .u32 s; setp.eq.u32 %p1, %thread, 0; @%p1 st.shared.u32 [s], 3; bar.sync "
       "0; "
       "atom.shared.cas.b32 %r1, [s], 3, 9; bar.sync 0; ld.shared.u32 %r0, [s];",
       [](const u32*, int) { return 9u; }},
      {".shared .align 4 .u32 s; setp.eq.u32 %p1, %thread, 0; @%p1 st.shared.u32 [s], 0; bar.sync "
       "0; "
       "atom.shared.inc.u32 %r1, [s], 4; bar.sync 0; ld.shared.u32 %r0, [s];",
       [](const u32*, int) { return 2u; }},
      {".shared .align 8 .b8 s[8]; setp.eq.u32 %p1, %thread, 0; @%p1 st.shared.u32 [s], 0; "
       "bar.sync "
       "0; mov.b32 %r1, 0x3c003c00; red.shared.add.noftz.f16x2 [s], %r1; bar.sync 0; ld.shared.u32 "
       "%r0, [s];",
       [](const u32*, int) { return 0x50005000u; }},
  };
  for (const WarpCase& c : cases) run_warp(c);
}

// Sums of f32 flush subnormal numbers in global memory, and in no other.
TEST(subnormal_sums) {
  const std::string half = "mov.b32 %f1, 0x00400000; ";  // of the least normal number
  const auto global = [&](const std::string& sum) {
    return half +
           "ld.param.u64 %d1, [out]; mul.wide.u32 %d2, %thread, 32; add.s64 %d1, %d1, %d2; "
           "st.global.u32 [%d1+16], 0; " +
           sum + " ld.global.u32 %r0, [%d1+16];";
  };
  const auto shared = [&](const std::string& sum) {
    return half +
           ".shared .align 8 .b32 s[32]; mov.u32 %r2, s; mad.lo.u32 %r2, %thread, 4, %r2; "
           "cvt.u64.u32 %d1, %r2; cvta.shared.u64 %d1, %d1; st.shared.u32 [%r2], 0; " +
           sum + " ld.shared.u32 %r0, [%r2];";
  };
  const auto check = [](const std::string& body, u32 want) {
    run_warp({body.c_str(), [=](const u32*, int) { return want; }});
  };
  check(global("red.global.add.f32 [%d1+16], %f1; red.global.add.f32 [%d1+16], %f1;"), 0);
  check(global("atom.add.f32 %f2, [%d1+16], %f1;"), 0);
  check(global("red.global.add.v2.f32 [%d1+16], {%f1, %f1};"), 0);
  check(global("mov.b32 %f2, 0x00800000; mov.b32 %f3, 0x80C00000; red.add.f32 [%d1+16], %f2; "
               "red.add.f32 [%d1+16], %f3;"),
        0x80000000);
  check(shared("red.shared.add.f32 [%r2], %f1; atom.add.f32 %f2, [%d1], %f1;"), 0x00800000);
}

// mma.sync against plain sums: every lane gets packed ones and small integers.
TEST(mma_sync) {
  const WarpCase cases[] = {
      // A = lane-independent rows of 1.0 (f16), B = 2.0, C = 3: 16 * 2 + 3.
      {"mov.b32 %r1, 0x3c003c00; mov.b32 %r2, 0x40004000; mov.f32 %f1, 0f40400000; "
       "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f0, %f2, %f3, %f4}, {%r1, %r1, %r1, "
       "%r1}, {%r2, %r2}, {%f1, %f1, %f1, %f1}; mov.b32 %r0, %f0;",
       [](const u32*, int) { return B(35.0f); }},
      {"mov.b32 %r1, 0x3f803f80; mov.b32 %r2, 0x40004000; mov.f32 %f1, 0f40400000; "
       "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%f0, %f2, %f3, %f4}, {%r1, %r1}, "
       "{%r2}, {%f1, %f1, %f1, %f1}; mov.b32 %r0, %f4;",
       [](const u32*, int) { return B(19.0f); }},
      {"mov.b32 %r1, 0x3f801fff; mov.b32 %r2, 0x40000000; mov.f32 %f1, 0f00000000; "
       "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%f0, %f2, %f3, %f4}, {%r1, %r1, %r1, "
       "%r1}, {%r2, %r2}, {%f1, %f1, %f1, %f1}; mov.b32 %r0, %f0;",
       [](const u32*, int) { return B(16.0f); }},
      // Row g of A holds g (bytes), B ones: D = 32 g + 7.
      {"shr.u32 %r1, %thread, 2; mul.lo.u32 %r1, %r1, 0x01010101; mov.b32 %r2, 0x01010101; mov.u32 "
       "%r3, 7; mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%r0, %r4, %r5, %r6}, {%r1, %r1, "
       "%r1, %r1}, {%r2, %r2}, {%r3, %r3, %r3, %r3};",
       [](const u32*, int lane) { return 32 * static_cast<u32>(lane / 4) + 7; }},
      // Column g of B holds g: D column 2 t.
      {"shr.u32 %r1, %thread, 2; mul.lo.u32 %r1, %r1, 0x01010101; mov.b32 %r2, 0x01010101; mov.u32 "
       "%r3, 0; mma.sync.aligned.m16n8k32.row.col.s32.u8.u8.s32 {%r0, %r4, %r5, %r6}, {%r2, %r2, "
       "%r2, %r2}, {%r1, %r1}, {%r3, %r3, %r3, %r3};",
       [](const u32*, int lane) { return 32 * static_cast<u32>(2 * (lane % 4)); }},
      {"mov.b32 %r1, 0x38383838; mov.f32 %f1, 0f00000000; "
       "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%f0, %f2, %f3, %f4}, {%r1, %r1, %r1, "
       "%r1}, {%r1, %r1}, {%f1, %f1, %f1, %f1}; mov.b32 %r0, %f0;",
       [](const u32*, int) { return B(32.0f); }},
      {"mov.b32 %r1, 0x3c003c00; mov.b32 %r2, 0; mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 "
       "{%r0, %r4}, {%r1, %r1, %r1, %r1}, {%r1, %r1}, {%r2, %r2};",
       [](const u32*, int) { return 0x4C004C00u; }},
      // Columns of A weighted by k against B rows weighted by k: sum of k^2, k = 0..15, with k = 8
      // b + 2 t + i in register b.
      {"and.b32 %r5, %thread, 3; shl.b32 %r5, %r5, 1; cvt.rn.f32.u32 %f1, %r5; add.f32 %f2, %f1, "
       "0f3F800000; cvt.rn.f16x2.f32 %r1, %f2, %f1; add.f32 %f1, %f1, 0f41000000; add.f32 %f2, "
       "%f2, 0f41000000; cvt.rn.f16x2.f32 %r2, %f2, %f1; mov.f32 %f3, 0f00000000;"
       "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f0, %f4, %f5, %f6}, {%r1, %r1, %r2, "
       "%r2}, {%r1, %r2}, {%f3, %f3, %f3, %f3}; mov.b32 %r0, %f5;",
       [](const u32*, int) { return B(1240.0f); }},
  };
  for (const WarpCase& c : cases) run_warp(c);
}

}  // namespace

int main(int argc, char** argv) { return run_all(argc, argv); }
