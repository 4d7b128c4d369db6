// The XLA FFI side of quantization.
//
// Target bwgemm.quantize.v1 has any number of operands and results and one attribute, the
// dictionary `config`: `operands` and `results` name the buffers in their order ("x scales",
// "values"), see QuantizeRole; `scaling`; `power_of_two` (default 0); `epsilon` (default 0). In the
// place of x a function of arrays: `kernel`, `source`, `source_digest`, `source_version` and
// `source_operands`, see QuantizeCall.
#pragma once

#include "call/ffi_decode.h"
#include "call/quantize_call.h"

namespace bwgemm::call {

// What does not depend on buffers.
Status DecodeConfig(const ffi::Dictionary& config, QuantizeCall* call, Roles* roles);

// The call points into the buffers and attributes.
Status DecodeQuantize(const ffi::RemainingArgs& operands, const ffi::RemainingRets& results,
                      const ffi::Dictionary& config, QuantizeCall* call);

}  // namespace bwgemm::call
