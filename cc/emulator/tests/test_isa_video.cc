// SIMD video instructions, byte matrices, wmma, st.bulk and other instructions of few forms.
#include "emulator/tests/isa_cases.h"
#include "emulator/tests/machine_run.h"

using namespace bwgemm::emulator;
using namespace bwgemm::emulator::testing;

namespace {

// f of each of the `count` parts; the sum of the parts, or the parts side by side.
template <typename F>
u64 parts(u64 a, u64 b, int count, bool is_signed, F f) {
  const int bits = 32 / count;
  u64 out = 0;
  for (int i = 0; i < count; ++i) {
    s64 x = static_cast<s64>(a >> (bits * i) & ((1u << bits) - 1));
    s64 y = static_cast<s64>(b >> (bits * i) & ((1u << bits) - 1));
    if (is_signed && x >> (bits - 1) != 0) x -= s64{1} << bits;
    if (is_signed && y >> (bits - 1) != 0) y -= s64{1} << bits;
    out |= (static_cast<u64>(f(x, y)) & ((1u << bits) - 1)) << (bits * i);
  }
  return out;
}

TEST(video) {
  run_all_cases({
      {"vabsdiff4.u32.u32.u32 %r0, %ra, %rb, %rc;", 'r',
       [](u64 a, u64 b, u64) -> u64 {
         return parts(a, b, 4, false, [](s64 x, s64 y) { return std::abs(x - y); });
       }},
      {"vabsdiff4.u32.u32.u32.add %r0, %ra, %rb, %rc;", 'r',
       [](u64 a, u64 b, u64 c) -> u64 {
         u64 sum = c;
         for (int i = 0; i < 32; i += 8)
           sum += static_cast<u64>(
               std::abs(static_cast<s64>(a >> i & 255) - static_cast<s64>(b >> i & 255)));
         return static_cast<u32>(sum);
       }},
      {"vabsdiff2.s32.s32.s32 %r0, %ra, %rb, %rc;", 'r',
       [](u64 a, u64 b, u64) -> u64 {
         return parts(a, b, 2, true, [](s64 x, s64 y) { return std::abs(x - y); });
       }},
      {"vadd2.s32.s32.s32.sat %r0, %ra, %rb, %rc;", 'r',
       [](u64 a, u64 b, u64) -> u64 {
         return parts(a, b, 2, true,
                      [](s64 x, s64 y) { return std::clamp<s64>(x + y, -32768, 32767); });
       }},
      {"vsub4.u32.u32.u32.sat %r0, %ra, %rb, %rc;", 'r',
       [](u64 a, u64 b, u64) -> u64 {
         return parts(a, b, 4, false, [](s64 x, s64 y) { return std::max<s64>(x - y, 0); });
       }},
      {"vavrg4.u32.u32.u32 %r0, %ra, %rb, %rc;", 'r',
       [](u64 a, u64 b, u64) -> u64 {
         return parts(a, b, 4, false, [](s64 x, s64 y) { return (x + y + 1) / 2; });
       }},
      {"vmin4.s32.s32.s32 %r0, %ra, %rb, %rc;", 'r',
       [](u64 a, u64 b, u64) -> u64 {
         return parts(a, b, 4, true, [](s64 x, s64 y) { return std::min(x, y); });
       }},
      {"vmax2.u32.u32.u32 %r0, %ra, %rb, %rc;", 'r',
       [](u64 a, u64 b, u64) -> u64 {
         return parts(a, b, 2, false, [](s64 x, s64 y) { return std::max(x, y); });
       }},
      {"min.s16x2.relu %r0, %ra, %rb;", 'r',
       [](u64 a, u64 b, u64) -> u64 {
         return parts(a, b, 2, true, [](s64 x, s64 y) { return std::max<s64>(std::min(x, y), 0); });
       }},
      {"max.relu.s32 %r0, %ra, %rb;", 'r',
       [](u64 a, u64 b, u64) -> u64 {
         return static_cast<u32>(std::max({static_cast<s32>(a), static_cast<s32>(b), 0}));
       }},
  });
}

// Byte i of the shared memory `s` is i.
const std::string kBytes =
    ".shared .align 16 .b8 s[512];\nmov.u32 %r1, s;\nmov.u32 %r2, %thread;\nFILL:\nadd.u32 %r3, "
    "%r1, %r2;\nst.shared.u8 [%r3], %r2;\nadd.u32 %r2, %r2, 32;\nsetp.lt.u32 %p1, %r2, 512;\n"
    "@%p1 bra FILL;\nbar.sync 0;\n";

TEST(matrices_of_bytes) {
  Run run;
  run(kBytes +
      "mad.lo.u32 %r4, %thread, 16, %r1;\n"
      "ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8 {%r5, %r0}, [%r4];" +
      kStore)
      .ok();
  for (uint32_t t = 0; t < 32; ++t) {
    const uint32_t first = 64 * (t % 4) + t / 4 + 8;  // row 4 (t % 4), column t / 4 + 8
    for (uint32_t i = 0; i < 4; ++i) CHECK_EQ(run.out[t] >> (8 * i) & 255, (first + 16 * i) & 255);
  }
  // What a store of the layout of an accumulator writes is a matrix by columns.
  run(kBytes +
      "shr.u32 %r5, %thread, 2;\nand.b32 %r6, %thread, 3;\nmul.lo.u32 %r6, %r6, 2;\n"
      "mad.lo.u32 %r7, %r5, 8, %r6;\nmad.lo.u32 %r7, %r7, 0x01010101, 0x41400100;\n"
      "and.b32 %r8, %thread, 7;\nmad.lo.u32 %r4, %r8, 16, %r1;\n"
      "stmatrix.sync.aligned.m16n8.x1.trans.shared.b8 [%r4], {%r7};\nbar.sync 0;\n"
      "mad.lo.u32 %r4, %thread, 4, %r1;\nld.shared.u32 %r0, [%r4];" +
      kStore)
      .ok();
  // Element (m, n) is 8 m + n, at 16 n + m.
  for (uint32_t t = 0; t < 32; ++t) {
    for (uint32_t i = 0; i < 4; ++i) {
      const uint32_t at = 4 * t + i;
      CHECK_EQ(run.out[t] >> (8 * i) & 255, 8 * (at % 16) + at / 16);
    }
  }
}

TEST(bulk_store) {
  Run run;
  run(kBytes +
      "setp.eq.u32 %p2, %thread, 0;\nadd.u32 %r4, %r1, 16;\n@%p2 st.bulk.weak.shared::cta [%r4], "
      "64, 0;\nbar.sync 0;\nmad.lo.u32 %r4, %thread, 4, %r1;\nld.shared.u32 %r0, [%r4];" +
      kStore)
      .ok();
  CHECK_EQ(run.out[3], 0x0F0E0D0Cu);
  for (uint32_t t = 4; t < 20; ++t) CHECK_EQ(run.out[t], 0u);
  CHECK_EQ(run.out[20], 0x53525150u);
  run(kBytes + "mov.u64 %d1, 12;\nst.bulk.shared::cta [%r1], %d1, 0;")
      .fails(ErrorKind::kFault, "st.bulk of 12 bytes: not a multiple of 8");
  run(kBytes + "st.bulk.shared::cta [%r1], 1024, 0;")
      .fails(ErrorKind::kFault, "outside the CTA's shared memory");
  run(kBytes + "bar.sync 0;\nst.bulk [%r1], 64, 1;")
      .fails(ErrorKind::kParse, "the initial value of st.bulk must be 0");
  run(kBytes +
      "setp.eq.u32 %p2, %thread, 0;\n@%p2 st.bulk.shared::cta [%r1], 64, 0;\nmad.lo.u32 "
      "%r4, %thread, 4, %r1;\nld.shared.u32 %r0, [%r4];")
      .fails(ErrorKind::kFault, "rule shared-race");
}

TEST(wmma) {
  Run run;
  // A[m][k] = m + k in f16, by rows; B[k][n] = 1 where k = n, times 2, by columns.
  run(".shared .align 32 .b8 a[512];\n.shared .align 32 .b8 b[512];\nmov.u32 %r1, a;\nmov.u32 %r2, "
      "b;\nmov.u32 %r3, %thread;\n.reg .b16 %h<4>;\nFILL:\nshr.u32 %r4, %r3, 4;\nand.b32 %r5, %r3, "
      "15;\nadd.u32 %r6, %r4, %r5;\ncvt.rn.f16.u32 %h0, %r6;\nmad.lo.u32 %r7, %r3, 2, "
      "%r1;\nst.shared.b16 [%r7], %h0;\nsetp.eq.u32 %p1, %r4, %r5;\nselp.u32 %r6, 2, 0, "
      "%p1;\ncvt.rn.f16.u32 %h0, %r6;\nmad.lo.u32 %r7, %r3, 2, %r2;\nst.shared.b16 [%r7], "
      "%h0;\nadd.u32 %r3, %r3, 32;\nsetp.lt.u32 %p2, %r3, 256;\n@%p2 bra FILL;\nbar.sync 0;\n"
      ".reg .b32 %x<8>, %y<8>;\n.reg .f32 %z<8>;\nmov.u32 %r8, 16;\n"
      "wmma.load.a.sync.aligned.row.m16n16k16.shared.f16 {%x0, %x1, %x2, %x3, %x4, %x5, %x6, %x7}, "
      "[%r1], %r8;\n"
      "wmma.load.b.sync.aligned.col.m16n16k16.shared.f16 {%y0, %y1, %y2, %y3, %y4, %y5, %y6, %y7}, "
      "[%r2];\n"
      "mov.f32 %z0, 0f3F800000;\nmov.f32 %z1, %z0;\nmov.f32 %z2, %z0;\nmov.f32 %z3, %z0;\nmov.f32 "
      "%z4, %z0;\nmov.f32 %z5, %z0;\nmov.f32 %z6, %z0;\nmov.f32 %z7, %z0;\n"
      "wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32 {%z0, %z1, %z2, %z3, %z4, %z5, %z6, %z7}, "
      "{%x0, %x1, %x2, %x3, %x4, %x5, %x6, %x7}, {%y0, %y1, %y2, %y3, %y4, %y5, %y6, %y7}, {%z0, "
      "%z1, %z2, %z3, %z4, %z5, %z6, %z7};\n"
      "wmma.store.d.sync.aligned.col.m16n16k16.global.f32 [%out], {%z0, %z1, %z2, %z3, %z4, %z5, "
      "%z6, %z7}, %r8;\n")
      .ok();
  for (uint32_t n = 0; n < 16; ++n) {
    for (uint32_t m = 0; m < 16; ++m)
      CHECK_EQ(F(run.out[16 * n + m]), static_cast<float>(2 * (m + n) + 1));
  }
  run(".reg .b32 %x<8>;\nwmma.load.a.sync.aligned.row.m16n16k16.global.s8 {%x0, %x1}, [%out];\n"
      "wmma.mma.sync.aligned.row.col.m16n16k16.s32.s8.u8.f32 {%x0, %x1, %x2, %x3, %x4, %x5, %x6, "
      "%x7}, {%x0, %x1}, {%x0, %x1}, {%x0, %x1, %x2, %x3, %x4, %x5, %x6, %x7};")
      .fails(ErrorKind::kUnsupported, "unsupported combination of types");
  run(".reg .b32 %x<8>;\nwmma.load.a.sync.aligned.row.m16n16k16.global.s8 {%x0}, [%out];")
      .fails(ErrorKind::kParse, "operand 1 has 1 registers, which do not fit this shape");
  run(".reg .b32 %x<8>;\nwmma.load.a.sync.aligned.row.m16n16k16.global.s8 {%x0, %x1}, [%out], "
      "100000;")
      .fails(ErrorKind::kFault, "global address");
}

TEST(forms_that_are_spelled_oddly) {
  Run run;
  run(std::string("ld.mmio.relaxed.sys.global.u32 %r0, [%out+8192];\nmov.pred %p1, "
                  "%is_explicit_cluster;\nselp.u32 %r1, 7, 5, %p1;\nadd.u32 %r0, %r0, %r1;") +
      kStore);
  run.ok();
  CHECK_EQ(run.out[3], 5u);
  run.grid.x = run.cluster.x = 2;
  run(std::string("mov.pred %p1, %is_explicit_cluster;\nselp.u32 %r0, 7, 5, %p1;") + kStore).ok();
  CHECK_EQ(run.out[3], 7u);
}

}  // namespace

int main(int argc, char** argv) { return run_all(argc, argv); }
