// Bulk copies of elements of 4 and 6 bits.
#include "emulator/tests/tma_kernel.h"

using namespace bwgemm::emulator;
using namespace bwgemm::emulator::testing;

// Sixteen elements of 4 or 6 bits take 8 or 12 bytes of global memory and 16 of shared memory; the
// barrier counts the former. The box starts 16 elements ahead of the tensor's end.
TEST(narrow_elements_are_padded_in_shared_memory) {
  for (const bool six_bits : {false, true}) {
    for (const bool swizzled : {false, true}) {
      const uint32_t group = six_bits ? 12 : 8;
      const uint32_t pitch = 2 * 8 * group;  // 256 elements
      Buffer in(4 * pitch), out(2 * 128);
      for (uint32_t i = 0; i < 4 * pitch; ++i) in.data()[i] = static_cast<uint8_t>(i * 7 + 1);
      TensorMap a =
          matrix_map(in, six_bits ? TensorMapType::k16U6Align16B : TensorMapType::k16U4Align16B,
                     256, 4, pitch, 128, 2);
      if (swizzled) a.swizzle = TensorMapSwizzle::k128B;
      Launcher launcher;
      launcher.add(in, false, "in");
      launcher.add(out, true, "out");
      Params params;
      add_map(params, a);
      const std::string body =
          "mov.b64 %d0, a;\ncvta.param.u64 %d0, %d0;\nld.param.u64 %d1, [out];\n" +
          init_barriers() +
          // What the copy leaves alone stays zero.
          "shl.b32 %r9, %r0, 2;\nadd.u32 %r9, %r9, %r3;\nmov.b32 %r10, 0;\n"
          "st.shared.b32 [%r9], %r10;\nfence.proxy.async.shared::cta;\nbar.sync 0;\n"
          "@!%p0 bra LOADED;\nmbarrier.arrive.expect_tx.shared::cta.b64 _, [%r4], " +
          std::to_string(2 * 8 * group) +
          ";\nmov.b32 %r10, 240;\nmov.b32 %r11, 1;\n"
          "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r3], "
          "[%d0, {%r10, %r11}], [%r4];\nLOADED:\n" +
          wait(0, 0, "FULL") +
          "ld.shared.b32 %r12, [%r9];\nmul.wide.u32 %d2, %r0, 4;\nadd.u64 %d1, %d1, %d2;\n"
          "setp.lt.u32 %p1, %r0, 64;\n@%p1 st.global.b32 [%d1], %r12;\n";
      const LaunchResult result = launcher.run(
          kernel(".param .align 64 .b8 a[128], .param .u64 out", body), params.u64(out.address()));
      CHECK_TEXT(result.error, "");
      CHECK(result.warnings.empty());
      int wrong = 0;
      for (uint32_t row = 0; row < 2; ++row) {
        for (uint32_t chunk = 0; chunk < 8; ++chunk) {
          const uint32_t at = row * 128 + (swizzled ? chunk ^ row : chunk) * 16;
          for (uint32_t byte = 0; byte < 16; ++byte) {
            const bool inside = chunk == 0 && byte < group;
            const uint8_t expected =
                inside ? in.data()[(row + 1) * pitch + 15 * group + byte] : uint8_t{0};
            wrong += out.data()[at + byte] != expected;
          }
        }
      }
      CHECK_EQ(wrong, 0);
    }
  }
}

TEST(narrow_elements_have_limits) {
  Buffer in(4 * 128), out(4 * 128);
  const auto refused = [&](TensorMapType from, TensorMapType to, int x, const char* why) {
    const uint32_t columns = to == TensorMapType::kU8 ? 128 : 256;
    Launcher launcher;
    launcher.add(in, false, "in");
    launcher.add(out, true, "out");
    Params params;
    add_map(add_map(params, matrix_map(in, from, 256, 4, 128, 128, 2)),
            matrix_map(out, to, columns, 4, 128, 128, 2));
    const LaunchResult result = launcher.run(
        copy_kernel(from == TensorMapType::k16U4Align16B ? 128 : 256, x, 0, 0, 0), params);
    CHECK(!result.ok);
    CHECK_TEXT(result.error, why);
  };
  refused(TensorMapType::k16U4Align16B, TensorMapType::kU8, 8,
          "the innermost coordinate must be a multiple of 16, got 8");
  refused(TensorMapType::k16U4Align16B, TensorMapType::k16U4Align16B, 0, "it is for loads only");
}

int main(int argc, char** argv) { return run_all(argc, argv); }
