// wgmma against plain loops: types, majors, swizzles, A in registers; waits and fences.
#include "emulator/tests/tensor_images.h"

using namespace bwgemm::emulator;
using namespace bwgemm::emulator::testing;

namespace {

struct Case {
  const char* types = "f32.bf16.bf16";
  int n = 64;
  NumberFormat d = NumberFormat::kF32, a = NumberFormat::kBF16, b = NumberFormat::kBF16;
  bool a_mn = false, b_mn = false;
  int span = 128;
  bool a_in_registers = false;
  bool negate_a = false;
};

constexpr int kK = 2;
constexpr int kBOffset = 16384;

std::string registers(const char* prefix, int count) {
  std::string text = "{";
  for (int i = 0; i < count; ++i) text += (i ? ", " : "") + std::string(prefix) + std::to_string(i);
  return text + "}";
}

// Loads the fragment of A (rows of 32 bytes in `frag`, row major) into %r40..%r43.
std::string load_fragment(int bytes, int step) {
  // lane/4 + 8*(r%2) + 16*warp is the row, (lane%4)*4 bytes (+16 for registers 2, 3) the place.
  std::string text =
      "and.b32 %r30, %r0, 31;\nshr.u32 %r31, %r30, 2;\nand.b32 %r32, %r30, 3;\n"
      "shl.b32 %r33, %r1, 4;\nadd.u32 %r31, %r31, %r33;\nmul.wide.u32 %d10, %r31, " +
      std::to_string(bytes) +
      ";\nadd.u64 %d10, %d10, %d3;\nmul.wide.u32 %d11, %r32, 4;\n"
      "add.u64 %d10, %d10, %d11;\n";
  for (int r = 0; r < 4; ++r) {
    const int offset = (r % 2) * 8 * bytes + (r / 2) * 16 + step * 32;
    text +=
        "ld.global.b32 %r" + std::to_string(40 + r) + ", [%d10+" + std::to_string(offset) + "];\n";
  }
  return text;
}

std::string kernel_text(const Case& c, const Layout& a, const Layout& b,
                        const std::string& extra_wait) {
  const int k = 32 / element_bytes(c.a);
  const int regs = c.d == NumberFormat::kF16 ? c.n / 4 : c.n / 2;
  const bool integer = c.d == NumberFormat::kS32;
  std::string body =
      "ld.param.u64 %d0, [a];\nld.param.u64 %d1, [b];\nld.param.u64 %d2, [out];\n"
      "ld.param.u64 %d3, [frag];\n" +
      init_barriers() + "@!%p0 bra LOADED;\nmbarrier.arrive.expect_tx.shared::cta.b64 _, [%r4], " +
      std::to_string(a.size() + b.size()) + ";\nadd.u32 %r7, %r3, " + std::to_string(kBOffset) +
      ";\n"
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r3], [%d0], " +
      std::to_string(a.size()) +
      ", [%r4];\n"
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r7], [%d1], " +
      std::to_string(b.size()) + ", [%r4];\nLOADED:\n" + wait(0, 0, "FULL") +
      "and.b32 %r15, %r3, 0x3ffff;\nshr.u32 %r15, %r15, 4;\ncvt.u64.u32 %d7, %r15;\n"
      "mov.b32 %r10, 0;\nsetp.ne.b32 %p2, %r10, 0;\nsetp.eq.b32 %p3, %r10, 0;\n"
      "wgmma.fence.sync.aligned;\n";
  for (int i = 0; i < kK; ++i) {
    if (c.a_in_registers) body += load_fragment(a.k * a.bytes, i) + "wgmma.fence.sync.aligned;\n";
    body += "mov.b64 %d4, " + std::to_string(a.wgmma_descriptor(0, i * k)) + ";\nmov.b64 %d5, " +
            std::to_string(b.wgmma_descriptor(kBOffset, i * k)) +
            ";\nadd.u64 %d4, %d4, %d7;\nadd.u64 %d5, %d5, %d7;\n"
            "wgmma.mma_async.sync.aligned.m64n" +
            std::to_string(c.n) + "k" + std::to_string(k) + "." + c.types + " " +
            registers("%v", regs) + ", " + (c.a_in_registers ? "{%r40, %r41, %r42, %r43}" : "%d4") +
            ", %d5, " + (i == 0 ? "%p2" : "%p3");
    if (!integer) body += std::string(", ") + (c.negate_a ? "-1" : "1") + ", 1";
    if (element_bytes(c.a) == 2) {
      if (!c.a_in_registers) body += c.a_mn ? ", 1" : ", 0";
      body += c.b_mn ? ", 1" : ", 0";
    }
    // A's registers may not be loaded anew while they are being read.
    body += ";\nwgmma.commit_group.sync.aligned;\n" +
            (c.a_in_registers ? "wgmma.wait_group.sync.aligned 0;\n" : extra_wait);
  }
  body += "wgmma.wait_group.sync.aligned 0;\nmul.wide.u32 %d6, %r0, 512;\nadd.u64 %d2, %d2, %d6;\n";
  for (int i = 0; i < regs; ++i) {
    body += "st.global.b32 [%d2+" + std::to_string(4 * i) + "], %v" + std::to_string(i) + ";\n";
  }
  return kernel(".param .u64 a, .param .u64 b, .param .u64 out, .param .u64 frag", body, 65536,
                "sm_90a");
}

