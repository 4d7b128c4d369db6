// What calls are told of devices that they cannot run on.
#include "core/device.h"
#include "emulator/tests/tensor_check.h"

namespace bwgemm {
namespace {

TEST(kernels_run_on_their_architecture) {
  const DeviceProperties a100{108, 8, 0}, h100{132, 9, 0}, b200{148, 10, 0}, b300{148, 10, 3};
  CHECK(CheckArch("k", Arch::kSm90, 0, h100).ok());
  CHECK(CheckArch("k", Arch::kSm100, 0, b200).ok());
  CHECK(CheckArch("k", Arch::kSm100, 0, b300).ok());
  CHECK_TEXT(CheckArch("k", Arch::kSm90, 3, a100).message,
             "kernel 'k' needs compute capability 9.0, device 3 has 8.0");
  CHECK_TEXT(CheckArch("k", Arch::kSm100, 0, h100).message,
             "kernel 'k' needs compute capability 10.x, device 0 has 9.0");
}

TEST(devices_have_few_ordinals) {
  DeviceProperties found;
  CHECK(QueryDevice(0, &found).ok());
  for (int device : {-1, kMaxDevices}) {
    CHECK_TEXT(QueryDevice(device, &found).message,
               "device ordinal " + std::to_string(device) + " is outside [0, 64)");
  }
}

}  // namespace
}  // namespace bwgemm

int main(int argc, char** argv) { return bwgemm::emulator::testing::run_all(argc, argv); }
