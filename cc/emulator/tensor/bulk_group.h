// Membership of an asynchronous operation in its thread's bulk async-group (PTX ISA 9.7.9.25.3.2).
#pragma once

#include "emulator/tensor/tensor_state.h"

namespace bwgemm::emulator {

struct BulkMember {
  Warp* warp = nullptr;
  int lane = 0;
  uint64_t id = 0;

  static BulkMember join(Warp& warp, int lane) {
    return {&warp, lane, warp.bulk_groups(lane).join()};
  }
  // The sources have been read: wait_group.read may pass.
  void read_done(Launch& launch) const {
    warp->bulk_groups(lane).read_done(id);
    launch.wake(wait_key(warp, kBulkKey), *warp);
  }
  void done(Launch& launch) const {
    warp->bulk_groups(lane).done(id);
    launch.wake(wait_key(warp, kBulkKey), *warp);
  }
};

// Stamps of what the lane's open group reads and writes, and their end: all groups but the last
// `allowed` are known to have read (reads_only) or to be over.
Stamp bulk_reads(Warp& warp, int lane);
Stamp bulk_writes(Warp& warp, int lane, bool reduces);
void learn_bulk(Warp& warp, int lane, uint32_t allowed, bool reads_only);

}  // namespace bwgemm::emulator
