#include "emulator/runtime/driver_functions.h"

#include <cstring>

namespace bwgemm::emulator {

void* FindDriverFunction(const char* name) {
  return std::strcmp(name, "cuTensorMapEncodeTiled") == 0 ? reinterpret_cast<void*>(&EncodeTiledMap)
                                                          : nullptr;
}

}  // namespace bwgemm::emulator
