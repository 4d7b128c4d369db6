// The handler of quantization on platform cpu, its kernel run by the emulator.
#pragma once

#include "xla/ffi/api/ffi.h"

XLA_FFI_DECLARE_HANDLER_SYMBOL(BwQuantizeEmulatedExecute);  // bwgemm.quantize.emulated.v1
