// Tensor memory: allocation rules, loads and stores of every shape, copies, shift; and the faults
// of code that does not wait.
#include <set>

#include "emulator/tensor/tmem_shapes.h"
#include "emulator/tests/rule_cases.h"
#include "emulator/tests/tensor_kernel.h"

using namespace bwgemm::emulator;
using namespace bwgemm::emulator::testing;

namespace {

const char* kAlloc = "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r5], ";
const char* kDealloc = "tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r6, ";

// Warp 0 allocates; everyone gets the address in %r6.
std::string allocate(int columns) {
  return "setp.ne.u32 %p1, %r1, 0;\n@%p1 bra ALLOCED;\n" + std::string(kAlloc) +
         std::to_string(columns) + ";\nALLOCED:\nbar.sync 0;\nld.shared.b32 %r6, [%r5];\n";
}
std::string deallocate(int columns) {
  return "bar.sync 0;\n@%p1 bra FREED;\n" + std::string(kDealloc) + std::to_string(columns) +
         ";\nFREED:\n";
}

LaunchResult run_body(const std::string& body, uint32_t threads = 128) {
  Launcher launcher;
  launcher.block = Dim3{threads, 1, 1};
  return launcher.run(kernel("", body), Params());
}

// With the parameter `out`.
LaunchResult run_into(Buffer& out, const std::string& body) {
  Launcher launcher;
  launcher.add(out, true, "out");
  const uint64_t address = out.address();
  Params params;
  params.u64(address);
  return launcher.run(kernel(".param .u64 out", body), params);
}

void refused(const std::string& body, const char* why, ErrorKind kind = ErrorKind::kFault) {
  const LaunchResult result = run_body(body);
  CHECK(!result.ok);
  CHECK_TEXT(result.error, why);
  CHECK(result.kind == kind);
}

std::string vector(const char* prefix, int count) {
  std::string text = "{";
  for (int i = 0; i < count; ++i) text += (i ? ", " : "") + std::string(prefix) + std::to_string(i);
  return text + "}";
}

// Fills %v<i> with thread * 256 + i.
std::string number_registers(int count) {
  std::string text = "shl.b32 %r20, %r0, 8;\n";
  for (int i = 0; i < count; ++i) {
    text += "add.u32 %v" + std::to_string(i) + ", %r20, " + std::to_string(i) + ";\n";
  }
  return text;
}

}  // namespace

TEST(allocation_rules) {
  CHECK_TEXT(run_body(allocate(64) + deallocate(64)).error, "");
  refused(allocate(48) + deallocate(48), "tcgen05.alloc of 48 columns");
  refused(allocate(64), "64 columns of tensor memory still allocated");
  refused(allocate(64) + deallocate(32), "not one live allocation");
  refused(allocate(64) + "add.u32 %r6, %r6, 32;\n" + deallocate(64), "not one live allocation");
  refused(allocate(64) + "add.u32 %r6, %r6, 65536;\n" + deallocate(64), "an address in lane 1");
  refused(allocate(64) + deallocate(64) + "@%p1 bra AGAIN;\n" + kDealloc + "64;\nAGAIN:\n",
          "not one live allocation");
  refused(allocate(64) + deallocate(48), "tcgen05.dealloc of 48 columns");
  refused("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;\n" + allocate(64),
          "after tcgen05.relinquish_alloc_permit");
  refused(allocate(64) + "tcgen05.relinquish_alloc_permit.cta_group::2.sync.aligned;\n",
          "cta_group::2 in a kernel that has used cta_group::1");
  refused("tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [%r5], 32;\n", "has no peer");
  refused("tcgen05.alloc.sync.aligned.shared::cta.b32 [%r5], 32;\n", "needs .cta_group",
          ErrorKind::kParse);
}

