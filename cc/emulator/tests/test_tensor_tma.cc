// Bulk copies: tensor loads and stores, multicast, reductions, plain copies, tensormap.replace.
#include <cmath>
#include <map>

#include "emulator/tensor/number_formats.h"
#include "emulator/tests/tma_kernel.h"

using namespace bwgemm::emulator;
using namespace bwgemm::emulator::testing;

TEST(load_and_store_move_boxes_through_every_swizzle) {
  for (TensorMapSwizzle swizzle :
       {TensorMapSwizzle::kNone, TensorMapSwizzle::k32B, TensorMapSwizzle::k64B,
        TensorMapSwizzle::k128B, TensorMapSwizzle::k128BAtom32B, TensorMapSwizzle::k128BAtom64B}) {
    Buffer in(100 * 208), out(100 * 208, 0xee);
    for (int i = 0; i < 100 * 104; ++i) in.as<uint16_t>()[i] = static_cast<uint16_t>(i);
    const uint32_t columns = swizzle == TensorMapSwizzle::k32B   ? 16
                             : swizzle == TensorMapSwizzle::k64B ? 32
                                                                 : 64;
    TensorMap a = matrix_map(in, TensorMapType::kBF16, 100, 100, 208, columns, 16);
    TensorMap b = matrix_map(out, TensorMapType::kBF16, 100, 100, 208, columns, 16);
    a.swizzle = b.swizzle = swizzle;
    Launcher launcher;
    launcher.add(in, false, "in");
    launcher.add(out, true, "out");
    Params params;
    add_map(add_map(params, a), b);
    const LaunchResult result = launcher.run(copy_kernel(columns * 32, 88, 90, 8, 94), params);
    CHECK_TEXT(result.error, "");
    CHECK(result.warnings.empty());
    int wrong = 0;
    for (int y = 0; y < 100; ++y) {
      for (int x = 0; x < 104; ++x) {
        const int sx = x - 8 + 88, sy = y - 94 + 90;
        const bool in_box = x >= 8 && x < 8 + static_cast<int>(columns) && x < 100 && y >= 94;
        const int expected = !in_box ? 0xeeee : sx < 100 && sy < 100 ? sy * 104 + sx : 0;
        wrong += out.as<uint16_t>()[y * 104 + x] != expected;
      }
    }
    CHECK_EQ(wrong, 0);
    CHECK_EQ(result.stats.tma_loads, 1u);
    CHECK_EQ(result.stats.tma_load_bytes, std::min(12u, columns) * 2u * 10);
    CHECK_EQ(result.stats.tma_store_bytes, columns * 2u * 6);
  }
}

// Loads rows (%r14 to %r17) of map a from column 90 on, stores them to rows 8, 2, 300 and 5 of map
// b from column 3 on.
std::string row_kernel(uint32_t bytes, const std::string& load = "tile::gather4",
                       const std::string& coordinates = "{%r10, %r14, %r15, %r16, %r17}") {
  return kernel(kTwoMaps,
                kMapAddresses + init_barriers() +
                    "@!%p0 bra DONE;\nmov.b32 %r10, 90;\nmov.b32 %r12, 3;\nmov.b32 %r14, 7;\n"
                    "mov.b32 %r15, -1;\nmov.b32 %r16, 7;\nmov.b32 %r17, 99;\n"
                    "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r4], " +
                    std::to_string(bytes) + ";\ncp.async.bulk.tensor.2d.shared::cta.global." +
                    load + ".mbarrier::complete_tx::bytes [%r3], [%d0, " + coordinates +
                    "], [%r4];\n" + wait(0, 0, "FULL") +
                    "cp.async.bulk.tensor.2d.global.shared::cta.tile::scatter4.bulk_group "
                    "[%d1, {%r12, 8, 2, 300, 5}], [%r3];\n"
                    "cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;\nDONE:\n");
}

