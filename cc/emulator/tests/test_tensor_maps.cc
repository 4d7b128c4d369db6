// Tensor maps and TMA boxes: encoding, every refusal, box geometry.
#include <cstring>
#include <map>

#include "emulator/tensor/tensor_map.h"
#include "emulator/tensor/tma_box.h"
#include "emulator/tests/tensor_check.h"

using namespace bwgemm::emulator;

TensorMap bf16_map() {
  TensorMap map;
  map.type = TensorMapType::kBF16;
  map.rank = 3;
  map.address = 0x10000;
  map.dims = {100, 50, 3, 0, 0};
  map.strides = {2, 208, 10400, 0, 0};
  map.box = {64, 8, 1, 0, 0};
  map.element_strides = {1, 1, 1, 0, 0};
  map.swizzle = TensorMapSwizzle::k128B;
  map.l2 = TensorMapL2::k128B;
  return map;
}

TEST(encoding_keeps_every_field) {
  TensorMap map = bf16_map();
  map.dims = {uint64_t{1} << 32, 50, 3, 1, 1};
  map.box = {64, 256, 1, 1, 1};
  map.element_strides = {1, 8, 1, 1, 1};
  map.fill = TensorMapFill::kNan;
  map.strides[2] = (uint64_t{1} << 40) - 16;
  uint8_t bytes[kTensorMapBytes];
  encode(map, bytes);
  TensorMap back;
  CHECK(decode(bytes, &back));
  CHECK(back.type == map.type && back.rank == map.rank && back.address == map.address);
  CHECK(back.dims == map.dims && back.strides == map.strides && back.box == map.box);
  CHECK(back.element_strides == map.element_strides && back.swizzle == map.swizzle);
  CHECK(back.l2 == map.l2 && back.fill == map.fill && back.interleave == map.interleave);
  std::memset(bytes, 0xcd, sizeof(bytes));
  CHECK(!decode(bytes, &back));
}

// CuTe of CUTLASS 4.7 clears it where a tensor is small and the driver older than 13.1.
TEST(encoding_survives_an_edit_of_bit_21) {
  TensorMap map = bf16_map();
  map.address = ~uint64_t{0} & ~uint64_t{15};
  uint8_t bytes[kTensorMapBytes];
  for (const bool set : {false, true}) {
    encode(map, bytes);
    uint64_t word;
    std::memcpy(&word, bytes + 8, sizeof word);
    word = set ? word | (uint64_t{1} << 21) : word & ~(uint64_t{1} << 21);
    std::memcpy(bytes + 8, &word, sizeof word);
    TensorMap back;
    CHECK(decode(bytes, &back));
    CHECK(back.type == map.type && back.rank == map.rank && back.address == map.address);
    CHECK(back.swizzle == map.swizzle && back.l2 == map.l2 && back.strides == map.strides);
  }
}

TEST(validation_refuses_what_the_driver_refuses) {
  CHECK_TEXT(validate(bf16_map()), "");
  const auto refused = [](auto change, const char* why) {
    TensorMap map = bf16_map();
    change(map);
    CHECK_TEXT(validate(map), why);
  };
  refused([](auto& m) { m.type = static_cast<TensorMapType>(16); }, "tensorDataType");
  refused([](auto& m) { m.rank = 0; }, "tensorRank must be 1 to 5, got 0");
  refused([](auto& m) { m.rank = 6; }, "tensorRank must be 1 to 5, got 6");
  refused([](auto& m) { m.interleave = static_cast<TensorMapInterleave>(3); }, "interleave is not");
  refused([](auto& m) { m.interleave = TensorMapInterleave::k16B; }, "interleaved layouts are not");
  refused([](auto& m) { m.swizzle = static_cast<TensorMapSwizzle>(7); }, "swizzle is not");
  refused([](auto& m) { m.swizzle = TensorMapSwizzle::k128BAtom32BFlip8B; }, "FLIP_8B");
  refused([](auto& m) { m.l2 = static_cast<TensorMapL2>(4); }, "l2Promotion");
  refused([](auto& m) { m.fill = static_cast<TensorMapFill>(2); }, "oobFill is not");
  refused(
      [](auto& m) { m.type = TensorMapType::k16U4Align16B, m.strides[1] = 224; },
      "16u4_align16b needs a globalDim[0] that is a multiple of 128 and a boxDim[0] of 128, got "
      "100 and 64");
  refused([](auto& m) { m.type = TensorMapType::k16U6Align16B, m.address = 16; },
          "globalAddress must be a multiple of 32, got 16");
  refused([](auto& m) { m.type = TensorMapType::k16U6Align16B, m.strides[1] = 208; },
          "globalStrides[0] must be a multiple of 32 below 2^40, got 208");
  refused(
      [](auto& m) {
        m.type = TensorMapType::k16U6Align16B;
        m.strides[1] = 224;
        m.dims[0] = m.box[0] = 128;
        m.swizzle = TensorMapSwizzle::k64B;
      },
      "16u6_align16b does not have this swizzle");
  refused([](auto& m) { m.address = 8; }, "globalAddress must be a multiple of 16, got 8");
  refused([](auto& m) { m.dims[1] = 0; }, "globalDim[1] must be 1 to 2^32, got 0");
  refused([](auto& m) { m.dims[0] = (uint64_t{1} << 32) + 1; }, "globalDim[0]");
  refused([](auto& m) { m.box[1] = 257; }, "boxDim[1] must be 1 to 256, got 257");
  refused([](auto& m) { m.box[2] = 0; }, "boxDim[2] must be 1 to 256, got 0");
  refused([](auto& m) { m.element_strides[1] = 9; }, "elementStrides[1] must be 1 to 8, got 9");
  refused([](auto& m) { m.strides[1] = 200; }, "globalStrides[0] must be a multiple of 16");
  refused([](auto& m) { m.strides[2] = uint64_t{1} << 40; }, "globalStrides[1]");
  refused([](auto& m) { m.box[0] = 4; }, "multiple of 16 bytes, got 64 bits");
  refused([](auto& m) { m.box[0] = 72; }, "covers 144 bytes, more than the 128");
  refused([](auto& m) { m.swizzle = TensorMapSwizzle::k32B; }, "more than the 32");
  refused(
      [](auto& m) {
        m.type = TensorMapType::kU16;
        m.fill = TensorMapFill::kNan;
      },
      "oobFill NaN");
  refused(
      [](auto& m) {
        m.type = TensorMapType::k16U4Align8B;
        m.dims[0] = 101;
      },
      "globalDim[0] must be even");
}