TEST(allocation_waits_for_room) {
  // Warp 1 asks for all columns while warp 0 holds some, which warp 0 frees later.
  const std::string body =
      "setp.eq.u32 %p1, %r1, 0;\nsetp.eq.u32 %p2, %r1, 1;\n@!%p1 bra SECOND;\n" +
      std::string(kAlloc) +
      "64;\nSECOND:\nbar.sync 0;\n@!%p1 bra THIRD;\nld.shared.b32 %r6, [%r5];\n"
      "nanosleep.u32 1000;\n" +
      kDealloc +
      "64;\nTHIRD:\n@!%p2 bra LAST;\n"
      "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r5+8], 512;\nbar.warp.sync -1;\n"
      "ld.shared.b32 %r6, [%r5+8];\n" +
      kDealloc + "512;\nLAST:\n";
  CHECK_TEXT(run_body(body).error, "");
  // Nobody frees: a deadlock that says what is missing.
  refused(allocate(64) + std::string("@%p1 bra END;\n") + kAlloc + "512;\nEND:\n",
          "tcgen05.alloc of 512 columns: 448 columns free on SM", ErrorKind::kDeadlock);
}

TEST(loads_and_stores_of_every_shape) {
  const struct {
    const char* name;
    LdStShape shape;
    int num;
  } kShapes[] = {{"32x32b", LdStShape::k32x32b, 4},     {"16x64b", LdStShape::k16x64b, 4},
                 {"16x128b", LdStShape::k16x128b, 4},   {"16x256b", LdStShape::k16x256b, 2},
                 {"16x32bx2", LdStShape::k16x32bx2, 4}, {"32x32b", LdStShape::k32x32b, 128}};
  for (const auto& s : kShapes) {
    for (const bool packed : {false, true}) {
      if (packed && s.num == 128) continue;
      const int regs = ldst_registers(s.shape, s.num);
      const bool split = s.shape == LdStShape::k16x32bx2;
      const int half = split ? s.num * (packed ? 2 : 1) : 0;
      const std::string immediate = split ? ", " + std::to_string(half) : "";
      const std::string num = ".x" + std::to_string(s.num);
      // Store in the shape under test, dump with plain 32x32b loads: out[lane][64 or 128].
      const int dump = s.num == 128 ? 128 : 64;
      std::string body = "ld.param.u64 %d0, [out];\n" + allocate(128) + number_registers(regs) +
                         "shl.b32 %r13, %r1, 21;\nadd.u32 %r14, %r6, %r13;\n"
                         "tcgen05.st.sync.aligned." +
                         s.name + num + (packed ? ".unpack::16b" : "") + ".b32 [%r14]" + immediate +
                         ", " + vector("%v", regs) + ";\ntcgen05.wait::st.sync.aligned;\n";
      // Read back in the same shape: every register returns.
      body += "tcgen05.ld.sync.aligned." + std::string(s.name) + num +
              (packed ? ".pack::16b" : "") + ".b32 " + vector("%v", regs) + ", [%r14]" + immediate +
              ";\ntcgen05.wait::ld.sync.aligned;\nmul.wide.u32 %d1, %r0, 1024;\nadd.u64 %d2, %d0, "
              "%d1;\n";
      for (int i = 0; i < regs; ++i) {
        body += "st.global.b32 [%d2+" + std::to_string(4 * i) + "], %v" + std::to_string(i) + ";\n";
      }
      body += "tcgen05.ld.sync.aligned.32x32b.x" + std::to_string(dump) + ".b32 " +
              vector("%v", dump) + ", [%r14];\ntcgen05.wait::ld.sync.aligned;\n";
      for (int i = 0; i < dump; ++i) {
        body += "st.global.b32 [%d2+" + std::to_string(512 + 4 * i) + "], %v" + std::to_string(i) +
                ";\n";
      }
      Buffer out(128 * 1024);
      Launcher launcher;
      launcher.add(out, true, "out");
      const LaunchResult result = launcher.run(kernel(".param .u64 out", body + deallocate(128)),
                                               Params().u64(out.address()));
      CHECK_TEXT(result.error, "");
      if (!result.ok) return;
      int wrong = 0;
      std::set<std::pair<int, int>> written;
      const uint32_t* words = out.as<uint32_t>();
      for (int thread = 0; thread < 128; ++thread) {
        for (int r = 0; r < regs; ++r) {
          const uint32_t expected = static_cast<uint32_t>(thread * 256 + r);
          wrong += words[thread * 256 + r] != expected;
          const CellOffset cell = ldst_cell(s.shape, packed, half, thread % 32, r);
          const uint32_t* at = words + (thread / 32 * 32 + cell.lane) * 256 + 128 + cell.column;
          wrong +=
              packed ? at[0] != (expected & 0xffff) || at[1] != expected >> 16 : at[0] != expected;
          written.insert({thread / 32 * 32 + cell.lane, cell.column});
        }
      }
      // Other cells keep their poison.
      for (int lane = 0; lane < 128; ++lane) {
        for (int column = 0; column < dump; ++column) {
          const int even = packed ? column / 2 * 2 : column;
          if (written.count({lane, even}) == 0)
            wrong += words[lane * 256 + 128 + column] != 0xffbadbadu;
        }
      }
      if (wrong != 0)
        fail(__FILE__, __LINE__, format("%s%s: %d wrong", s.name, num.c_str(), wrong));
    }
  }
}