TEST(four_rows_are_gathered_and_scattered) {
  for (TensorMapSwizzle swizzle : {TensorMapSwizzle::kNone, TensorMapSwizzle::k32B,
                                   TensorMapSwizzle::k64B, TensorMapSwizzle::k128B}) {
    Buffer in(100 * 208), out(100 * 208, 0xee);
    for (int i = 0; i < 100 * 104; ++i) in.as<uint16_t>()[i] = static_cast<uint16_t>(i);
    const uint32_t columns = swizzle == TensorMapSwizzle::k32B   ? 16
                             : swizzle == TensorMapSwizzle::k64B ? 32
                                                                 : 64;
    TensorMap a = matrix_map(in, TensorMapType::kBF16, 100, 100, 208, columns, 1);
    TensorMap b = matrix_map(out, TensorMapType::kBF16, 100, 100, 208, columns, 1);
    a.swizzle = b.swizzle = swizzle;
    Launcher launcher;
    launcher.add(in, false, "in");
    launcher.add(out, true, "out");
    Params params;
    add_map(add_map(params, a), b);
    const LaunchResult result = launcher.run(row_kernel(columns * 8), params);
    CHECK_TEXT(result.error, "");
    CHECK(result.warnings.empty());
    const std::map<int, int> from = {{8, 7}, {2, -1}, {5, 99}};  // 300 is outside, on either side
    int wrong = 0;
    for (int y = 0; y < 100; ++y) {
      for (int x = 0; x < 104; ++x) {
        const auto row = from.find(y);
        const int sx = x - 3 + 90;
        int expected = 0xeeee;
        if (row != from.end() && x >= 3 && x < 3 + static_cast<int>(columns) && x < 100) {
          expected = row->second >= 0 && sx < 100 ? row->second * 104 + sx : 0;
        }
        wrong += out.as<uint16_t>()[y * 104 + x] != expected;
      }
    }
    CHECK_EQ(wrong, 0);
    CHECK_EQ(result.stats.tma_load_bytes, 10u * 2u * 3);
  }
}

TEST(four_rows_need_a_box_of_one) {
  Buffer in(100 * 208), out(100 * 208);
  const auto run = [&](uint32_t box_rows, const std::string& text) {
    Launcher launcher;
    launcher.add(in, false, "in");
    launcher.add(out, true, "out");
    Params params;
    const TensorMap map = matrix_map(in, TensorMapType::kBF16, 100, 100, 208, 64, box_rows);
    return launcher.run(text, add_map(add_map(params, map), map)).error;
  };
  CHECK_TEXT(run(2, row_kernel(512)), "whose box has one row, this one has 2");
  CHECK_TEXT(run(1, row_kernel(512, "tile::gather4", "{%r10, %r14}")),
             "needs 5 coordinates, got 2");
  CHECK_TEXT(run(1, row_kernel(512, "tile::scatter4")), "load mode .tile::scatter4 is not");
}

TEST(out_of_bounds_fill_can_be_nan) {
  Buffer in(64 * 64), out(64 * 64);
  TensorMap a = matrix_map(in, TensorMapType::kF32, 16, 16, 64, 16, 16);
  a.fill = TensorMapFill::kNan;
  Launcher launcher;
  launcher.add(in, false, "in");
  launcher.add(out, true, "out");
  Params params;
  add_map(add_map(params, a), matrix_map(out, TensorMapType::kF32, 16, 16, 64, 16, 16));
  CHECK_TEXT(launcher.run(copy_kernel(1024, 0, 8, 0, 0), params).error, "");
  CHECK_EQ(out.as<float>()[7 * 16 + 15], 0.0f);
  CHECK(std::isnan(out.as<float>()[8 * 16]));
}

TEST(a_load_of_nothing_but_outside_needs_the_base_of_its_map) {
  for (const bool ahead : {false, true}) {
    for (const int row : {16, 15}) {
      Buffer in(64 * 64), out(64 * 64);
      TensorMap a = matrix_map(in, TensorMapType::kF32, 16, 32, 64, 16, 16);
      if (ahead) a.address -= 16 * 64;  // rows 0 to 15 lie ahead of the memory
      a.dims[1] = ahead ? 32 : 16;
      Launcher launcher;
      launcher.add(in, false, "in");
      launcher.add(out, true, "out");
      Params params;
      add_map(add_map(params, a), matrix_map(out, TensorMapType::kF32, 16, 16, 64, 16, 16));
      const int first = ahead ? row + 16 : row;
      const LaunchResult result = launcher.run(copy_kernel(1024, 0, first, 0, 0), params);
      if (ahead && row == 16) {
        CHECK_TEXT(result.error, "lies outside of the tensor as a whole");
      } else {
        CHECK_TEXT(result.error, "");
      }
    }
  }
}

