// tcgen05.mma against plain loops: kinds, shapes, majors, swizzles, CTA pairs, operands in tensor
// memory. The images of the operands are laid out here by the tables of PTX ISA 9.7.16.3.3, not by
// the code under test.
#include <algorithm>
#include <cmath>

#include "emulator/tensor/number_formats.h"
#include "emulator/tests/tensor_images.h"
#include "emulator/tests/tensor_kernel.h"

using namespace bwgemm::emulator;
using namespace bwgemm::emulator::testing;

namespace {

struct Case {
  const char* kind = "f16";
  int group = 1, m = 128, n = 64;
  NumberFormat a = NumberFormat::kBF16, b = NumberFormat::kBF16, d = NumberFormat::kF32;
  bool a_mn = false, b_mn = false;
  int a_span = 128, b_span = 128;  // swizzle in bytes, 0 none
  bool weight_stationary = false, a_in_tmem = false;
  bool negate_b = false;
  int seed = 0;
};

constexpr int kK = 2;  // instructions along K; the second's descriptors are advanced

int instruction_k(const Case& c) { return 32 / element_bytes(c.a); }

uint32_t format_code(NumberFormat f) {
  switch (f) {
    case NumberFormat::kBF16:
    case NumberFormat::kS8:
    case NumberFormat::kE5M2:
      return 1;
    case NumberFormat::kTF32:
      return 2;
    case NumberFormat::kE2M3:
      return 3;
    case NumberFormat::kE3M2:
      return 4;
    case NumberFormat::kE2M1:
      return 5;
    default:
      return 0;
  }
}

uint32_t instruction_descriptor(const Case& c) {
  const uint32_t d = c.d == NumberFormat::kF32 ? 1 : c.d == NumberFormat::kS32 ? 2 : 0;
  return d << 4 | format_code(c.a) << 7 | format_code(c.b) << 10 |
         static_cast<uint32_t>(c.negate_b) << 14 | static_cast<uint32_t>(c.a_mn) << 15 |
         static_cast<uint32_t>(c.b_mn) << 16 | static_cast<uint32_t>(c.n / 8) << 17 |
         static_cast<uint32_t>(c.m / 16) << 24;
}

// Lane and column (PTX ISA 9.7.16.10.5, layouts A to G) and CTA of D[m][n].
void place(const Case& c, int m, int n, int* cta, int* lane, int* column) {
  *cta = 0;
  *lane = m;
  *column = n;
  if (c.group == 2) {
    *cta = m / (c.m / 2);
    m %= c.m / 2;
    *lane = m;
    if (c.m == 128) {  // layout B: second half of N in lanes 64-127
      *lane = m + (n >= c.n / 2 ? 64 : 0);
      *column = n % (c.n / 2);
    }
  } else if (c.weight_stationary && c.m < 128) {  // layouts E and G
    const int part = c.n / (128 / c.m);
    *lane = m + n / part * c.m;
    *column = n % part;
  } else if (c.m == 64) {  // layout F
    *lane = m / 16 * 32 + m % 16;
  }
}

constexpr int kBOffset = 65536, kTmemA = 256;

std::string kernel_text(const Case& c, const Layout& a, const Layout& b, int a_bytes, int b_bytes) {
  const std::string group = ".cta_group::" + std::to_string(c.group);
  const auto number = [](uint64_t v) { return std::to_string(v); };
  std::string body = "ld.param.u64 %d0, [a];\nld.param.u64 %d1, [b];\nld.param.u64 %d2, [out];\n" +
                     init_barriers() +
                     "setp.ne.u32 %p1, %r1, 0;\n@%p1 bra ALLOCED;\n"
                     "tcgen05.alloc" +
                     group +
                     ".sync.aligned.shared::cta.b32 [%r5], 512;\n"
                     "tcgen05.relinquish_alloc_permit" +
                     group + ".sync.aligned;\nALLOCED:\n" + cluster_sync() +
                     "ld.shared.b32 %r6, [%r5];\n";
  // Each CTA copies its images.
  body += "@!%p0 bra LOADED;\nmbarrier.arrive.expect_tx.shared::cta.b64 _, [%r4], " +
          number(a_bytes + b_bytes) + ";\n" + "mul.wide.u32 %d3, %r2, " + number(a_bytes) +
          ";\nadd.u64 %d0, %d0, %d3;\nmul.wide.u32 %d3, %r2, " + number(b_bytes) +
          ";\nadd.u64 %d1, %d1, %d3;\nadd.u32 %r7, %r3, " + number(kBOffset) + ";\n" +
          "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r3], [%d0], " +
          number(a_bytes) + ", [%r4];\n" +
          "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r7], [%d1], " +
          number(b_bytes) + ", [%r4];\n" + wait(0, 0, "LOADWAIT") + "LOADED:\n" + cluster_sync();
  // The even CTA issues.
  body +=
      "setp.eq.u32 %p2, %r2, 0;\nand.pred %p2, %p2, %p0;\n@!%p2 bra ISSUED;\n"
      "mov.b32 %r8, " +
      number(instruction_descriptor(c)) + ";\nadd.u32 %r9, %r6, " + number(kTmemA) +
      ";\nmov.b32 %r10, 0;\nmov.b32 %r11, 1;\n"
      "and.b32 %r15, %r3, 0x3ffff;\nshr.u32 %r15, %r15, 4;\ncvt.u64.u32 %d7, %r15;\n";
  if (c.a_in_tmem) {
    // Rows of A are kept in shared memory as unswizzled K-major: 32 bytes of K for each
    // instruction.
    for (int i = 0; i < kK; ++i) {
      body += "mov.b64 %d4, " + number(a.descriptor(0, i * instruction_k(c))) +
              ";\nadd.u64 %d4, %d4, %d7;\nadd.u32 %r12, %r9, " + number(8 * i) + ";\ntcgen05.cp" +
              group + ".128x256b [%r12], %d4;\n";
    }
  }
  for (int i = 0; i < kK; ++i) {
    body += "mov.b64 %d4, " + number(a.descriptor(0, i * instruction_k(c))) + ";\nmov.b64 %d5, " +
            number(b.descriptor(kBOffset, i * instruction_k(c))) +
            ";\nadd.u64 %d4, %d4, %d7;\nadd.u64 %d5, %d5, %d7;\nsetp.ne.b32 %p3, " +
            (i == 0 ? "%r10" : "%r11") + ", 0;\nadd.u32 %r12, %r9, " + number(8 * i) + ";\n" +
            "tcgen05.mma" + (c.weight_stationary ? ".ws" : "") + group + ".kind::" + c.kind +
            " [%r6], " + (c.a_in_tmem ? "[%r12]" : "%d4") + ", %d5, %r8, %p3;\n";
  }
  body += c.group == 2
              ? "mov.b16 %h0, 3;\ntcgen05.commit" + group +
                    ".mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%r4+8], %h0;\n"
              : "tcgen05.commit" + group + ".mbarrier::arrive::one.b64 [%r4+8];\n";
  body += "ISSUED:\n" + wait(1, 0, "MMAWAIT") + "tcgen05.fence::after_thread_sync;\n";
  // Every warp dumps its lanes: out[cta][lane][256].
  body +=
      "shl.b32 %r13, %r1, 21;\nadd.u32 %r14, %r6, %r13;\nmul.wide.u32 %d6, %r2, 131072;\n"
      "add.u64 %d2, %d2, %d6;\nmul.wide.u32 %d6, %r0, 1024;\nadd.u64 %d2, %d2, %d6;\n";
  for (int column = 0; column < 256; column += 32) {
    std::string registers;
    for (int i = 0; i < 32; ++i) registers += (i ? ", %v" : "%v") + number(i);
    body += "tcgen05.ld.sync.aligned.32x32b.x32.b32 {" + registers + "}, [%r14+" + number(column) +
            "];\ntcgen05.wait::ld.sync.aligned;\n";
    for (int i = 0; i < 32; ++i) {
      body += "st.global.b32 [%d2+" + number(4 * (column + i)) + "], %v" + number(i) + ";\n";
    }
  }
  body += cluster_sync() + "@%p1 bra FREED;\ntcgen05.dealloc" + group +
          ".sync.aligned.b32 %r6, 512;\nFREED:\n" + cluster_sync();
  return kernel(".param .u64 a, .param .u64 b, .param .u64 out", body, 2 * 65536);
}

void run(const Case& c) {
  const int k = kK * instruction_k(c);
  const Layout a{c.a_mn, c.a_span, element_bytes(c.a), c.m / c.group, k};
  const Layout b{c.b_mn, c.b_span, element_bytes(c.b), c.n / c.group, k};
  Buffer a_image(size_t(a.size()) * c.group), b_image(size_t(b.size()) * c.group);
  Buffer out(size_t(2) * 128 * 256 * 4);
  for (int cta = 0; cta < c.group; ++cta) {
    fill(a_image, cta, a, c.a, cta * a.mn, true);
    fill(b_image, cta, b, c.b, cta * b.mn, false);
  }
  Launcher launcher;
  launcher.config.seed = static_cast<uint64_t>(c.seed);
  launcher.grid = launcher.cluster = Dim3{static_cast<uint32_t>(c.group), 1, 1};
  launcher.add(a_image, false, "a");
  launcher.add(b_image, false, "b");
  launcher.add(out, true, "out");
  const LaunchResult result =
      launcher.run(kernel_text(c, a, b, a.size(), b.size()),
                   Params().u64(a_image.address()).u64(b_image.address()).u64(out.address()));
  CHECK_TEXT(result.error, "");
  if (!result.ok) return;
  CHECK_EQ(result.stats.mma_flops, uint64_t{2} * c.m * c.n * k);
  int wrong = 0;
  for (int m = 0; m < c.m; ++m) {
    for (int n = 0; n < c.n; ++n) {
      int sum = 0;
      for (int i = 0; i < k; ++i) sum += value_a(m, i) * value_b(i, n) * (c.negate_b ? -1 : 1);
      int cta, lane, column;
      place(c, m, n, &cta, &lane, &column);
      const uint32_t bits = out.as<uint32_t>()[(cta * 128 + lane) * 256 + column];
      const float got = c.d == NumberFormat::kS32 ? static_cast<float>(static_cast<int32_t>(bits))
                                                  : decode(c.d, bits);
      if (got != static_cast<float>(sum) && ++wrong <= 3) {
        fail(__FILE__, __LINE__,
             format("%s M=%d N=%d: D[%d][%d] is %g, not %d", c.kind, c.m, c.n, m, n, got, sum));
      }
    }
  }
  CHECK_EQ(wrong, 0);
}

Case with(void (*change)(Case&)) {
  Case c;
  change(c);
  return c;
}

}  // namespace

