#include "emulator/runtime/gemm_emulated.h"

#include <cstring>
#include <exception>
#include <string>

#include "dense/gemm_ffi.h"
#include "emulator/runtime/devices.h"
#include "emulator/runtime/host_call.h"
#include "emulator/runtime/ranges.h"
#include "emulator/runtime/session.h"

namespace bwgemm {
namespace {

namespace emu = ::bwgemm::emulator;

emu::Device DeviceFor(const GemmAttrs& attrs, const emu::Settings& settings) {
  const KernelEntry* entry =
      FindKernel(attrs.kernel);  // an unknown name is ExecuteGemm's to report
  const bool sm90 = entry && entry->info.arch == Arch::kSm90;
  return {sm90 ? 9 : 10, 0, settings.launch.sm_count};
}

emu::Buffer ToBuffer(const void* data, size_t bytes, bool writable, const char* name) {
  return {data, bytes, writable, name};
}

ffi::Error Execute(ffi::AnyBuffer a, ffi::AnyBuffer b, ffi::Result<ffi::AnyBuffer> d,
                   ffi::Result<ffi::Buffer<ffi::U8>> workspace, GemmAttrs attrs) {
  try {
    const emu::Settings settings = emu::Session::Get().settings();
    const int device = emu::DeviceOrdinal(DeviceFor(attrs, settings));
    if (settings.poison_outputs) {
      // A tile that is never written is then NaN, not whatever the allocator left there.
      std::memset(d->untyped_data(), 0xFF, d->size_bytes());
      std::memset(workspace->untyped_data(), 0xFF, workspace->size_bytes());
    }
    emu::GlobalMemory memory;
    emu::RegisterBuffers(
        memory, {ToBuffer(a.untyped_data(), a.size_bytes(), false, "a"),
                 ToBuffer(b.untyped_data(), b.size_bytes(), false, "b"),
                 ToBuffer(d->untyped_data(), d->size_bytes(), true, "d"),
                 ToBuffer(workspace->untyped_data(), workspace->size_bytes(), true, "workspace")});
    emu::HostCall call(memory, settings, device);
    return ExecuteGemm(/*stream=*/nullptr, device, a, b, d, workspace, attrs);
  } catch (const std::exception& e) {
    return ffi::Error(ffi::ErrorCode::kInternal, std::string("emulator: ") + e.what());
  }
}

}  // namespace
}  // namespace bwgemm

XLA_FFI_DEFINE_HANDLER_SYMBOL(BwGemmEmulatedExecute, bwgemm::Execute,
                              xla::ffi::Ffi::Bind()
                                  .Arg<xla::ffi::AnyBuffer>()             // a
                                  .Arg<xla::ffi::AnyBuffer>()             // b
                                  .Ret<xla::ffi::AnyBuffer>()             // d
                                  .Ret<xla::ffi::Buffer<xla::ffi::U8>>()  // workspace
                                  .Attr<bwgemm::GemmAttrs>("config"));