TEST(reductions_combine_with_global_memory) {
  const struct {
    const char* op;
    TensorMapType type;
    float expected;  // of 6 (in memory) and 5
  } kCases[] = {{"add", TensorMapType::kF32, 11}, {"min", TensorMapType::kS32, 5},
                {"max", TensorMapType::kU32, 6},  {"xor", TensorMapType::kU32, 3},
                {"and", TensorMapType::kS32, 4},  {"or", TensorMapType::kU32, 7},
                {"inc", TensorMapType::kU32, 0},  {"dec", TensorMapType::kU32, 5}};
  for (const auto& c : kCases) {
    Buffer in(1024), out(1024);
    for (int i = 0; i < 256; ++i) {
      const bool real = c.type == TensorMapType::kF32;
      in.as<uint32_t>()[i] = real ? bits_from_float(5) : 5;
      out.as<uint32_t>()[i] = real ? bits_from_float(6) : 6;
    }
    Launcher launcher;
    launcher.add(in, false, "in");
    launcher.add(out, true, "out");
    Params params;
    add_map(add_map(params, matrix_map(in, c.type, 16, 16, 64, 16, 16)),
            matrix_map(out, c.type, 16, 16, 64, 16, 16));
    const std::string op =
        std::string("cp.reduce.async.bulk.tensor.2d.global.shared::cta.") + c.op + ".bulk_group";
    CHECK_TEXT(launcher.run(copy_kernel(1024, 0, 0, 0, 1, op), params).error, "");
    const auto value = [&](int i) {
      const uint32_t bits = out.as<uint32_t>()[i];
      return c.type == TensorMapType::kF32 ? float_from_bits(bits) : static_cast<float>(bits);
    };
    CHECK_EQ(value(15), 6.0f);
    CHECK_EQ(value(16), c.expected);
    CHECK_EQ(value(255), c.expected);
  }
}

TEST(multicast_delivers_to_each_cta_of_the_mask) {
  Buffer in(4096), out(4 * 4096, 0xcc);
  for (int i = 0; i < 1024; ++i) in.as<uint32_t>()[i] = static_cast<uint32_t>(i * 3);
  // Rank 0 loads into CTAs 1 and 3; those wait for their own barriers and write what they got.
  const std::string body =
      kMapAddresses + std::string("ld.param.u64 %d2, [out];\n") + init_barriers() +
      "setp.eq.u32 %p1, %r2, 1;\nsetp.eq.u32 %p2, %r2, 3;\nor.pred %p1, %p1, %p2;\nand.pred %p1, "
      "%p1, %p0;\n"
      "@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r4], 4096;\n" +
      cluster_sync() +
      "setp.eq.u32 %p3, %r2, 0;\nand.pred %p3, %p3, %p0;\nmov.b16 %h0, 10;\nmov.b32 %r10, 0;\n"
      "@%p3 "
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::"
      "cluster "
      "[%r3], [%d0, {%r10, %r10}], [%r4], %h0;\n"
      "@!%p1 bra DONE;\n" +
      wait(0, 0, "FULL") +
      "mul.wide.u32 %d3, %r2, 4096;\nadd.u64 %d2, %d2, %d3;\n"
      "cp.async.bulk.global.shared::cta.bulk_group [%d2], [%r3], 4096;\n"
      "cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;\nDONE:\n" +
      cluster_sync();
  Launcher launcher;
  launcher.grid = launcher.cluster = Dim3{4, 1, 1};
  launcher.add(in, false, "in");
  launcher.add(out, true, "out");
  Params params;
  const TensorMap map = matrix_map(in, TensorMapType::kU32, 32, 32, 128, 32, 32);
  add_map(add_map(params, map), map).u64(out.address());
  const LaunchResult result =
      launcher.run(kernel(std::string(kTwoMaps) + ", .param .u64 out", body), params);
  CHECK_TEXT(result.error, "");
  for (int cta = 0; cta < 4; ++cta) {
    const bool got = cta == 1 || cta == 3;
    CHECK_EQ(out.as<uint32_t>()[cta * 1024 + 7], got ? 21u : 0xccccccccu);
    CHECK_EQ(out.as<uint32_t>()[cta * 1024 + 1023], got ? 3069u : 0xccccccccu);
  }
  CHECK_EQ(result.stats.tma_load_bytes, 4096u);  // global memory is read once
}

