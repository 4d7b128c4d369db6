// The XLA FFI side of a GEMM call: attribute struct, buffer decoding, error codes.
#pragma once

#include <string_view>

#include "dense/gemm_call.h"
#include "xla/ffi/api/ffi.h"

namespace bwgemm {

namespace ffi = ::xla::ffi;

// The call site's one attribute, `config`.
struct GemmAttrs {
  std::string_view kernel;
  GemmOptions options;
};

ffi::Error ToFfiError(const Status& status);

// The body shared by the CUDA and the emulated handler.
ffi::Error ExecuteGemm(cudaStream_t stream, int device, ffi::AnyBuffer a, ffi::AnyBuffer b,
                       ffi::Result<ffi::AnyBuffer> d, ffi::Result<ffi::Buffer<ffi::U8>> workspace,
                       const GemmAttrs& attrs);

}  // namespace bwgemm

// By hand, because exported programs outlive versions of this library: a member that their version
// did not have yet (`splits`, `decomposition`) gets its default.
template <>
struct xla::ffi::AttrDecoding<::bwgemm::GemmAttrs> {
  using Type = ::bwgemm::GemmAttrs;
  static std::optional<Type> Decode(XLA_FFI_AttrType type, void* attr,
                                    DiagnosticEngine& diagnostic);
};

// Target bwgemm.gemm.v1 on platform CUDA.
XLA_FFI_DECLARE_HANDLER_SYMBOL(BwGemmInitialize);
XLA_FFI_DECLARE_HANDLER_SYMBOL(BwGemmExecute);
