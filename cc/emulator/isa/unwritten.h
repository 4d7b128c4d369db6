// Of the elements of a load, lanes in which nothing has written any of their bytes: of local
// variables.
#pragma once

#include <cstdint>

#include "emulator/machine/warp.h"

namespace bwgemm::emulator {

class Unwritten {
 public:
  // `local`: the window of addresses that lie in local memory.
  void note(Warp& w, uint64_t address, uint64_t local, int lane, uint32_t width, uint32_t count) {
    if (!w.watches_local() || (address & kWindowMask) != local) return;
    const uint64_t offset = address - local;
    for (uint32_t i = 0; i < count; ++i) {
      if (w.wrote_local(offset + uint64_t{i} * width, lane, width)) continue;
      lanes_[i] |= 1u << lane;
      any_ = true;
    }
  }
  void tell(Warp& w, const Instr& in, const Row* rows, uint32_t count) const {
    for (uint32_t i = 0; i < count && any_; ++i) {
      if (lanes_[i] != 0 && rows[i] != kNoRow)
        w.undefines(in, rows[i], lanes_[i], Rule::kUninitializedRegister);
    }
  }

 private:
  bool any_ = false;
  uint32_t lanes_[8] = {};
};

}  // namespace bwgemm::emulator
