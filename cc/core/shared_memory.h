// A kernel's dynamic shared memory: how much there is, and where it begins.
#pragma once

#include <cstdint>

#include "cute/arch/util.hpp"

namespace bwgemm {

inline constexpr int kSharedLimit = 227 * 1024;  // bytes of a CTA, on SM90 and SM100

// Dynamic shared memory is only 16-byte aligned, swizzled tiles lie at multiples of 1024. By
// pointer arithmetic: an address made of an integer is generic to the compiler, and so is every
// access.
template <class T>
__device__ __forceinline__ T& AlignedShared(uint8_t* raw) {
  return *reinterpret_cast<T*>(raw + (0u - cute::cast_smem_ptr_to_uint(raw)) % alignof(T));
}

}  // namespace bwgemm
