// The XLA FFI side of a GEMM call: attribute struct, buffer decoding, error codes.
#pragma once

#include <string_view>

#include "gemm/gemm_call.h"
#include "xla/ffi/api/ffi.h"

namespace bwgemm {

namespace ffi = ::xla::ffi;

// The call site's one attribute, `config`.
struct GemmAttrs {
  std::string_view kernel;
  std::string_view raster_order;
  int64_t swizzle;
  int64_t splits;
};

ffi::Error ToFfiError(const Status& status);

// The body shared by the CUDA and the emulated handler.
ffi::Error ExecuteGemm(cudaStream_t stream, int device, ffi::AnyBuffer a, ffi::AnyBuffer b,
                       ffi::Result<ffi::AnyBuffer> d, ffi::Result<ffi::Buffer<ffi::U8>> workspace,
                       const GemmAttrs& attrs);

}  // namespace bwgemm

XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(::bwgemm::GemmAttrs,
                                      ::xla::ffi::StructMember<std::string_view>("kernel"),
                                      ::xla::ffi::StructMember<std::string_view>("raster_order"),
                                      ::xla::ffi::StructMember<int64_t>("swizzle"),
                                      ::xla::ffi::StructMember<int64_t>("splits"));

// Target bwgemm.gemm.v1 on platform CUDA.
XLA_FFI_DECLARE_HANDLER_SYMBOL(BwGemmInitialize);
XLA_FFI_DECLARE_HANDLER_SYMBOL(BwGemmExecute);
