// Where along the innermost dimension a tiled tensor copy may begin.
#include "emulator/tests/tma_kernel.h"

using namespace bwgemm::emulator;
using namespace bwgemm::emulator::testing;

namespace {

constexpr int kRows = 4, kPitch = 256, kBoxBytes = 128;  // of the tensors, of a row of the box

struct Matrices {
  Buffer in{kRows * kPitch}, out{kRows * kPitch, 0xee};
  Matrices() {
    for (int i = 0; i < kRows * kPitch; ++i) in.data()[i] = static_cast<uint8_t>(i % 251 + 1);
  }
  LaunchResult run(const std::string& text, TensorMapType type, TensorMapSwizzle swizzle,
                   Severity severity) {
    const auto bytes = static_cast<uint32_t>(element_bits(type) / 8);
    Params params;
    for (Buffer* buffer : {&in, &out}) {
      TensorMap map =
          matrix_map(*buffer, type, kPitch / bytes, kRows, kPitch, kBoxBytes / bytes, kRows);
      map.swizzle = swizzle;
      add_map(params, map);
    }
    Launcher launcher;
    launcher.config.rules.set(Rule::kTmaCoordinate, severity);
    launcher.add(in, false, "in");
    launcher.add(out, true, "out");
    return launcher.run(text, params);
  }
};

struct Copy {
  const char* instruction;  // that has the coordinate
  std::string (*kernel)(int coordinate, const char* target);
};

constexpr const char* kStore = "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group";
constexpr const char* kReduce = "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.bulk_group";

const Copy kCopies[] = {
    {"cp.async.bulk.tensor.2d.shared::cluster.global",
     [](int x, const char* target) {
       return copy_kernel(kRows * kBoxBytes, x, 0, 0, 0, kStore, target);
     }},
    {kStore,
     [](int x, const char* target) {
       return copy_kernel(kRows * kBoxBytes, 0, 0, x, 0, kStore, target);
     }},
    {kReduce,
     [](int x, const char* target) {
       return copy_kernel(kRows * kBoxBytes, 0, 0, x, 0, kReduce, target);
     }},
    {"cp.async.bulk.prefetch.tensor.2d",
     [](int x, const char* target) {
       return kernel(kTwoMaps,
                     kMapAddresses + ("mov.b32 %r10, " + std::to_string(x)) +
                         ";\n@%p0 cp.async.bulk.prefetch.tensor.2d.L2.global [%d0, {%r10, 0}];\n",
                     65536, target);
     }},
};

struct Place {
  TensorMapType type;
  int coordinate;
  bool right;
  const char* message;  // where it is not
};
// As seen on an H200.
const Place kPlaces[] = {
    {TensorMapType::kF32, 4, true, ""},
    {TensorMapType::kF32, -4, true, ""},
    {TensorMapType::kF32, -3, false, "innermost coordinate -3, of elements of 32 bits (f32), must"},
    {TensorMapType::kF32, -1, false, "innermost coordinate -1, of elements of 32 bits (f32), must"},
    {TensorMapType::kU8, 16, true, ""},
    {TensorMapType::kU8, 8, false, "innermost coordinate 8, of elements of 8 bits (u8), must"},
    {TensorMapType::kU8, 1, false, "innermost coordinate 1, of elements of 8 bits (u8), must"},
    {TensorMapType::kBF16, 8, true, ""},
    {TensorMapType::kBF16, 4, false, "innermost coordinate 4, of elements of 16 bits (bf16), must"},
    {TensorMapType::kBF16, 1, false, "innermost coordinate 1, of elements of 16 bits (bf16), must"},
};

void for_each(void (*check)(const Copy&, const Place&, TensorMapSwizzle)) {
  for (const Copy& copy : kCopies) {
    for (const Place& place : kPlaces) {
      if (copy.instruction == kReduce && place.type == TensorMapType::kU8) continue;
      for (TensorMapSwizzle swizzle : {TensorMapSwizzle::kNone, TensorMapSwizzle::k128B})
        check(copy, place, swizzle);
    }
  }
}

}  // namespace

// An error, also where the rule is off: hardware cannot do it.
TEST(sm_90_refuses_copies_between_multiples_of_16_bytes) {
  for_each([](const Copy& copy, const Place& place, TensorMapSwizzle swizzle) {
    for (const char* target : {"sm_90", "sm_90a"}) {
      const LaunchResult result = Matrices().run(copy.kernel(place.coordinate, target), place.type,
                                                 swizzle, Severity::kOff);
      CHECK_TEXT(result.error, place.message);
      CHECK_EQ(result.rule, "");
      if (place.right) continue;
      CHECK(result.kind == ErrorKind::kFault);
      CHECK_TEXT(result.error, "at a multiple of 16 bytes: hardware of sm_90 raises an illegal");
      CHECK_TEXT(result.error, copy.instruction);
    }
  });
}

TEST(other_targets_warn_of_them) {
  for_each([](const Copy& copy, const Place& place, TensorMapSwizzle swizzle) {
    const std::string text = copy.kernel(place.coordinate, "sm_100a");
    const LaunchResult warned =
        Matrices().run(text, place.type, swizzle, info(Rule::kTmaCoordinate).severity);
    CHECK_TEXT(warned.error, "");
    CHECK_EQ(warned.warnings.size(), place.right ? size_t{0} : size_t{1});
    for (const Warning& warning : warned.warnings) {
      CHECK(warning.rule == Rule::kTmaCoordinate);
      CHECK_TEXT(warning.text, place.message);
      CHECK_TEXT(warning.text, "other hardware has not been tried");
      CHECK_TEXT(warning.text, copy.instruction);
    }
    const LaunchResult off = Matrices().run(text, place.type, swizzle, Severity::kOff);
    CHECK_TEXT(off.error, "");
    CHECK(off.warnings.empty());
    const LaunchResult error = Matrices().run(text, place.type, swizzle, Severity::kError);
    CHECK_TEXT(error.error, place.message);
    CHECK_EQ(error.rule, place.right ? "" : "tma-coordinate");
  });
}

TEST(a_box_may_begin_ahead_of_the_tensor) {
  for (const bool store : {false, true}) {
    for (TensorMapSwizzle swizzle : {TensorMapSwizzle::kNone, TensorMapSwizzle::k128B}) {
      Matrices matrices;
      const int from = store ? 0 : -4, to = store ? -4 : 0;
      const LaunchResult result =
          matrices.run(copy_kernel(kRows * kBoxBytes, from, 0, to, 0, kStore, "sm_90a"),
                       TensorMapType::kF32, swizzle, Severity::kError);
      CHECK_TEXT(result.error, "");
      int wrong = 0;
      for (int row = 0; row < kRows; ++row) {
        for (int x = 0; x < kPitch; ++x) {
          const int at = row * kPitch + x;
          int expected = 0xee;
          if (store) {
            if (x < kBoxBytes - 16) expected = matrices.in.data()[at + 16];
          } else if (x < kBoxBytes) {
            expected = x < 16 ? 0 : matrices.in.data()[at - 16];
          }
          wrong += matrices.out.data()[at] != expected;
        }
      }
      CHECK_EQ(wrong, 0);
    }
  }
}

int main(int argc, char** argv) { return run_all(argc, argv); }
