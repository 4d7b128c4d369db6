// The XLA FFI side of a product: attribute dictionary, buffer decoding, error codes.
//
// Target bwgemm.product.v2 has any number of operands and results and one attribute, the dictionary
// `config`. Its members are
//   kernel             name of the kernel
//   operands, results  the roles of the buffers, in their order: "a b", "d workspace" (buffer.h)
//   windows            which columns of a buffer take part: "b:256:128" (SetWindows)
//   epilogue, epilogue_digest, epilogue_version, epilogue_form, epilogue_operands,
//   epilogue_results   see LinkedEpilogue
//   raster_order, swizzle, splits, decomposition, order, a_scaling, b_scaling   see
//   Options; those left out have defaults
// Exported programs outlive versions of this library. A version refuses members and roles that it
// does not know by name, so programs that need none of them run in any version.
#pragma once

#include <string_view>

#include "call/ffi_decode.h"
#include "call/product_call.h"

namespace bwgemm::call {

// The fixed roles of a target's buffers; empty where they are members of config, as in v2.
inline constexpr Roles kProductV2{};
inline constexpr Roles kGemmV1{"a b", "d workspace"};
inline constexpr Roles kGroupedV1{"a b group_sizes group_offset", "d workspace"};

// What does not depend on buffers. roles: of the call's buffers, `fixed` or from config.
Status DecodeConfig(const Roles& fixed, const ffi::Dictionary& config, ProductCall* call,
                    Roles* roles);

// The call points into the buffers and attributes.
Status DecodeCall(const Roles& fixed, const ffi::RemainingArgs& operands,
                  const ffi::RemainingRets& results, const ffi::Dictionary& config,
                  ProductCall* call);

}  // namespace bwgemm::call
