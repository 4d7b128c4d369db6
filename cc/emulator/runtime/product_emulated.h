// The products' handlers on platform cpu, their kernels run by the emulator.
#pragma once

#include "xla/ffi/api/ffi.h"

// bwgemm.product.emulated.v2, bwgemm.gemm.emulated.v1, bwgemm.grouped.emulated.v1.
XLA_FFI_DECLARE_HANDLER_SYMBOL(BwProductEmulatedExecute);
XLA_FFI_DECLARE_HANDLER_SYMBOL(BwGemmV1EmulatedExecute);
XLA_FFI_DECLARE_HANDLER_SYMBOL(BwGroupedV1EmulatedExecute);
