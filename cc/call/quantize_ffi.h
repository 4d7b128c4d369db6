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

// The call points into the buffers and attributes.
Status DecodeQuantize(const ffi::RemainingArgs& operands, const ffi::RemainingRets& results,
                      const ffi::Dictionary& config, QuantizeCall* call);

}  // namespace bwgemm::call

// Platform CUDA.
XLA_FFI_DECLARE_HANDLER_SYMBOL(BwQuantizeInitialize);
XLA_FFI_DECLARE_HANDLER_SYMBOL(BwQuantizeExecute);
