// Block-scaled tcgen05.mma against plain loops: kinds, formats, sizes of blocks, ids of scales, CTA
// pairs; scales reach tensor memory by tcgen05.cp. Images are laid out here by the tables of the
// PTX ISA, not by the code under test.
#include <algorithm>
#include <cmath>

#include "emulator/tensor/number_formats.h"
#include "emulator/tests/tensor_images.h"
#include "emulator/tests/tensor_kernel.h"

using namespace bwgemm::emulator;
using namespace bwgemm::emulator::testing;

namespace {

struct Case {
  std::string kind = "mxf8f6f4.block_scale";
  int group = 1, n = 64;
  NumberFormat a = NumberFormat::kE4M3, b = NumberFormat::kE4M3, scale = NumberFormat::kUE8M0;
  int block = 32;
  int steps = 4;  // instructions along K
  bool a_mn = false, b_mn = false, negate_a = false, a_in_tmem = false;
  bool nan = false;          // a scale that is NaN
  bool few_lanes = false;    // a copy that does not reach all lanes
  bool early_store = false;  // scales are overwritten before the MMAs have ended
  int m() const { return 128 * group; }
  bool packed() const { return a == NumberFormat::kE2M1Packed; }
  int step_k() const { return packed() ? 64 : 32; }
  int k() const { return steps * step_k(); }
  int scales() const { return k() / block; }
  int words() const { return (scales() + 3) / 4; }
  int n_blocks() const { return (n + 127) / 128; }
};

constexpr int kBAt = 32768, kScalesAt = 65536, kTmemScales = 256, kTmemA = 448;

// Bits of the scale with index `s` along K of row `r`; they differ in both.
uint32_t scale_bits(const Case& c, bool of_a, int r, int s) {
  if (c.nan && of_a && r == 77 && s == 1) return 0xff;
  const int i = (r + r / 32 + 2 * s + (of_a ? 1 : 0)) % 4;
  // The sign of UE4M3 is ignored.
  static constexpr uint32_t kE4M3[4] = {0x30, 0x38, 0x3c, 0xc0};  // 0.5, 1, 1.5, 2
  return c.scale == NumberFormat::kUE8M0 ? static_cast<uint32_t>(126 + i) : kE4M3[i];
}

double scale_value(const Case& c, bool of_a, int r, int s) {
  const uint32_t bits = scale_bits(c, of_a, r, s);
  if (bits == 0xff) return NAN;
  static constexpr double kE4M3[4] = {0.5, 1, 1.5, 2};
  return c.scale == NumberFormat::kUE8M0 ? std::ldexp(1.0, static_cast<int>(bits) - 127)
                                         : kE4M3[(r + r / 32 + 2 * s + (of_a ? 1 : 0)) % 4];
}

// Sixteen bytes hold 32 rows' words of one 128-row block; 512 bytes are four scales of 128 rows.
void fill_scales(uint8_t* to, const Case& c, bool of_a, int first, int rows) {
  const int blocks = (rows + 127) / 128;
  for (int r = 0; r < rows; ++r) {
    for (int s = 0; s < c.scales(); ++s) {
      const int tile = s / 4 * blocks + r / 128;
      to[tile * 512 + r % 32 * 16 + r % 128 / 32 * 4 + s % 4] =
          static_cast<uint8_t>(scale_bits(c, of_a, first + r, s));
    }
  }
}

Layout layout(const Case& c, bool of_a) {
  const int rows = of_a ? 128 : c.n / c.group;
  const int span = of_a && c.a_in_tmem ? 0 : 128;
  return {of_a ? c.a_mn : c.b_mn, span, 1, rows, c.packed() ? c.k() / 2 : c.k()};
}

void fill_packed(uint8_t* to, const Layout& layout, int first, bool of_a) {
  for (int i = 0; i < layout.mn; ++i) {
    for (int k = 0; k < 2 * layout.k; ++k) {
      const int value = of_a ? value_a(first + i, k) : value_b(k, first + i);
      to[layout.offset(i, k / 2)] |=
          static_cast<uint8_t>(encode(NumberFormat::kE2M1Packed, value) << (k % 2 * 4));
    }
  }
}

uint32_t format_code(NumberFormat f) {
  static constexpr std::pair<NumberFormat, uint32_t> kCodes[] = {
      {NumberFormat::kE4M3, 0}, {NumberFormat::kE5M2, 1}, {NumberFormat::kE2M3, 3},
      {NumberFormat::kE3M2, 4}, {NumberFormat::kE2M1, 5}, {NumberFormat::kE2M1Packed, 1}};
  for (const auto& [format, code] : kCodes) {
    if (format == f) return code;
  }
  return 7;
}

uint32_t instruction_descriptor(const Case& c, int step) {
  const uint32_t id = static_cast<uint32_t>(step * (c.step_k() / c.block) % 4);
  return id << 4 | format_code(c.a) << 7 | format_code(c.b) << 10 |
         static_cast<uint32_t>(c.negate_a) << 13 | static_cast<uint32_t>(c.a_mn) << 15 |
         static_cast<uint32_t>(c.b_mn) << 16 | static_cast<uint32_t>(c.n / 8) << 17 |
         static_cast<uint32_t>(c.scale == NumberFormat::kUE8M0) << 23 |
         static_cast<uint32_t>(c.m() / 16) << 24 | id << 29;
}

// A descriptor of 512 contiguous bytes: rows of 16, groups of 8 rows 128 apart.
uint64_t scale_descriptor(int offset) {
  return static_cast<uint64_t>(offset) >> 4 | uint64_t{8} << 32 | uint64_t{1} << 46;
}

std::string kernel_text(const Case& c, int image_bytes) {
  const std::string group = ".cta_group::" + std::to_string(c.group);
  const auto number = [](uint64_t v) { return std::to_string(v); };
  const Layout a = layout(c, true), b = layout(c, false);
  std::string body =
      "ld.param.u64 %d0, [image];\nld.param.u64 %d2, [out];\n" + init_barriers() +
      "setp.ne.u32 %p1, %r1, 0;\n@%p1 bra ALLOCED;\ntcgen05.alloc" + group +
      ".sync.aligned.shared::cta.b32 [%r5], 512;\nALLOCED:\n" + cluster_sync() +
      "ld.shared.b32 %r6, [%r5];\n@!%p0 bra LOADED;\n"
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r4], " +
      number(image_bytes) + ";\nmul.wide.u32 %d3, %r2, " + number(image_bytes) +
      ";\nadd.u64 %d0, %d0, %d3;\n"
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r3], [%d0], " +
      number(image_bytes) + ", [%r4];\n" + wait(0, 0, "LOADWAIT") + "LOADED:\n" + cluster_sync() +
      "setp.eq.u32 %p2, %r2, 0;\nand.pred %p2, %p2, %p0;\n@!%p2 bra ISSUED;\n"
      "and.b32 %r15, %r3, 0x3ffff;\nshr.u32 %r15, %r15, 4;\ncvt.u64.u32 %d7, %r15;\n";
  const auto smem = [&](const char* to, uint64_t descriptor) {
    return "mov.b64 " + std::string(to) + ", " + number(descriptor) + ";\nadd.u64 " + to + ", " +
           to + ", %d7;\n";
  };
  const int a_tiles = c.words(), b_tiles = c.words() * c.n_blocks();
  for (int tile = 0; tile < a_tiles + b_tiles; ++tile) {
    body += smem("%d4", scale_descriptor(kScalesAt + 512 * tile)) + "add.u32 %r12, %r6, " +
            number(kTmemScales + 4 * tile) + ";\ntcgen05.cp" + group +
            (c.few_lanes ? ".4x256b" : ".32x128b.warpx4") + " [%r12], %d4;\n";
  }
  for (int i = 0; i < c.steps; ++i) {
    const int k0 = i * 32;  // bytes
    const int word = i * (c.step_k() / c.block) / 4;
    if (c.a_in_tmem) {
      const std::string packed = c.a == NumberFormat::kE2M1   ? ".b8x16.b4x16_p64"
                                 : c.a == NumberFormat::kE2M3 ? ".b8x16.b6x16_p32"
                                                              : "";
      body += smem("%d4", a.descriptor(0, k0)) + "add.u32 %r9, %r6, " + number(kTmemA + 8 * i) +
              ";\ntcgen05.cp" + group + ".128x256b" + packed + " [%r9], %d4;\n";
    } else {
      body += smem("%d4", a.descriptor(0, k0));
    }
    body += smem("%d5", b.descriptor(kBAt, k0)) + "mov.b32 %r8, " +
            number(instruction_descriptor(c, i)) + ";\nsetp.ne.u32 %p3, %r0, " +
            (i == 0 ? "%r0" : "4096") + ";\nadd.u32 %r10, %r6, " + number(kTmemScales + 4 * word) +
            ";\nadd.u32 %r11, %r6, " + number(kTmemScales + 4 * a_tiles + 4 * word * c.n_blocks()) +
            // As CUTLASS does: the id is in the upper bits of the address, too.
            ";\nor.b32 %r11, %r11, 0x40000000;\ntcgen05.mma" + group + ".kind::" + c.kind +
            " [%r6], " + (c.a_in_tmem ? "[%r9]" : "%d4") + ", %d5, %r8, [%r10], [%r11], %p3;\n";
  }
  body += c.group == 2
              ? "mov.b16 %h0, 3;\ntcgen05.commit" + group +
                    ".mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%r4+8], %h0;\n"
              : "tcgen05.commit" + group + ".mbarrier::arrive::one.b64 [%r4+8];\n";
  body += "ISSUED:\n";
  if (c.early_store) {
    body += "add.u32 %r16, %r6, " + number(kTmemScales) +
            ";\n@%p1 bra STORED;\ntcgen05.st.sync.aligned.32x32b.x1.b32 [%r16], {%r0};\nSTORED:\n";
  }
  body += wait(1, 0, "MMAWAIT") +
          "tcgen05.fence::after_thread_sync;\nshl.b32 %r13, %r1, 21;\nadd.u32 %r14, %r6, %r13;\n"
          "mul.wide.u32 %d6, %r2, 131072;\nadd.u64 %d2, %d2, %d6;\nmul.wide.u32 %d6, %r0, 1024;\n"
          "add.u64 %d2, %d2, %d6;\n";
  for (int column = 0; column < c.n; column += 8) {
    body +=
        "tcgen05.ld.sync.aligned.32x32b.x8.b32 {%v0, %v1, %v2, %v3, %v4, %v5, %v6, %v7}, "
        "[%r14+" +
        number(column) + "];\ntcgen05.wait::ld.sync.aligned;\n";
    for (int i = 0; i < 8; ++i) {
      body += "st.global.b32 [%d2+" + number(4 * (column + i)) + "], %v" + number(i) + ";\n";
    }
  }
  body += cluster_sync() + "@%p1 bra FREED;\ntcgen05.dealloc" + group +
          ".sync.aligned.b32 %r6, 512;\nFREED:\n" + cluster_sync();
  return kernel(".param .u64 image, .param .u64 out", body, 2 * 65536);
}