TEST(a_warp_that_names_lanes_of_another_one_accesses_its_own) {
  const std::string own = "shl.b32 %r13, %r1, 21;\nadd.u32 %r14, %r6, %r13;\n";
  for (const int lane : {0, 96}) {
    const std::string other = "add.u32 %r7, %r6, " + std::to_string(lane << 16) + ";\n";
    for (const bool stores : {false, true}) {
      const char *to = stores ? "%r7" : "%r14", *from = stores ? "%r14" : "%r7";
      Buffer out(128 * 4);
      const LaunchResult result =
          run_into(out, "ld.param.u64 %d0, [out];\n" + allocate(32) + own + other +
                            "tcgen05.st.sync.aligned.32x32b.x1.b32 [" + to +
                            "], {%r0};\ntcgen05.wait::st.sync.aligned;\n"
                            "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%v0}, [" +
                            from +
                            "];\ntcgen05.wait::ld.sync.aligned;\nmul.wide.u32 %d1, %r0, 4;\n"
                            "add.u64 %d1, %d1, %d0;\nst.global.b32 [%d1], %v0;\n" +
                            deallocate(32));
      CHECK_TEXT(result.error, "");
      CHECK_EQ(result.warnings.size(), size_t{1});
      if (result.warnings.size() != 1) return;
      CHECK(result.warnings[0].rule == Rule::kTensorLanes);
      CHECK_EQ(result.warnings[0].count, uint64_t{3});  // once for each of the other warps
      for (uint32_t i = 0; i < 128; ++i) CHECK_EQ(out.as<uint32_t>()[i], i);
    }
  }
}

TEST(loads_and_stores_refuse) {
  const std::string two = "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%v0}, [%r7];\n";
  for (const int lane : {8, 16, 24, 40, 128}) {
    const std::string first = "not lanes " + std::to_string(lane) + "-";
    refused(allocate(32) + "add.u32 %r7, %r6, " + std::to_string(lane << 16) + ";\n" + two,
            first.c_str());
  }
  refused(allocate(32) +
              "shl.b32 %r13, %r1, 21;\nadd.u32 %r7, %r6, %r13;\nadd.u32 %r7, %r7, 32;\n" + two,
          "access to unallocated tensor memory");
  refused(allocate(32) + "add.u32 %r7, %r6, %r0;\n" + two, "address differs between lanes");
  refused(allocate(32) + "tcgen05.ld.sync.aligned.16x256b.x1.b32 {%v0}, [%r6];\n",
          "needs 4 registers", ErrorKind::kParse);
  refused("tcgen05.ld.sync.aligned.16x256b.x64.b32 {%v0}, [%r6];\n", "does not exist with .x64",
          ErrorKind::kParse);
  refused("tcgen05.ld.sync.aligned.x1.b32 {%v0}, [%r6];\n", "needs a shape", ErrorKind::kParse);
  refused("tcgen05.ld.sync.aligned.32x32b.b32 {%v0}, [%r6];\n", "needs a repetition",
          ErrorKind::kParse);
  refused("tcgen05.ld.red.sync.aligned.32x32b.x1.b32 {%v0}, [%r6];\n", "tcgen05.ld.red",
          ErrorKind::kUnsupported);
  // A store that has not been waited for.
  refused(allocate(32) +
              "shl.b32 %r13, %r1, 21;\nadd.u32 %r7, %r6, %r13;\nmov.b32 %v0, 1;\n"
              "tcgen05.st.sync.aligned.32x32b.x1.b32 [%r7], {%v0};\n" +
              two,
          "while tcgen05.st.sync.aligned.32x32b.x1.b32 of line");
  // A load that has not been waited for when its cells go away.
  refused(allocate(32) + "shl.b32 %r13, %r1, 21;\nadd.u32 %r7, %r6, %r13;\n" + two + deallocate(32),
          "tensor memory is still in use by tcgen05.ld");
}

