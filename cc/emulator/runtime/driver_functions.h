// Functions of the CUDA driver that host code asks for by name.
#pragma once

#include <cuda.h>

namespace bwgemm::emulator {

// cuTensorMapEncodeTiled.
CUresult EncodeTiledMap(CUtensorMap* out, CUtensorMapDataType type, cuuint32_t rank, void* address,
                        const cuuint64_t* dims, const cuuint64_t* strides, const cuuint32_t* box,
                        const cuuint32_t* element_strides, CUtensorMapInterleave interleave,
                        CUtensorMapSwizzle swizzle, CUtensorMapL2promotion l2,
                        CUtensorMapFloatOOBfill fill);

// Null where there is none of that name. The emulator's module has its own in
// driver_functions.cc, programs have theirs in program/driver.cc.
void* FindDriverFunction(const char* name);

}  // namespace bwgemm::emulator
