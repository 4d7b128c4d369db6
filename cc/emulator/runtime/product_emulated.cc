#include "emulator/runtime/product_emulated.h"

#include <cstring>
#include <string>
#include <vector>

#include "call/product_ffi.h"
#include "emulator/runtime/devices.h"
#include "emulator/runtime/host_call.h"
#include "emulator/runtime/ranges.h"
#include "emulator/runtime/session.h"

namespace bwgemm::call {
namespace {

namespace emu = ::bwgemm::emulator;

// The ordinal of an emulated GPU that the kernel runs on.
int DeviceOf(std::string_view kernel, const emu::Settings& settings) {
  const Kernel* found = FindKernel(kernel);  // an unknown name is Run's to report
  const bool sm90 = found && found->info.arch == Arch::kSm90;
  return emu::DeviceOrdinal({sm90 ? 9 : 10, 0, settings.launch.sm_count});
}

// All bits set, of a window its elements alone.
void Poison(const Buffer& buffer) {
  if (!buffer.is_window()) {
    std::memset(buffer.data, 0xFF, buffer.bytes);
    return;
  }
  const size_t pitch = buffer.pitch * SizeOf(buffer.dtype);
  const size_t row = buffer.last() * SizeOf(buffer.dtype);
  for (size_t at = 0; at < buffer.bytes; at += pitch) {
    std::memset(static_cast<char*>(buffer.data) + at, 0xFF, row);
  }
}

Status RunEmulated(const ProductCall& call) {
  const emu::Settings settings = emu::Session::Get().settings();
  const int device = DeviceOf(call.kernel, settings);
  std::vector<emu::Buffer> buffers;
  for (int i = 0; i < kRoles; ++i) {
    const Role role = static_cast<Role>(i);
    const Buffer& buffer = call.buffers[role];
    if (!buffer.present()) continue;
    const bool result = IsResult(role);
    // A tile that is never written is then NaN, not whatever the allocator left there.
    if (result && settings.poison_outputs) Poison(buffer);
    buffers.push_back({buffer.data, buffer.bytes, result, std::string(Name(role))});
  }
  emu::GlobalMemory memory;
  emu::RegisterBuffers(memory, std::move(buffers));
  emu::HostCall host_call(memory, settings, device);
  return Run(call, device, /*stream=*/nullptr);
}

template <const Roles& kFixed>
ffi::Error Execute(ffi::RemainingArgs operands, ffi::RemainingRets results,
                   ffi::Dictionary config) {
  return RunHandler("emulator", [&] {
    ProductCall call;
    const Status status = DecodeCall(kFixed, operands, results, config, &call);
    return status.ok() ? RunEmulated(call) : status;
  });
}

}  // namespace
}  // namespace bwgemm::call

#define BWGEMM_DEFINE_HANDLER(name, target) \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(            \
      name, bwgemm::call::Execute<target>,  \
      xla::ffi::Ffi::Bind().RemainingArgs().RemainingRets().Attr<xla::ffi::Dictionary>("config"))
BWGEMM_DEFINE_HANDLER(BwProductEmulatedExecute, bwgemm::call::kProductV2);
BWGEMM_DEFINE_HANDLER(BwGemmV1EmulatedExecute, bwgemm::call::kGemmV1);
BWGEMM_DEFINE_HANDLER(BwGroupedV1EmulatedExecute, bwgemm::call::kGroupedV1);