LaunchResult launch_case(const Case& c, Buffer& out) {
  const Layout a = layout(c, true), b = layout(c, false);
  const int scale_bytes = 512 * c.words() * (1 + c.n_blocks());
  const int image_bytes = kScalesAt + std::max(scale_bytes, 1024);
  Buffer image(static_cast<size_t>(image_bytes) * c.group);
  for (int cta = 0; cta < c.group; ++cta) {
    uint8_t* base = image.data() + cta * image_bytes;
    for (const bool of_a : {true, false}) {
      const Layout& l = of_a ? a : b;
      Buffer part(static_cast<size_t>(l.size()));
      if (c.packed()) {
        fill_packed(part.data(), l, cta * l.mn, of_a);
      } else {
        fill(part, 0, l, of_a ? c.a : c.b, cta * l.mn, of_a);
      }
      std::memcpy(base + (of_a ? 0 : kBAt), part.data(), part.size());
    }
    fill_scales(base + kScalesAt, c, true, cta * 128, 128);
    fill_scales(base + kScalesAt + 512 * c.words(), c, false, 0, c.n);
  }
  Launcher launcher;
  launcher.grid = launcher.cluster = Dim3{static_cast<uint32_t>(c.group), 1, 1};
  launcher.add(image, false, "image");
  launcher.add(out, true, "out");
  return launcher.run(kernel_text(c, image_bytes),
                      Params().u64(image.address()).u64(out.address()));
}

