#include "grouped/grouped_ffi.h"

#include "dense/gemm_ffi.h"

namespace bwgemm::grouped {
namespace {

ffi::Error ToOperand(const char* what, const ffi::AnyBuffer& buffer, Operand* operand) {
  switch (buffer.element_type()) {
    case ffi::DataType::BF16:
      operand->dtype = Name(DType::kBF16);
      break;
    case ffi::DataType::F16:
      operand->dtype = Name(DType::kF16);
      break;
    case ffi::DataType::F32:
      operand->dtype = Name(DType::kF32);
      break;
    case ffi::DataType::S32:
      operand->dtype = "int32";
      break;
    default:
      return ffi::Error(
          ffi::ErrorCode::kInvalidArgument,
          std::string(what) + " has none of the types bfloat16, float16, float32, int32");
  }
  const auto dims = buffer.dimensions();
  operand->dims.assign(dims.begin(), dims.end());
  operand->data = buffer.untyped_data();
  return ffi::Error::Success();
}

}  // namespace

ffi::Error ExecuteGrouped(cudaStream_t stream, int device, ffi::AnyBuffer lhs, ffi::AnyBuffer rhs,
                          ffi::AnyBuffer sizes, ffi::AnyBuffer offset,
                          ffi::Result<ffi::AnyBuffer> d,
                          ffi::Result<ffi::Buffer<ffi::U8>> workspace, const GroupedAttrs& attrs) {
  GroupedCall call;
  call.kernel = attrs.kernel;
  call.order = attrs.order;
  call.swizzle = attrs.swizzle;
  if (ffi::Error e = ToOperand("operand lhs", lhs, &call.lhs); e.failure()) return e;
  if (ffi::Error e = ToOperand("operand rhs", rhs, &call.rhs); e.failure()) return e;
  if (ffi::Error e = ToOperand("operand group_sizes", sizes, &call.sizes); e.failure()) return e;
  if (ffi::Error e = ToOperand("operand group_offset", offset, &call.offset); e.failure()) return e;
  if (ffi::Error e = ToOperand("result d", *d, &call.d); e.failure()) return e;
  call.workspace = workspace->untyped_data();
  call.workspace_bytes = workspace->size_bytes();
  return ToFfiError(RunGrouped(call, device, stream));
}

namespace {

ffi::Error Initialize(int32_t device, ffi::RemainingArgs, ffi::RemainingRets, GroupedAttrs attrs) {
  return ToFfiError(PrepareGrouped(attrs.kernel, device));
}

ffi::Error Execute(cudaStream_t stream, int32_t device, ffi::AnyBuffer lhs, ffi::AnyBuffer rhs,
                   ffi::AnyBuffer sizes, ffi::AnyBuffer offset, ffi::Result<ffi::AnyBuffer> d,
                   ffi::Result<ffi::Buffer<ffi::U8>> workspace, GroupedAttrs attrs) {
  return ExecuteGrouped(stream, device, lhs, rhs, sizes, offset, d, workspace, attrs);
}

}  // namespace
}  // namespace bwgemm::grouped

// Nothing is allocated, queried or synchronised in execute after initialize, and group sizes are
// read on the device alone: XLA may capture it into a CUDA graph.
XLA_FFI_DEFINE_HANDLER_SYMBOL(BwGroupedInitialize, bwgemm::grouped::Initialize,
                              xla::ffi::Ffi::Bind<xla::ffi::ExecutionStage::kInitialize>()
                                  .Ctx<xla::ffi::DeviceOrdinal>()
                                  .RemainingArgs()
                                  .RemainingRets()
                                  .Attr<bwgemm::grouped::GroupedAttrs>("config"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(BwGroupedExecute, bwgemm::grouped::Execute,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::PlatformStream<cudaStream_t>>()
                                  .Ctx<xla::ffi::DeviceOrdinal>()
                                  .Arg<xla::ffi::AnyBuffer>()             // lhs
                                  .Arg<xla::ffi::AnyBuffer>()             // rhs
                                  .Arg<xla::ffi::AnyBuffer>()             // group_sizes
                                  .Arg<xla::ffi::AnyBuffer>()             // group_offset
                                  .Ret<xla::ffi::AnyBuffer>()             // d
                                  .Ret<xla::ffi::Buffer<xla::ffi::U8>>()  // workspace
                                  .Attr<bwgemm::grouped::GroupedAttrs>("config"),
                              {xla::ffi::Traits::kCmdBufferCompatible});
