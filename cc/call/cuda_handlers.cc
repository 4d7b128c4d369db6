#include "call/cuda_handlers.h"

#include "call/product_ffi.h"
#include "call/quantize_ffi.h"
#include "core/active_devices.h"
#include "core/capture_scope.h"

namespace bwgemm::call {
namespace {

// Loads kernels before anything runs: on a GPU that computes, CUDA may wait for the GPU first, and
// a collective there waits for other GPUs. Execute loads what is missing and reports what fails, so
// that a program can be made for GPUs that are not here. load(device) returns a Status.
template <class Load>
void LoadAhead(Load load) {
  for (const int device : ActiveDevices()) (void)load(device);
  (void)cudaGetLastError();
}

constexpr const char* kWho = "jax_bwgemm";

template <const Roles& kFixed>
ffi::Error Instantiate(ffi::Dictionary config) {
  return RunHandler(kWho, [&] {
    ProductCall call;
    Roles roles;
    const Status status = DecodeConfig(kFixed, config, &call, &roles);
    if (status.ok()) LoadAhead([&](int device) { return Prepare(call, device); });
    return status;
  });
}

// Nothing is allocated or waited for on the stream, and group sizes are read on the device alone:
// XLA may capture it into a CUDA graph.
template <const Roles& kFixed>
ffi::Error Execute(cudaStream_t stream, int32_t device, ffi::RemainingArgs operands,
                   ffi::RemainingRets results, ffi::Dictionary config) {
  return RunHandler(kWho, [&] {
    const CaptureScope scope;  // of a kernel that is loaded late
    ProductCall call;
    const Status status = DecodeCall(kFixed, operands, results, config, &call);
    return status.ok() ? Run(call, device, stream) : status;
  });
}

ffi::Error InstantiateQuantize(ffi::Dictionary config) {
  return RunHandler(kWho, [&] {
    QuantizeCall call;
    Roles roles;
    const Status status = DecodeConfig(config, &call, &roles);
    if (status.ok()) LoadAhead([&](int device) { return PrepareQuantize(call, device); });
    return status;
  });
}

ffi::Error ExecuteQuantize(cudaStream_t stream, int32_t device, ffi::RemainingArgs operands,
                           ffi::RemainingRets results, ffi::Dictionary config) {
  return RunHandler(kWho, [&] {
    const CaptureScope scope;
    QuantizeCall call;
    const Status status = DecodeQuantize(operands, results, config, &call);
    return status.ok() ? RunQuantize(call, device, stream) : status;
  });
}

}  // namespace
}  // namespace bwgemm::call

#define BWGEMM_DEFINE_HANDLERS(prefix, instantiate, execute)                                    \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(                                                                \
      prefix##Instantiate, bwgemm::call::instantiate,                                           \
      xla::ffi::Ffi::Bind<xla::ffi::ExecutionStage::kInstantiate>().Attr<xla::ffi::Dictionary>( \
          "config"));                                                                           \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(prefix##Execute, bwgemm::call::execute,                         \
                                xla::ffi::Ffi::Bind()                                           \
                                    .Ctx<xla::ffi::PlatformStream<cudaStream_t>>()              \
                                    .Ctx<xla::ffi::DeviceOrdinal>()                             \
                                    .RemainingArgs()                                            \
                                    .RemainingRets()                                            \
                                    .Attr<xla::ffi::Dictionary>("config"),                      \
                                {xla::ffi::Traits::kCmdBufferCompatible})
BWGEMM_DEFINE_HANDLERS(BwProduct, Instantiate<bwgemm::call::kProductV2>,
                       Execute<bwgemm::call::kProductV2>);
BWGEMM_DEFINE_HANDLERS(BwGemmV1, Instantiate<bwgemm::call::kGemmV1>,
                       Execute<bwgemm::call::kGemmV1>);
BWGEMM_DEFINE_HANDLERS(BwGroupedV1, Instantiate<bwgemm::call::kGroupedV1>,
                       Execute<bwgemm::call::kGroupedV1>);
BWGEMM_DEFINE_HANDLERS(BwQuantize, InstantiateQuantize, ExecuteQuantize);
