// The XLA FFI handlers of platform CUDA. Their calls: product_ffi.h, quantize_ffi.h.
//
// XLA instantiates a call once, when it makes or loads a program, and executes it once for each
// CUDA graph that it records, or for each run without graphs. There is no stage between these two:
// XLA would run it twice before every execution, which takes longer than a small product.
#pragma once

#include "xla/ffi/api/ffi.h"

// bwgemm.product.v2, and what earlier versions exported.
XLA_FFI_DECLARE_HANDLER_SYMBOL(BwProductInstantiate);
XLA_FFI_DECLARE_HANDLER_SYMBOL(BwProductExecute);
XLA_FFI_DECLARE_HANDLER_SYMBOL(BwGemmV1Instantiate);
XLA_FFI_DECLARE_HANDLER_SYMBOL(BwGemmV1Execute);
XLA_FFI_DECLARE_HANDLER_SYMBOL(BwGroupedV1Instantiate);
XLA_FFI_DECLARE_HANDLER_SYMBOL(BwGroupedV1Execute);
// bwgemm.quantize.v1
XLA_FFI_DECLARE_HANDLER_SYMBOL(BwQuantizeInstantiate);
XLA_FFI_DECLARE_HANDLER_SYMBOL(BwQuantizeExecute);