void run(const Case& c) {
  const int k = kK * 32 / element_bytes(c.a);
  const Layout a{c.a_mn, c.span, element_bytes(c.a), 64, k};
  const Layout b{c.b_mn, c.span, element_bytes(c.b), c.n, k};
  Buffer a_image(a.size()), b_image(b.size()), out(128 * 512), rows(size_t{64} * k * a.bytes);
  fill(a_image, 0, a, c.a, 0, true);
  fill(b_image, 0, b, c.b, 0, false);
  for (int m = 0; m < 64; ++m) {
    for (int i = 0; i < k; ++i) {
      const uint32_t bits = encode(c.a, value_a(m, i));
      std::memcpy(rows.data() + (m * k + i) * a.bytes, &bits, a.bytes);
    }
  }
  Launcher launcher;
  launcher.add(a_image, false, "a");
  launcher.add(b_image, false, "b");
  launcher.add(rows, false, "rows");
  launcher.add(out, true, "out");
  const LaunchResult result = launcher.run(kernel_text(c, a, b, ""), Params()
                                                                         .u64(a_image.address())
                                                                         .u64(b_image.address())
                                                                         .u64(out.address())
                                                                         .u64(rows.address()));
  CHECK_TEXT(result.error, "");
  if (!result.ok) return;
  CHECK_EQ(result.stats.mma_flops, uint64_t{2} * 64 * c.n * k);
  int wrong = 0;
  for (int m = 0; m < 64; ++m) {
    for (int n = 0; n < c.n; ++n) {
      int sum = 0;
      for (int i = 0; i < k; ++i) sum += value_a(m, i) * value_b(i, n) * (c.negate_a ? -1 : 1);
      // PTX ISA 9.7.15.5.1.1.1, figure of the accumulator fragment.
      const int thread = m / 16 * 32 + m % 8 * 4 + n % 8 / 2;
      const uint32_t* of_thread = out.as<uint32_t>() + thread * 128;
      float got;
      if (c.d == NumberFormat::kF16) {
        got = decode(c.d, (of_thread[n / 8 * 2 + m / 8 % 2] >> (n % 2 * 16)) & 0xffff);
      } else {
        got = decode(c.d, of_thread[n / 8 * 4 + m / 8 % 2 * 2 + n % 2]);
      }
      wrong += got != static_cast<float>(sum);
    }
  }
  if (wrong != 0)
    fail(__FILE__, __LINE__, format("%s n=%d: %d wrong elements", c.types, c.n, wrong));
}

}  // namespace

TEST(majors_and_swizzles) {
  for (int span : {0, 32, 64, 128}) {
    for (bool a_mn : {false, true}) {
      for (bool b_mn : {false, true}) {
        Case c;
        c.span = span;
        c.a_mn = a_mn;
        c.b_mn = b_mn;
        run(c);
      }
    }
  }
}

TEST(types) {
  const Case kCases[] = {
      {"f32.f16.f16", 256, NumberFormat::kF32, NumberFormat::kF16, NumberFormat::kF16},
      {"f16.f16.f16", 16, NumberFormat::kF16, NumberFormat::kF16, NumberFormat::kF16},
      {"f32.tf32.tf32", 24, NumberFormat::kF32, NumberFormat::kTF32, NumberFormat::kTF32},
      {"f32.e4m3.e5m2", 64, NumberFormat::kF32, NumberFormat::kE4M3, NumberFormat::kE5M2},
      {"f16.e5m2.e4m3", 64, NumberFormat::kF16, NumberFormat::kE5M2, NumberFormat::kE4M3},
      {"s32.s8.s8", 64, NumberFormat::kS32, NumberFormat::kS8, NumberFormat::kS8},
  };
  for (Case c : kCases) {
    run(c);
    c.a_in_registers = true;
    run(c);
    c.negate_a = c.d != NumberFormat::kS32;
    run(c);
  }
}

