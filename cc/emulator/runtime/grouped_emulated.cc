#include "emulator/runtime/grouped_emulated.h"

#include <cstring>
#include <exception>
#include <string>

#include "dense/gemm_ffi.h"
#include "emulator/runtime/devices.h"
#include "emulator/runtime/host_call.h"
#include "emulator/runtime/ranges.h"
#include "emulator/runtime/session.h"
#include "grouped/grouped_ffi.h"

namespace bwgemm::grouped {
namespace {

namespace emu = ::bwgemm::emulator;

ffi::Error Execute(ffi::AnyBuffer lhs, ffi::AnyBuffer rhs, ffi::AnyBuffer sizes,
                   ffi::AnyBuffer offset, ffi::Result<ffi::AnyBuffer> d,
                   ffi::Result<ffi::Buffer<ffi::U8>> workspace, GroupedAttrs attrs) {
  try {
    const emu::Settings settings = emu::Session::Get().settings();
    const KernelEntry* entry =
        FindKernel(attrs.kernel);  // an unknown name is ExecuteGrouped's to report
    const bool sm90 = entry && entry->info.arch == Arch::kSm90;
    const int device = emu::DeviceOrdinal({sm90 ? 9 : 10, 0, settings.launch.sm_count});
    if (settings.poison_outputs) {
      // A tile that is never written is then NaN, not whatever the allocator left there.
      std::memset(d->untyped_data(), 0xFF, d->size_bytes());
      std::memset(workspace->untyped_data(), 0xFF, workspace->size_bytes());
    }
    const auto buffer = [](const auto& b, bool writable, const char* name) {
      return emu::Buffer{b.untyped_data(), b.size_bytes(), writable, name};
    };
    emu::GlobalMemory memory;
    emu::RegisterBuffers(
        memory, {buffer(lhs, false, "lhs"), buffer(rhs, false, "rhs"),
                 buffer(sizes, false, "group_sizes"), buffer(offset, false, "group_offset"),
                 buffer(*d, true, "d"), buffer(*workspace, true, "workspace")});
    emu::HostCall call(memory, settings, device);
    return ExecuteGrouped(/*stream=*/nullptr, device, lhs, rhs, sizes, offset, d, workspace, attrs);
  } catch (const std::exception& e) {
    return ffi::Error(ffi::ErrorCode::kInternal, std::string("emulator: ") + e.what());
  }
}

}  // namespace
}  // namespace bwgemm::grouped

XLA_FFI_DEFINE_HANDLER_SYMBOL(BwGroupedEmulatedExecute, bwgemm::grouped::Execute,
                              xla::ffi::Ffi::Bind()
                                  .Arg<xla::ffi::AnyBuffer>()             // lhs
                                  .Arg<xla::ffi::AnyBuffer>()             // rhs
                                  .Arg<xla::ffi::AnyBuffer>()             // group_sizes
                                  .Arg<xla::ffi::AnyBuffer>()             // group_offset
                                  .Ret<xla::ffi::AnyBuffer>()             // d
                                  .Ret<xla::ffi::Buffer<xla::ffi::U8>>()  // workspace
                                  .Attr<bwgemm::grouped::GroupedAttrs>("config"));