namespace {

// Copies 128 rows of 32 bytes (numbered words) with tcgen05.cp, and optionally shifts; dumps 16
// columns of all lanes.
std::vector<uint32_t> copied(const std::string& copies) {
  Buffer in(8192), out(128 * 64);
  for (int i = 0; i < 2048; ++i) in.as<uint32_t>()[i] = static_cast<uint32_t>(i);
  // Unswizzled: rows of 16 bytes, 8 rows a group (128 bytes), second chunk 2048 bytes further.
  const uint64_t descriptor =
      (uint64_t{2048 >> 4} << 16) | (uint64_t{128 >> 4} << 32) | (uint64_t{1} << 46);
  std::string body =
      "ld.param.u64 %d0, [in];\nld.param.u64 %d1, [out];\n" + init_barriers() + allocate(32) +
      "@!%p0 bra LOADED;\nmbarrier.arrive.expect_tx.shared::cta.b64 _, [%r4], 8192;\n"
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r3], [%d0], 8192, "
      "[%r4];\n" +
      wait(0, 0, "FULL") +
      "and.b32 %r15, %r3, 0x3ffff;\nshr.u32 %r15, %r15, 4;\n"
      "cvt.u64.u32 %d7, %r15;\nmov.b64 %d4, " +
      std::to_string(descriptor) + ";\nadd.u64 %d4, %d4, %d7;\n" + copies +
      "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r4+8];\nLOADED:\n" +
      wait(1, 0, "COPIED") +
      "shl.b32 %r13, %r1, 21;\nadd.u32 %r14, %r6, %r13;\n"
      "tcgen05.ld.sync.aligned.32x32b.x16.b32 " +
      vector("%v", 16) +
      ", [%r14];\n"
      "tcgen05.wait::ld.sync.aligned;\nmul.wide.u32 %d2, %r0, 64;\nadd.u64 %d1, %d1, %d2;\n";
  for (int i = 0; i < 16; ++i) {
    body += "st.global.b32 [%d1+" + std::to_string(4 * i) + "], %v" + std::to_string(i) + ";\n";
  }
  Launcher launcher;
  launcher.add(in, false, "in");
  launcher.add(out, true, "out");
  const LaunchResult result =
      launcher.run(kernel(".param .u64 in, .param .u64 out", body + deallocate(32)),
                   Params().u64(in.address()).u64(out.address()));
  CHECK_TEXT(result.error, "");
  return std::vector<uint32_t>(out.as<uint32_t>(), out.as<uint32_t>() + 128 * 16);
}

// Word `word` (0-7) of source row `row`.
uint32_t source(int row, int word) {
  return static_cast<uint32_t>(word / 4 * 512 + row * 4 + word % 4);
}

}  // namespace