TEST(shapes_of_one_cta) {
  run(with([](Case&) {}));
  run(with([](Case& c) { c.n = 256; }));
  run(with([](Case& c) { c.m = 64, c.n = 8; }));
  run(with([](Case& c) { c.m = 64, c.n = 200; }));
}

TEST(shapes_of_a_cta_pair) {
  for (int seed = 0; seed < 3; ++seed) {
    Case c;
    c.group = 2;
    c.seed = seed;
    c.m = 256;
    c.n = 256;
    run(c);
    c.m = 128;
    run(c);
    c.n = 32;
    run(c);
  }
}

TEST(majors_and_swizzles) {
  for (int span : {0, 32, 64, 128}) {
    for (bool a_mn : {false, true}) {
      for (bool b_mn : {false, true}) {
        Case c;
        c.a_span = c.b_span = span;
        c.a_mn = a_mn;
        c.b_mn = b_mn;
        run(c);
      }
    }
  }
}

TEST(pair_with_mn_major_operands) {
  Case c;
  c.group = 2;
  c.m = 256;
  c.n = 128;
  c.a_mn = c.b_mn = true;
  run(c);
}

TEST(kinds) {
  run(with([](Case& c) { c.a = c.b = NumberFormat::kF16; }));
  run(with([](Case& c) { c.a = c.b = c.d = NumberFormat::kF16; }));
  run(with([](Case& c) { c.kind = "tf32", c.a = c.b = NumberFormat::kTF32; }));
  run(with(
      [](Case& c) { c.kind = "tf32", c.a = c.b = NumberFormat::kTF32, c.a_mn = c.b_mn = true; }));
  run(with(
      [](Case& c) { c.kind = "f8f6f4", c.a = NumberFormat::kE4M3, c.b = NumberFormat::kE5M2; }));
  run(with([](Case& c) {
    c.kind = "f8f6f4", c.a = NumberFormat::kE5M2, c.b = NumberFormat::kE4M3, c.b_mn = true;
  }));
  run(with(
      [](Case& c) { c.kind = "f8f6f4", c.a = NumberFormat::kE2M3, c.b = NumberFormat::kE3M2; }));
  run(with(
      [](Case& c) { c.kind = "f8f6f4", c.a = NumberFormat::kE2M1, c.b = NumberFormat::kE4M3; }));
  run(with(
      [](Case& c) { c.kind = "i8", c.a = c.b = NumberFormat::kS8, c.d = NumberFormat::kS32; }));
  run(with([](Case& c) { c.negate_b = true; }));
}