TEST(refusals) {
  const auto refused = [](const std::string& instruction, const char* why) {
    Launcher launcher;
    const LaunchResult result = launcher.run(kernel("", instruction, 1024, "sm_90a"), Params());
    CHECK(!result.ok);
    CHECK_TEXT(result.error, why);
  };
  const std::string four = "{%v0, %v1, %v2, %v3}";
  refused("wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.f16 " + four +
              ", %d0, %d1, %p1, 1, 1, 0, 0;\n",
          "do not go together");
  refused("wgmma.mma_async.sync.aligned.m64n8k32.f32.bf16.bf16 " + four +
              ", %d0, %d1, %p1, 1, 1, 0, 0;\n",
          "shape m64n8k32 does not exist for .bf16");
  refused("wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 " + four +
              ", %d0, %d1, %p1, 1, 1, 0, 0;\n",
          "D needs 8 registers");
  refused("wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 " + four +
              ", %d0, %d1, %p1, 2, 1, 0, 0;\n",
          "imm-scale must be 1 or -1");
  refused("wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 " + four +
              ", %d0, %d1, %p1, 1, 1, 2, 0;\n",
          "imm-trans must be 0 or 1");
  refused("wgmma.mma_async.sp.sync.aligned.m64n8k16.f32.bf16.bf16 " + four +
              ", %d0, %d1, %p1, 1, 1, 0, 0;\n",
          "sparse wgmma is not implemented");
  refused(
      "wgmma.mma_async.sync.aligned.m64n8k256.s32.b1.b1.and.popc " + four + ", %d0, %d1, %p1;\n",
      "unsupported wgmma of .b1 is not implemented");
  refused(
      "mov.b64 %d0, 0;\nsetp.ne.u32 %p1, 0, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 " +
          four + ", %d0, %d0, %p1, 1, 1, 0, 0;\n",
      "without a wgmma.fence");
  refused(
      "mov.b64 %d0, 0;\nsetp.ne.u32 %p1, 0, 0;\nwgmma.fence.sync.aligned;\n"
      "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 " +
          four + ", %d0, %d0, %p1, 1, 1, 0, 0;\n",
      "operand outside the shared memory");
  refused("wgmma.wait_group.sync.aligned -1;\n", "must not be negative");
}

TEST(operands_may_not_be_overwritten_before_the_wait) {
  Case c;
  const Layout a{false, 128, 2, 64, 32}, b{false, 128, 2, c.n, 32};
  Buffer image(16384), out(128 * 512);
  for (const bool waits : {false, true}) {
    std::string text = kernel_text(c, a, b, "");
    const std::string last = "wgmma.wait_group.sync.aligned 0;\n";
    const std::string write = "@%p0 st.shared.b32 [%r3], %r0;\n";
    text.replace(text.rfind(last), last.size(),
                 waits ? last + "bar.sync 0;\n" + write : write + last);
    Launcher launcher;
    launcher.add(image, false, "image");
    launcher.add(out, true, "out");
    const LaunchResult result = launcher.run(
        text,
        Params().u64(image.address()).u64(image.address()).u64(out.address()).u64(image.address()));
    CHECK_EQ(result.ok, waits);
  }
}

// The four warps' parts are one operation: what one warp has waited for is done for all.
TEST(one_warp_waits_for_the_warpgroup) {
  Case c;
  const Layout a{false, 128, 2, 64, 32}, b{false, 128, 2, c.n, 32};
  Buffer image(16384), out(128 * 512);
  std::string text = kernel_text(c, a, b, "");
  const std::string last = "wgmma.wait_group.sync.aligned 0;\n";
  text.replace(text.rfind(last), last.size(), last + "@%p0 st.shared.b32 [%r3], %r0;\n");
  for (uint64_t seed = 0; seed < 10; ++seed) {
    Launcher launcher;
    launcher.config.seed = seed;
    launcher.add(image, false, "image");
    launcher.add(out, true, "out");
    const LaunchResult result = launcher.run(
        text,
        Params().u64(image.address()).u64(image.address()).u64(out.address()).u64(image.address()));
    CHECK_TEXT(result.error, "");
  }
}

TEST(warps_of_a_warpgroup_agree) {
  const auto refused = [](uint32_t threads, const std::string& before, const char* why) {
    Launcher launcher;
    launcher.block = {threads, 1, 1};
    const std::string mma =
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%v0, %v1, %v2, %v3}, %d0, %d0, %p1, "
        "1, 1, 0, 0;\n";
    const LaunchResult result = launcher.run(
        kernel("",
               "mov.b64 %d0, 0x4000000000010040;\nsetp.ne.u32 %p1, 0, "
               "0;\nwgmma.fence.sync.aligned;\n" +
                   before + mma +
                   "wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;\n",
               16384, "sm_90a"),
        Params());
    CHECK(!result.ok);
    CHECK_TEXT(result.error, why);
  };
  refused(96, "", "wgmma needs a whole warpgroup; the CTA has 3 warps");
  refused(128, "setp.ne.u32 %p1, %r1, 0;\n",
          "the descriptors or scale-d of the warps of a warpgroup differ");
  refused(128, "setp.eq.u32 %p2, %r1, 0;\n@%p2 exit;\n", "wgmma.wait_group 0: 1 groups pending");
  refused(128,
          "setp.eq.u32 %p2, %r1, 0;\n@%p2 bra END;\n"
          "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%v0, %v1, %v2, %v3}, %d0, %d0, "
          "%p1, 1, 1, 0, 0;\nEND:\n",
          "the warps of a warpgroup execute different instructions");
}

int main(int argc, char** argv) { return run_all(argc, argv); }
