// Target bwgemm.grouped.emulated.v1 on platform cpu: the grouped handler, with its kernels run by
// the emulator.
#pragma once

#include "xla/ffi/api/ffi.h"

XLA_FFI_DECLARE_HANDLER_SYMBOL(BwGroupedEmulatedExecute);