TEST(weight_stationary) {
  for (int m : {32, 64, 128}) {
    Case c;
    c.weight_stationary = true;
    c.m = m;
    c.n = 128;
    run(c);
  }
}

TEST(a_in_tensor_memory) {
  run(with([](Case& c) { c.a_in_tmem = true, c.a_span = 0; }));
  run(with([](Case& c) {
    c.a_in_tmem = true, c.a_span = 0, c.kind = "f8f6f4", c.a = c.b = NumberFormat::kE4M3;
  }));
  run(with([](Case& c) {
    c.a_in_tmem = true, c.a_span = 0, c.kind = "tf32", c.a = c.b = NumberFormat::kTF32;
  }));
  run(with([](Case& c) { c.a_in_tmem = true, c.a_span = 0, c.group = 2, c.m = 256, c.n = 64; }));
}

TEST(lanes_can_be_disabled_and_inputs_scaled) {
  // D = 0 for all lanes, then lanes of the mask keep it while the others become A*B, then D/2 +
  // A*B.
  Buffer out(128 * 4);
  const std::string body =
      "ld.param.u64 %d0, [out];\n" + init_barriers() +
      "setp.ne.u32 %p1, %r1, 0;\n@%p1 bra ALLOCED;\n"
      "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r5], 64;\nALLOCED:\nbar.sync 0;\n"
      "ld.shared.b32 %r6, [%r5];\n"
      // Every bf16 of buf is 1: A*B = 16.
      "mov.b32 %r20, 0x3f803f80;\nshl.b32 %r21, %r0, 6;\nadd.u32 %r21, %r21, %r3;\nmov.b32 %r22, "
      "0;\n"
      "FILL:\nst.shared.b32 [%r21], %r20;\nadd.u32 %r21, %r21, 4;\nadd.u32 %r22, %r22, 1;\n"
      "setp.lt.u32 %p2, %r22, 16;\n@%p2 bra FILL;\nfence.proxy.async.shared::cta;\nbar.sync 0;\n"
      "@!%p0 bra ISSUED;\nand.b32 %r15, %r3, 0x3ffff;\nshr.u32 %r15, %r15, 4;\ncvt.u64.u32 %d7, "
      "%r15;\n"
      "mov.b64 %d4, 0x400800800000;\nadd.u64 %d4, %d4, %d7;\n"
      "mov.b32 %r8, 0x8100490;\nsetp.ne.u32 %p3, %r0, %r0;\nnot.pred %p4, %p3;\n"
      "mov.b32 %r30, 0xfffffff0;\nmov.b32 %r31, 0;\nmov.b32 %r32, 0x1;\n"
      "tcgen05.mma.cta_group::1.kind::f16.collector::a::fill [%r6], %d4, %d4, %r8, %p3;\n"
      "tcgen05.mma.cta_group::1.kind::f16 [%r6], %d4, %d4, %r8, {%r30, %r31, %r31, %r32}, %p4, 1;\n"
      "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r4+8];\nISSUED:\n" +
      wait(1, 0, "DONE") +
      "shl.b32 %r13, %r1, 21;\nadd.u32 %r14, %r6, %r13;\n"
      "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%v0}, [%r14+63];\ntcgen05.wait::ld.sync.aligned;\n"
      "mul.wide.u32 %d1, %r0, 4;\nadd.u64 %d0, %d0, %d1;\nst.global.b32 [%d0], %v0;\n"
      "bar.sync 0;\n@%p1 bra FREED;\ntcgen05.dealloc.cta_group::1.sync.aligned.b32 %r6, "
      "64;\nFREED:\n";
  Launcher launcher;
  launcher.add(out, true, "out");
  CHECK_TEXT(launcher.run(kernel(".param .u64 out", body), Params().u64(out.address())).error, "");
  for (int lane = 0; lane < 128; ++lane) {
    const bool disabled = (lane >= 4 && lane < 32) || lane == 96;
    CHECK_EQ(out.as<float>()[lane], disabled ? 16.0f : 24.0f);
  }
}

int main(int argc, char** argv) { return run_all(argc, argv); }
