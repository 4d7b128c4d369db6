// The XLA FFI side of a grouped GEMM call: attribute struct, buffer decoding.
#pragma once

#include <string_view>

#include "grouped/grouped_call.h"
#include "xla/ffi/api/ffi.h"

namespace bwgemm::grouped {

namespace ffi = ::xla::ffi;

// The call site's one attribute, `config`.
struct GroupedAttrs {
  std::string_view kernel;
  std::string_view order;
  int64_t swizzle;
};

// The body shared by the CUDA and the emulated handler.
ffi::Error ExecuteGrouped(cudaStream_t stream, int device, ffi::AnyBuffer lhs, ffi::AnyBuffer rhs,
                          ffi::AnyBuffer sizes, ffi::AnyBuffer offset,
                          ffi::Result<ffi::AnyBuffer> d,
                          ffi::Result<ffi::Buffer<ffi::U8>> workspace, const GroupedAttrs& attrs);

}  // namespace bwgemm::grouped

XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(::bwgemm::grouped::GroupedAttrs,
                                      ::xla::ffi::StructMember<std::string_view>("kernel"),
                                      ::xla::ffi::StructMember<std::string_view>("order"),
                                      ::xla::ffi::StructMember<int64_t>("swizzle"));

// Target bwgemm.grouped.v1 on platform CUDA.
XLA_FFI_DECLARE_HANDLER_SYMBOL(BwGroupedInitialize);
XLA_FFI_DECLARE_HANDLER_SYMBOL(BwGroupedExecute);