TEST(copies_from_shared_memory) {
  const auto cp = [](const char* shape) {
    return std::string("tcgen05.cp.cta_group::1.") + shape + " [%r6], %d4;\n";
  };
  constexpr uint32_t kPoison = 0xffbadbadu;
  std::vector<uint32_t> cells = copied(cp("128x256b"));
  for (int lane = 0; lane < 128; ++lane) {
    for (int w = 0; w < 8; ++w) CHECK_EQ(cells[lane * 16 + w], source(lane, w));
    CHECK_EQ(cells[lane * 16 + 8], kPoison);
  }
  cells = copied(cp("128x128b"));
  CHECK_EQ(cells[127 * 16 + 3], source(127, 3));
  CHECK_EQ(cells[127 * 16 + 4], kPoison);
  cells = copied(cp("4x256b"));
  CHECK_EQ(cells[64 * 16 + 7], source(2, 7));
  CHECK_EQ(cells[65 * 16], kPoison);
  cells = copied(cp("64x128b.warpx2::02_13"));
  CHECK_EQ(cells[100 * 16 + 1], source(36, 1));
  cells = copied(cp("64x128b.warpx2::01_23"));
  CHECK_EQ(cells[40 * 16 + 1], source(8, 1));
  CHECK_EQ(cells[100 * 16 + 1], source(36, 1));
  cells = copied(cp("32x128b.warpx4"));
  for (int lane = 0; lane < 128; ++lane) CHECK_EQ(cells[lane * 16 + 2], source(lane % 32, 2));
  // Shift after a copy: the tensor core keeps the order.
  cells = copied(cp("128x256b") + "tcgen05.shift.cta_group::1.down [%r6];\n");
  CHECK_EQ(cells[0 * 16 + 5], source(1, 5));
  CHECK_EQ(cells[31 * 16 + 5], source(31, 5));
  CHECK_EQ(cells[32 * 16 + 5], source(32, 5));
}

TEST(copies_refuse) {
  refused("tcgen05.cp.cta_group::1.32x128b [%r6], %d4;\n", "not a shape of tcgen05.cp",
          ErrorKind::kParse);
  refused("tcgen05.cp.cta_group::1.128x256b.b8x16 [%r6], %d4;\n", "a packed format",
          ErrorKind::kParse);
  refused(allocate(32) + "mov.b64 %d4, 0;\ntcgen05.cp.cta_group::1.128x256b [%r6], %d4;\n",
          "bits 46-48 must be 0b001");
  refused(allocate(32) + "add.u32 %r6, %r6, 65536;\ntcgen05.shift.cta_group::1.down [%r6];\n",
          "multiple of 32");
  refused("tcgen05.shift.cta_group::1 [%r6];\n", "needs .down", ErrorKind::kParse);
}

TEST(pair_allocation_gives_both_the_same_columns) {
  const std::string alloc = "tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [%r5], ";
  const std::string dealloc = "tcgen05.dealloc.cta_group::2.sync.aligned.b32 %r6, ";
  Buffer out(64);
  const std::string body = "ld.param.u64 %d0, [out];\nmov.b32 %r20, 128;\n" + alloc +
                           "%r20;\nbar.warp.sync -1;\nld.shared.b32 %r6, [%r5];\nmul.wide.u32 %d1, "
                           "%r2, 4;\nadd.u64 %d0, %d0, %d1;\n"
                           "st.global.b32 [%d0], %r6;\n" +
                           cluster_sync() + dealloc + "128;\n";
  Launcher launcher;
  launcher.block = Dim3{32, 1, 1};
  launcher.grid = launcher.cluster = Dim3{2, 1, 1};
  launcher.add(out, true, "out");
  const Params params = Params().u64(out.address());
  CHECK_TEXT(launcher.run(kernel(".param .u64 out", body), params).error, "");
  CHECK_EQ(out.as<uint32_t>()[0], out.as<uint32_t>()[1]);
  // Different sizes.
  std::string uneven = body;
  uneven.replace(uneven.find("mov.b32 %r20, 128;"), 18,
                 "shl.b32 %r20, %r2, 5;\nadd.u32 %r20, %r20, 32;");
  CHECK_TEXT(launcher.run(kernel(".param .u64 out", uneven), params).error,
             "allocate different sizes");
  // Only one of the CTAs.
  const std::string alone =
      "setp.eq.u32 %p1, %r2, 0;\n@!%p1 bra END;\n" + alloc + "128;\nEND:\n" + cluster_sync();
  const LaunchResult result = launcher.run(kernel(".param .u64 out", alone), params);
  CHECK(result.kind == ErrorKind::kDeadlock);
  CHECK_TEXT(result.error, "the peer CTA's tcgen05.alloc has not been executed");
}

