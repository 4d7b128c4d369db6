#include "emulator/runtime/quantize_emulated.h"

#include <cstring>
#include <string>
#include <vector>

#include "call/quantize_ffi.h"
#include "emulator/runtime/devices.h"
#include "emulator/runtime/host_call.h"
#include "emulator/runtime/ranges.h"
#include "emulator/runtime/session.h"

namespace bwgemm::call {
namespace {

namespace emu = ::bwgemm::emulator;

Status RunEmulated(const QuantizeCall& call) {
  const emu::Settings settings = emu::Session::Get().settings();
  const int device = emu::DeviceOrdinal({9, 0, settings.launch.sm_count});
  std::vector<emu::Buffer> buffers;
  for (int i = 0; i < kQuantizeRoles; ++i) {
    const Buffer& buffer = call.buffers[i];
    if (!buffer.present()) continue;
    const bool result = call.is_result[i];
    if (result && settings.poison_outputs) std::memset(buffer.data, 0xFF, buffer.bytes);
    buffers.push_back(
        {buffer.data, buffer.bytes, result, std::string(Name(static_cast<QuantizeRole>(i)))});
  }
  emu::GlobalMemory memory;
  emu::RegisterBuffers(memory, std::move(buffers));
  emu::HostCall host_call(memory, settings, device);
  return RunQuantize(call, device, /*stream=*/nullptr);
}

ffi::Error Execute(ffi::RemainingArgs operands, ffi::RemainingRets results,
                   ffi::Dictionary config) {
  return RunHandler("emulator", [&] {
    QuantizeCall call;
    const Status status = DecodeQuantize(operands, results, config, &call);
    return status.ok() ? RunEmulated(call) : status;
  });
}

}  // namespace
}  // namespace bwgemm::call

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    BwQuantizeEmulatedExecute, bwgemm::call::Execute,
    xla::ffi::Ffi::Bind().RemainingArgs().RemainingRets().Attr<xla::ffi::Dictionary>("config"));
