#include "dense/gemm_ffi.h"

#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

namespace bwgemm {
namespace {

ffi::Error ToTensor(const char* what, const ffi::AnyBuffer& buffer, Tensor3* tensor) {
  switch (buffer.element_type()) {
    case ffi::DataType::BF16:
      tensor->dtype = DType::kBF16;
      break;
    case ffi::DataType::F16:
      tensor->dtype = DType::kF16;
      break;
    case ffi::DataType::F32:
      tensor->dtype = DType::kF32;
      break;
    default:
      return ffi::Error(ffi::ErrorCode::kInvalidArgument,
                        std::string(what) + " has none of the types bfloat16, float16, float32");
  }
  const auto dims = buffer.dimensions();
  if (dims.size() != 3) {
    return ffi::Error(
        ffi::ErrorCode::kInvalidArgument,
        std::string(what) + " has rank " + std::to_string(dims.size()) + ", expected 3");
  }
  for (int i = 0; i < 3; ++i) tensor->dims[i] = dims[i];
  tensor->data = buffer.untyped_data();
  return ffi::Error::Success();
}

}  // namespace

ffi::Error ToFfiError(const Status& status) {
  switch (status.code) {
    case StatusCode::kOk:
      return ffi::Error::Success();
    case StatusCode::kInvalidArgument:
      return ffi::Error(ffi::ErrorCode::kInvalidArgument, status.message);
    case StatusCode::kUnimplemented:
      return ffi::Error(ffi::ErrorCode::kUnimplemented, status.message);
    case StatusCode::kInternal:
      break;
  }
  return ffi::Error(ffi::ErrorCode::kInternal, status.message);
}

ffi::Error ExecuteGemm(cudaStream_t stream, int device, ffi::AnyBuffer a, ffi::AnyBuffer b,
                       ffi::Result<ffi::AnyBuffer> d, ffi::Result<ffi::Buffer<ffi::U8>> workspace,
                       const GemmAttrs& attrs) {
  GemmCall call;
  call.kernel = attrs.kernel;
  call.options = attrs.options;
  if (ffi::Error e = ToTensor("operand a", a, &call.a); e.failure()) return e;
  if (ffi::Error e = ToTensor("operand b", b, &call.b); e.failure()) return e;
  if (ffi::Error e = ToTensor("result d", *d, &call.d); e.failure()) return e;
  call.workspace = workspace->untyped_data();
  call.workspace_bytes = workspace->size_bytes();
  return ToFfiError(RunGemm(call, device, stream));
}

namespace {

ffi::Error Initialize(int32_t device, ffi::RemainingArgs, ffi::RemainingRets, GemmAttrs attrs) {
  return ToFfiError(PrepareGemm(attrs.kernel, device));
}

ffi::Error Execute(cudaStream_t stream, int32_t device, ffi::AnyBuffer a, ffi::AnyBuffer b,
                   ffi::Result<ffi::AnyBuffer> d, ffi::Result<ffi::Buffer<ffi::U8>> workspace,
                   GemmAttrs attrs) {
  return ExecuteGemm(stream, device, a, b, d, workspace, attrs);
}

}  // namespace
}  // namespace bwgemm

std::optional<bwgemm::GemmAttrs> xla::ffi::AttrDecoding<bwgemm::GemmAttrs>::Decode(
    XLA_FFI_AttrType type, void* attr, DiagnosticEngine& diagnostic) {
  const std::optional<Dictionary> members =
      AttrDecoding<Dictionary>::Decode(type, attr, diagnostic);
  if (!members) return std::nullopt;
  bwgemm::GemmAttrs attrs;
  size_t read = 0;
  const auto member = [&](std::string_view name, auto* value, bool required) {
    using T = std::remove_pointer_t<decltype(value)>;
    if (!required && !members->contains(name)) return true;
    const ErrorOr<T> found = members->get<T>(name);
    if (!found.has_value()) {
      diagnostic.Emit("config: ") << name << ": " << found.error().message();
      return false;
    }
    *value = *found;
    ++read;
    return true;
  };
  if (!member("kernel", &attrs.kernel, true) ||
      !member("raster_order", &attrs.options.raster_order, true) ||
      !member("swizzle", &attrs.options.swizzle, true) ||
      !member("splits", &attrs.options.splits, false) ||
      !member("decomposition", &attrs.options.decomposition, false)) {
    return std::nullopt;
  }
  if (read != members->size()) {
    diagnostic.Emit("config has members that this version of jax_bwgemm does not know");
    return std::nullopt;
  }
  return attrs;
}

// Nothing is allocated, queried or synchronised in execute after initialize: XLA may capture it
// into a CUDA graph.
XLA_FFI_DEFINE_HANDLER_SYMBOL(BwGemmInitialize, bwgemm::Initialize,
                              xla::ffi::Ffi::Bind<xla::ffi::ExecutionStage::kInitialize>()
                                  .Ctx<xla::ffi::DeviceOrdinal>()
                                  .RemainingArgs()
                                  .RemainingRets()
                                  .Attr<bwgemm::GemmAttrs>("config"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(BwGemmExecute, bwgemm::Execute,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::PlatformStream<cudaStream_t>>()
                                  .Ctx<xla::ffi::DeviceOrdinal>()
                                  .Arg<xla::ffi::AnyBuffer>()             // a
                                  .Arg<xla::ffi::AnyBuffer>()             // b
                                  .Ret<xla::ffi::AnyBuffer>()             // d
                                  .Ret<xla::ffi::Buffer<xla::ffi::U8>>()  // workspace
                                  .Attr<bwgemm::GemmAttrs>("config"),
                              {xla::ffi::Traits::kCmdBufferCompatible});