TEST(cta_group_2_signals_the_even_cta_of_the_pair) {
  Buffer in(4096), out(2 * 4096);
  for (int i = 0; i < 1024; ++i) in.as<uint32_t>()[i] = static_cast<uint32_t>(i + 1);
  // Both CTAs load; only rank 0 expects and waits, for twice the bytes.
  const std::string body =
      kMapAddresses + std::string("ld.param.u64 %d2, [out];\n") + init_barriers() +
      "setp.eq.u32 %p1, %r2, 0;\nand.pred %p1, %p1, %p0;\n"
      "@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r4], 8192;\n" +
      cluster_sync() +
      "and.b32 %r10, %r4, 0xFEFFFFFF;\nmov.b32 %r11, 0;\n"
      "@%p0 "
      "cp.async.bulk.tensor.2d.cta_group::2.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%r3], [%d0, {%r11, %r11}], [%r10];\n"
      "setp.eq.u32 %p2, %r2, 0;\n@!%p2 bra WAITED;\n" +
      wait(0, 0, "FULL") + "WAITED:\n" + cluster_sync() +
      "mul.wide.u32 %d3, %r2, 4096;\nadd.u64 %d2, %d2, %d3;\n"
      "@!%p0 bra DONE;\ncp.async.bulk.global.shared::cta.bulk_group [%d2], [%r3], 4096;\n"
      "cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;\nDONE:\n" +
      cluster_sync();
  Launcher launcher;
  launcher.grid = launcher.cluster = Dim3{2, 1, 1};
  launcher.add(in, false, "in");
  launcher.add(out, true, "out");
  Params params;
  const TensorMap map = matrix_map(in, TensorMapType::kU32, 32, 32, 128, 32, 32);
  add_map(add_map(params, map), map).u64(out.address());
  CHECK_TEXT(launcher.run(kernel(std::string(kTwoMaps) + ", .param .u64 out", body), params).error,
             "");
  CHECK_EQ(out.as<uint32_t>()[1023], 1024u);
  CHECK_EQ(out.as<uint32_t>()[2047], 1024u);
}

TEST(plain_bulk_copies_and_reductions) {
  Buffer in(1024), out(2048);
  for (int i = 0; i < 256; ++i) in.as<uint32_t>()[i] = static_cast<uint32_t>(i);
  // global -> shared -> the peer's shared -> global; and added to global once more.
  const std::string body =
      "ld.param.u64 %d0, [in];\nld.param.u64 %d1, [out];\n" + init_barriers() +
      "setp.eq.u32 %p1, %r2, 0;\nand.pred %p2, %p1, %p0;\n@!%p2 bra SENT;\n"
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r4], 1024;\n"
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r3], [%d0], 1024, "
      "[%r4];\n" +
      wait(0, 0, "FULL") +
      "mapa.shared::cluster.u32 %r10, %r3, 1;\nmapa.shared::cluster.u32 %r11, %r4, 1;\n"
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r10], [%r3], 1024, "
      "[%r11];\n"
      "SENT:\nnot.pred %p3, %p1;\nand.pred %p3, %p3, %p0;\n@!%p3 bra DONE;\n"
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r4], 1024;\n" +
      wait(0, 0, "PEER") +
      "cp.async.bulk.global.shared::cta.bulk_group [%d1], [%r3], "
      "1024;\ncp.async.bulk.commit_group;\n"
      "cp.async.bulk.wait_group 0;\n"
      "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%d1], [%r3], 1024;\n"
      "cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;\nDONE:\n" +
      cluster_sync();
  Launcher launcher;
  launcher.grid = launcher.cluster = Dim3{2, 1, 1};
  launcher.add(in, false, "in");
  launcher.add(out, true, "out");
  const LaunchResult result = launcher.run(kernel(".param .u64 in, .param .u64 out", body),
                                           Params().u64(in.address()).u64(out.address()));
  CHECK_TEXT(result.error, "");
  CHECK_EQ(out.as<uint32_t>()[255], 510u);
  CHECK_EQ(out.as<uint32_t>()[256], 0u);
}