// Shared address -> global address of every byte, -1 for filled ones.
std::map<uint32_t, int64_t> bytes_of(const Box& box) {
  std::map<uint32_t, int64_t> bytes;
  for (const BoxSpan& span : box.spans) {
    for (uint32_t i = 0; i < span.bytes; ++i) {
      CHECK(bytes.count(span.shared + i) == 0);
      bytes[span.shared + i] = span.inside ? static_cast<int64_t>(span.global + i) : -1;
    }
  }
  return bytes;
}

TEST(box_maps_each_byte) {
  for (TensorMapSwizzle swizzle : {TensorMapSwizzle::kNone, TensorMapSwizzle::k128B}) {
    TensorMap map = bf16_map();
    map.swizzle = swizzle;
    for (const std::array<int32_t, 5> start : {std::array<int32_t, 5>{0, 0, 0, 0, 0},
                                               {64, 45, 2, 0, 0},
                                               {-3, -2, 1, 0, 0},
                                               {0, 0, 3, 0, 0},
                                               {100, 0, 0, 0, 0}}) {
      const Box box = make_box(map, start, 4096);
      CHECK_EQ(box.bytes, 64u * 2 * 8);
      const auto bytes = bytes_of(box);
      CHECK_EQ(bytes.size(), 64u * 2 * 8);
      uint32_t inside = 0;
      for (int row = 0; row < 8; ++row) {
        for (int i = 0; i < 64; ++i) {
          const int64_t x = start[0] + i, y = start[1] + row, z = start[2];
          const bool in = x >= 0 && x < 100 && y >= 0 && y < 50 && z >= 0 && z < 3;
          inside += in ? 2 : 0;
          const uint32_t at = swizzle_address(swizzle_of(map), 4096 + row * 128 + i * 2);
          CHECK_EQ(bytes.at(at), in ? 0x10000 + z * 10400 + y * 208 + x * 2 : -1);
        }
      }
      CHECK_EQ(box.bytes_inside, inside);
    }
  }
}

TEST(narrow_rows_keep_the_swizzle_pitch_and_strides_skip) {
  TensorMap map = bf16_map();
  map.box = {32, 8, 1, 0, 0};
  CHECK_EQ(box_footprint(map), 8u * 128);
  map.swizzle = TensorMapSwizzle::kNone;
  CHECK_EQ(box_footprint(map), 8u * 64);
  map.element_strides[1] = 3;  // rows 0, 3, 6
  CHECK_EQ(box_footprint(map), 3u * 64);
  const auto bytes = bytes_of(make_box(map, {0, 10, 0, 0, 0}, 0));
  CHECK_EQ(bytes.size(), 3u * 64);
  CHECK_EQ(bytes.at(64), 0x10000 + 13 * 208);
}

TEST(one_dimensional_box) {
  TensorMap map;
  map.type = TensorMapType::kF32;
  map.rank = 1;
  map.address = 256;
  map.dims[0] = 10;
  map.strides[0] = 4;
  map.box[0] = 8;
  map.element_strides[0] = 1;
  CHECK_TEXT(validate(map), "");
  const Box box = make_box(map, {4, 0, 0, 0, 0}, 128);
  CHECK_EQ(box.bytes, 32u);
  CHECK_EQ(box.bytes_inside, 24u);
}

int main(int argc, char** argv) { return bwgemm::emulator::testing::run_all(argc, argv); }