TEST(tensor_memory_is_shared_with_synchronisation) {
  // Warps 0 and 4 use the same lanes: one stores, the other loads.
  Setting two;
  two.block.x = 256;
  const auto body = [](const char* between) {
    return allocate(32) +
           "shr.u32 %r20, %r0, 7;\nsetp.eq.u32 %p2, %r20, 0;\nand.b32 %r21, %r1, 3;\n"
           "shl.b32 %r21, %r21, 21;\nadd.u32 %r22, %r6, %r21;\n@!%p2 bra SECOND;\n"
           "tcgen05.st.sync.aligned.32x32b.x1.b32 [%r22], {%r0};\n"
           "tcgen05.wait::st.sync.aligned;\nSECOND:\n" +
           between +
           "@%p2 bra DONE;\ntcgen05.ld.sync.aligned.32x32b.x1.b32 {%r10}, [%r22];\n"
           "tcgen05.wait::ld.sync.aligned;\nDONE:\n" +
           deallocate(32);
  };
  const std::string right = body(
      "tcgen05.fence::before_thread_sync;\nbar.sync 0;\n"
      "tcgen05.fence::after_thread_sync;\n");
  check_rule(Rule::kTensorRace, body(""), right, "no synchronisation orders them", two);
  const char* message = "tcgen05.fence::before_thread_sync there or ::after_thread_sync here";
  check_rule(Rule::kTensorFence, body("bar.sync 0;\n"), right, message, two);
  check_rule(Rule::kTensorFence, body("tcgen05.fence::before_thread_sync;\nbar.sync 0;\n"), right,
             message, two);
  check_rule(Rule::kTensorFence, body("bar.sync 0;\ntcgen05.fence::after_thread_sync;\n"), right,
             message, two);
}

TEST(tensor_memory_is_written_before_it_is_read) {
  const auto body = [](const char* columns) {
    return allocate(32) +
           "and.b32 %r21, %r1, 3;\nshl.b32 %r21, %r21, 21;\nadd.u32 %r22, %r6, %r21;\n"
           "tcgen05.st.sync.aligned.32x32b.x1.b32 [%r22], {%r0};\n"
           "tcgen05.wait::st.sync.aligned;\n"
           "tcgen05.ld.sync.aligned.32x32b." +
           columns + ", [%r22];\ntcgen05.wait::ld.sync.aligned;\n" + deallocate(32);
  };
  check_rule(Rule::kUninitializedTensor, body("x2.b32 {%r10, %r11}"), body("x1.b32 {%r10}"),
             "part of which nothing has written");
}

TEST(tensor_memory_is_freed_after_all_warps_have_used_it) {
  // Each warp stores and loads its own lanes; the first one frees.
  const std::string use =
      allocate(32) +
      "and.b32 %r21, %r1, 3;\nshl.b32 %r21, %r21, 21;\nadd.u32 %r22, %r6, %r21;\n"
      "tcgen05.st.sync.aligned.32x32b.x1.b32 [%r22], {%r0};\ntcgen05.wait::st.sync.aligned;\n"
      "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r10}, [%r22];\ntcgen05.wait::ld.sync.aligned;\n";
  const std::string barrier = "bar.sync 0;\n", end = deallocate(32);
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    const auto run = [&](const std::string& body) {
      return run_rule(body, Rule::kTensorRace, Severity::kError, seed, {});
    };
    CHECK_TEXT(run(use + end).error, "");
    // Before the others have come to it, or after: nothing says which.
    const LaunchResult early = run(use + end.substr(barrier.size()));
    CHECK(!early.ok);
    if (early.rule == info(Rule::kTensorRace).name) {
      CHECK_TEXT(early.error, "frees tensor memory (lanes 0-127, columns 0-31) and the");
    } else {
      CHECK_TEXT(early.error, "tensor memory");
    }
  }
}

int main(int argc, char** argv) { return run_all(argc, argv); }
