// tcgen05.mma: what is refused, and results and operands whose completion nothing waits for.
#include "emulator/tests/tensor_kernel.h"

using namespace bwgemm::emulator;
using namespace bwgemm::emulator::testing;

namespace {

// Allocates, runs `body` in thread 0 with %r6 the address, commits to bar[1], waits, deallocates.
LaunchResult issue(const std::string& body, const char* tail = "") {
  Launcher launcher;
  return launcher.run(
      kernel("", init_barriers() +
                     "setp.ne.u32 %p1, %r1, 0;\n@%p1 bra ALLOCED;\n"
                     "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r5], "
                     "64;\nALLOCED:\nbar.sync 0;\n"
                     "ld.shared.b32 %r6, [%r5];\n@!%p0 bra ISSUED;\n"
                     "and.b32 %r15, %r3, 0x3ffff;\nshr.u32 %r15, %r15, 4;\ncvt.u64.u32 %d7, %r15;\n"
                     // K-major, unswizzled, version 1
                     "mov.b64 %d4, 0x400800800000;\nadd.u64 %d4, %d4, %d7;\n"
                     "mov.b32 %r8, 0x8100490;\nsetp.ne.u32 %p3, %r0, %r0;\n" +
                     body +
                     "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 "
                     "[%r4+8];\nISSUED:\n" +
                     wait(1, 0, "DONE") + tail +
                     "bar.sync 0;\n@%p1 bra FREED;\ntcgen05.dealloc.cta_group::1.sync.aligned.b32 "
                     "%r6, 64;\nFREED:\n"),
      Params());
}

const std::string kMma = "tcgen05.mma.cta_group::1.kind::f16 [%r6], %d4, %d4, %r8, %p3;\n";

void refused(const std::string& body, const char* why, ErrorKind kind = ErrorKind::kFault,
             const char* tail = "") {
  const LaunchResult result = issue(body, tail);
  CHECK(!result.ok);
  CHECK(result.kind == kind);
  CHECK_TEXT(result.error, why);
}

}  // namespace

TEST(refusals) {
  CHECK_TEXT(issue(kMma).error, "");
  refused("mov.b64 %d4, 0;\n" + kMma, "A: shared-memory descriptor: bits 46-48 must be 0b001");
  refused("or.b64 %d4, %d4, 0x2000000000000000;\n" + kMma,
          "32-byte atoms goes with MN-major 32-bit operands");
  refused("add.u64 %d4, %d4, 0x3000;\n" + kMma, "operand outside the shared memory");
  refused("mov.b32 %r8, 0x81004a0;\n" + kMma, "D format 2 is not one of kind::f16");
  refused("mov.b32 %r8, 0x10100490;\n" + kMma, "shape M=256 N=64 is not allowed for kind::f16");
  refused("add.u32 %r6, %r6, 65536;\n" + kMma, "D starts in lane 1");
  refused("add.u32 %r6, %r6, 32;\n" + kMma, "access to unallocated tensor memory");
  refused("tcgen05.mma.cta_group::2.kind::f16 [%r6], %d4, %d4, %r8, %p3;\n",
          "cta_group::2 in a kernel");
  const std::string rest = " [%r6], %d4, %d4, %r8, %p3;\n";
  refused(
      "tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale [%r6], %d4, %d4, %r8, [%r6], [%r6], "
      "%p3;\n",
      "scales in UE4M3 (bit 23) need kind::mxf4nvf4");
  refused(
      "tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale.block16 [%r6], %d4, %d4, %r8, [%r6], "
      "[%r6], %p3;\n",
      "scale factor id 1 with 4 scales along K");
  refused(
      "mov.b32 %r8, 0x88900490;\ntcgen05.mma.cta_group::1.kind::mxf4.block_scale [%r6], %d4, %d4, "
      "%r8, [%r6], [%r6], %p3;\n",
      "K of 96 elements (bit 31) is not implemented");
  refused(
      "add.u32 %r9, %r6, 0x10000;\nmov.b32 %r8, 0x08900400;\n"
      "tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale [%r6], %d4, %d4, %r8, [%r9], [%r6], "
      "%p3;\n",
      "the scales of A start in lane 1; it must be 0");
  refused(
      "tcgen05.mma.ws.cta_group::1.kind::mxf4.block_scale [%r6], %d4, %d4, %r8, [%r6], [%r6], "
      "%p3;\n",
      "kind::mxf4 has no .ws", ErrorKind::kParse);
  refused("tcgen05.mma.sp.cta_group::1.kind::f16" + rest, "sparse tcgen05.mma",
          ErrorKind::kUnsupported);
  refused("tcgen05.mma.cta_group::1.kind::f16.ashift" + rest, ".ashift", ErrorKind::kUnsupported);
  refused("tcgen05.mma.cta_group::1" + rest, "needs a .kind", ErrorKind::kParse);
  refused("tcgen05.mma.cta_group::1.kind::f16 [%r6], %d4, %d4, %r8, {%r1, %r1}, %p3;\n",
          "disable-output-lane needs 4 elements", ErrorKind::kParse);
  refused("tcgen05.mma.cta_group::1.kind::f16 [%r6], %d4, %d4, %r8, %p3, 16;\n",
          "scale-input-d must be 0 to 15", ErrorKind::kParse);
  refused("tcgen05.mma.cta_group::1.kind::i8 [%r6], %d4, %d4, %r8, %p3, 1;\n",
          "scale-input-d needs kind::f16", ErrorKind::kParse);
}

TEST(unobserved_results_and_operands_are_reported) {
  const std::string load =
      "shl.b32 %r13, %r1, 21;\nadd.u32 %r14, %r6, %r13;\n"
      "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%v0}, [%r14];\ntcgen05.wait::ld.sync.aligned;\n";
  const std::string commit =
      "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r4+8];\n";
  // The commit precedes the MMA, so the barrier says nothing about it.
  refused(commit + kMma + "bra ISSUED;\n", "its completion has not been waited for",
          ErrorKind::kFault, load.c_str());
  CHECK_TEXT(issue(kMma, load.c_str()).error, "");
  // An operand is overwritten while it may still be read.
  refused(kMma + "st.shared.b32 [%r3], %r8;\n", "asynchronous");
}

int main(int argc, char** argv) { return run_all(argc, argv); }