TEST(tensor_maps_can_be_built_and_changed_by_the_kernel) {
  Buffer in(4096), out(4096), map(128);
  for (int i = 0; i < 1024; ++i) in.as<uint32_t>()[i] = static_cast<uint32_t>(i);
  const auto replace = [](const std::string& field, const std::string& type,
                          const std::string& values) {
    return "tensormap.replace.tile." + field + ".shared::cta.b1024." + type + " [%r3], " + values +
           ";\n";
  };
  std::string body =
      "ld.param.u64 %d0, [in];\nld.param.u64 %d1, [out];\nld.param.u64 %d2, [map];\n" +
      init_barriers() +
      "mov.b32 %r20, 0;\nshl.b32 %r21, %r0, 2;\nadd.u32 %r21, %r21, %r3;\n"
      "setp.lt.u32 %p2, %r0, 32;\n@%p2 st.shared.b32 [%r21], %r20;\nbar.sync 0;\n@!%p0 bra "
      "BUILT;\n";
  body += replace("global_address", "b64", "%d0") + replace("rank", "b32", "1") +
          replace("box_dim", "b32", "0, 32") + replace("box_dim", "b32", "1, 8") +
          replace("global_dim", "b32", "0, 32") + replace("global_dim", "b32", "1, 32") +
          replace("global_stride", "b64", "0, 128") + replace("element_stride", "b32", "0, 1") +
          replace("element_stride", "b32", "1, 1") + replace("elemtype", "b32", "2") +
          replace("interleave_layout", "b32", "0") + replace("swizzle_mode", "b32", "3") +
          replace("fill_mode", "b32", "0") +
          "BUILT:\nbar.sync 0;\n"
          "setp.lt.u32 %p2, %r0, 32;\n@!%p2 bra COPIED;\n"
          "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned "
          "[%d2], [%r3], 128;\n"
          "COPIED:\nbar.sync 0;\nfence.proxy.async.shared::cta;\nbar.sync 0;\n@!%p0 bra DONE;\n"
          "fence.proxy.tensormap::generic.acquire.gpu [%d2], 128;\nprefetch.tensormap [%d2];\n"
          "add.u32 %r22, %r3, 1024;\nmov.b32 %r23, 0;\nmov.b32 %r24, 4;\n"
          "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r4], 1024;\n"
          "cp.async.bulk.prefetch.tensor.2d.L2.global [%d2, {%r23, %r24}];\n"
          "cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes [%r22], "
          "[%d2, {%r23, %r24}], [%r4];\n" +
          wait(0, 0, "FULL") +
          "cp.async.bulk.global.shared::cta.bulk_group [%d1], [%r22], "
          "1024;\ncp.async.bulk.commit_group;\n"
          "cp.async.bulk.wait_group 0;\nDONE:\n";
  Launcher launcher;
  launcher.add(in, false, "in");
  launcher.add(out, true, "out");
  launcher.add(map, true, "map");
  const LaunchResult result =
      launcher.run(kernel(".param .u64 in, .param .u64 out, .param .u64 map", body),
                   Params().u64(in.address()).u64(out.address()).u64(map.address()));
  CHECK_TEXT(result.error, "");
  // Row 5 of the box (row 9 of the tensor): 16-byte chunk 0 lies at chunk 5.
  CHECK_EQ(out.as<uint32_t>()[5 * 32 + 5 * 4], 9u * 32);
}

// Lanes that name the same copy ask for it once: a reduction adds once, loads and stores count
// once.
TEST(a_warp_issues_a_copy_once) {
  Buffer in(32 * 32 * 4), out(32 * 32 * 4);
  for (int i = 0; i < 32 * 32; ++i) {
    in.as<uint32_t>()[i] = static_cast<uint32_t>(i);
    out.as<uint32_t>()[i] = 1000;
  }
  std::string text = copy_kernel(
      32 * 8 * 4, 0, 0, 0, 0, "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.bulk_group");
  const std::string one = "@!%p0 bra DONE;\n", arrive = "mbarrier.arrive.expect_tx";
  text.replace(text.find(one), one.size(), "setp.gt.u32 %p6, %r0, 31;\n@%p6 bra DONE;\n");
  text.insert(text.find(arrive), "@%p0 ");
  Launcher launcher;
  launcher.add(in, false, "in");
  launcher.add(out, true, "out");
  Params params;
  add_map(params, matrix_map(in, TensorMapType::kU32, 32, 32, 128, 32, 8));
  add_map(params, matrix_map(out, TensorMapType::kU32, 32, 32, 128, 32, 8));
  const LaunchResult result = launcher.run(text, params);
  CHECK_TEXT(result.error, "");
  for (uint32_t i = 0; i < 32 * 32; ++i) {
    CHECK_EQ(out.as<uint32_t>()[i], i < 32 * 8 ? 1000 + i : 1000);
  }
  CHECK_EQ(result.stats.tma_loads, uint64_t{1});
  CHECK_EQ(result.stats.tma_store_bytes, uint64_t{32 * 8 * 4});
}

int main(int argc, char** argv) { return run_all(argc, argv); }