void run(const Case& c) {
  Buffer out(size_t(2) * 128 * 256 * 4);
  const LaunchResult result = launch_case(c, out);
  CHECK_TEXT(result.error, "");
  CHECK_EQ(result.warnings.size(), 0u);
  if (!result.ok) return;
  CHECK_EQ(result.stats.mma_flops, uint64_t{2} * c.m() * c.n * c.k());
  int wrong = 0;
  for (int m = 0; m < c.m(); ++m) {
    for (int n = 0; n < c.n; ++n) {
      double sum = 0;
      for (int k = 0; k < c.k(); ++k) {
        sum += value_a(m, k) * value_b(k, n) * scale_value(c, true, m, k / c.block) *
               scale_value(c, false, n, k / c.block);
      }
      if (c.negate_a) sum = -sum;
      const float got = out.as<float>()[m * 256 + n];
      const bool same = std::isnan(sum) ? std::isnan(got) : got == static_cast<float>(sum);
      if (!same && ++wrong <= 3) {
        fail(__FILE__, __LINE__,
             format("%s N=%d: D[%d][%d] is %g, not %g", c.kind.c_str(), c.n, m, n, got, sum));
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

void packed(Case& c, const char* kind, int block, NumberFormat scale) {
  c.kind = kind;
  c.a = c.b = NumberFormat::kE2M1Packed;
  c.block = block;
  c.scale = scale;
}

}  // namespace

TEST(mxf8f6f4) {
  run(with([](Case&) {}));
  run(with([](Case& c) { c.n = 8, c.kind = "mxf8f6f4.block_scale.scale_vec::1X"; }));
  run(with([](Case& c) { c.n = 256, c.kind = "mxf8f6f4.block_scale.block32"; }));
  run(with([](Case& c) { c.n = 200, c.a = NumberFormat::kE5M2, c.negate_a = true; }));
  run(with([](Case& c) { c.b = NumberFormat::kE2M1; }));
  run(with([](Case& c) { c.a = NumberFormat::kE2M3, c.b = NumberFormat::kE3M2; }));
  run(with([](Case& c) { c.a_mn = c.b_mn = true; }));
  run(with([](Case& c) { c.nan = true; }));
}

TEST(mxf4) {
  run(with([](Case& c) { packed(c, "mxf4.block_scale", 32, NumberFormat::kUE8M0); }));
  run(with([](Case& c) {
    packed(c, "mxf4.block_scale.scale_vec::2X", 32, NumberFormat::kUE8M0), c.n = 160;
  }));
}

TEST(mxf4nvf4) {
  run(with([](Case& c) {
    packed(c, "mxf4nvf4.block_scale.scale_vec::4X", 16, NumberFormat::kUE4M3), c.n = 192;
  }));
  run(with([](Case& c) {
    packed(c, "mxf4nvf4.block_scale.block16", 16, NumberFormat::kUE8M0), c.nan = true;
  }));
  run(with([](Case& c) { packed(c, "mxf4nvf4.block_scale.block32", 32, NumberFormat::kUE8M0); }));
}

TEST(pairs_have_the_scales_of_all_columns_in_both_ctas) {
  run(with([](Case& c) { c.group = 2, c.n = 256; }));
  run(with([](Case& c) { c.group = 2, c.n = 48, c.b_mn = false; }));
  run(with([](Case& c) {
    packed(c, "mxf4nvf4.block_scale.block16", 16, NumberFormat::kUE4M3), c.group = 2, c.n = 224;
  }));
}

TEST(a_in_tensor_memory) {
  run(with([](Case& c) { c.a_in_tmem = true; }));
  // Narrow elements are unpacked on their way.
  run(with([](Case& c) { c.a_in_tmem = true, c.a = NumberFormat::kE2M1; }));
  run(with([](Case& c) { c.a_in_tmem = true, c.a = NumberFormat::kE2M3; }));
  run(with([](Case& c) {
    packed(c, "mxf4.block_scale", 32, NumberFormat::kUE8M0), c.a_in_tmem = true;
  }));
}

TEST(faults_around_scales_are_reported) {
  Buffer out(size_t(2) * 128 * 256 * 4);
  Case c;
  c.few_lanes = true;
  const LaunchResult few = launch_case(c, out);
  CHECK(few.ok);
  CHECK(!few.warnings.empty());
  if (!few.warnings.empty()) {
    CHECK_TEXT(few.warnings[0].text, "scales of A in tensor memory that nothing has written");
  }
  c = Case();
  c.early_store = true;
  const LaunchResult early = launch_case(c, out);
  CHECK(!early.ok);
  CHECK_TEXT(early.error, "columns 256-259");
}

TEST(refusals) {
  const auto refused = [](void (*change)(Case&), const char* why) {
    Buffer out(size_t(2) * 128 * 256 * 4);
    Case c;
    change(c);
    const LaunchResult result = launch_case(c, out);
    CHECK(!result.ok);
    CHECK_TEXT(result.error, why);
  };
  refused([](Case& c) { c.kind = "mxf8f6f4"; }, "kind::mxf8f6f4 needs .block_scale");
  refused([](Case& c) { c.kind = "mxf8f6f4.block_scale.scale_vec::2X"; },
          ".scale_vec::2X is not defined for kind::mxf8f6f4");
  refused([](Case& c) { packed(c, "mxf4nvf4.block_scale", 16, NumberFormat::kUE4M3); },
          "kind::mxf4nvf4 needs .block16, .block32 or .scale_vec");
  refused([](Case& c) { packed(c, "mxf4.block_scale.block16", 16, NumberFormat::kUE4M3); },
          ".block16 is not defined for kind::mxf4");
  refused([](Case& c) { c.scale = NumberFormat::kUE4M3; }, "scales in UE4M3 (bit 23) need");
  refused([](Case& c) { c.n = 264; }, "shape M=128 N=264 is not allowed for kind::mxf8f6f4");
}

int main(int argc, char** argv) { return run_all(argc, argv); }
