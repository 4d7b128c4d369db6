// Where a kernel's dynamic shared memory begins.
#pragma once

#include <cstdint>

#include "cute/arch/util.hpp"

namespace bwgemm {

// Dynamic shared memory is only 16-byte aligned, swizzled tiles lie at multiples of 1024. By
// pointer arithmetic: an address made of an integer is generic to the compiler, and so is every
// access.
template <class T>
__device__ __forceinline__ T& AlignedShared(uint8_t* raw) {
  return *reinterpret_cast<T*>(raw + (0u - cute::cast_smem_ptr_to_uint(raw)) % alignof(T));
}

}  // namespace bwgemm
