// Asynchronous operations: issued by an instruction, finished later by the scheduler in seeded
// random order.
#pragma once

#include <cstdint>
#include <deque>

#include "emulator/machine/memory.h"

namespace bwgemm::emulator {

class Launch;

// Derive, submit with Launch::submit. step() does (a part of) the work: moves data, ends the shadow
// marks, completes mbarriers, bulk groups, ...; it returns true when nothing is left. Between two
// steps other operations and warps run.
class AsyncOp {
 public:
  virtual ~AsyncOp() = default;
  virtual bool step(Launch& launch) = 0;

  Origin origin;           // set by Launch::submit from the running instruction
  uint64_t submitted = 0;  // tick
  uint64_t trace_arg = 0;  // shown in the trace (bytes)
};

// Groups of asynchronous operations of one executing thread (bulk async-groups, cp.async groups,
// wgmma groups): operations join the open group, commit() closes it, a wait for "at most n pending"
// looks at the closed ones (oldest first).
class AsyncGroups {
 public:
  // Joins the open group with one operation; the returned id names the group.
  uint64_t join() {
    if (open_ == 0) groups_.push_back(Group{}), open_ = 1;
    ++groups_.back().pending;
    ++groups_.back().reading;
    return first_ + groups_.size() - 1;
  }
  void commit() {
    if (open_ == 0) groups_.push_back(Group{});
    open_ = 0;
    trim();
  }
  // The operation has read its sources / is completely done (done implies read_done must have been
  // called before).
  void read_done(uint64_t id) { --at(id).reading; }
  void done(uint64_t id) {
    --at(id).pending;
    trim();
  }
  // Committed groups that are not complete (or whose sources are not all read).
  uint32_t pending(bool reads_only = false) const {
    const size_t closed = groups_.size() - open_;
    // Waiting for at most n pending groups means all but the n most recent ones: count back to the
    // oldest unfinished one.
    for (size_t i = 0; i < closed; ++i) {
      if ((reads_only ? groups_[i].reading : groups_[i].pending) != 0)
        return static_cast<uint32_t>(closed - i);
    }
    return 0;
  }
  bool idle() const { return groups_.empty(); }

 private:
  struct Group {
    uint32_t pending = 0, reading = 0;
  };
  Group& at(uint64_t id) { return groups_[id - first_]; }
  void trim() {
    while (groups_.size() > open_ && groups_.front().pending == 0) groups_.pop_front(), ++first_;
  }
  std::deque<Group> groups_;
  uint64_t first_ = 0;
  size_t open_ = 0;  // 1 if the last group is not committed yet
};

}  // namespace bwgemm::emulator
