// Global memory (host ranges that the kernel may touch) and the shared memory of one CTA with its
// shadow state.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "emulator/machine/config.h"

namespace bwgemm::emulator {

class Launch;
class Warp;
class Cta;

// Generic address space (PTX ISA 5.2). Host addresses stand for global memory; other spaces have
// windows that no host uses.
constexpr uint64_t kSharedWindow = uint64_t{1} << 60;  // + 32-bit shared::cluster address
constexpr uint64_t kLocalWindow = uint64_t{2} << 60;   // + offset in the lane's local memory
constexpr uint64_t kParamWindow = uint64_t{3} << 60;   // + offset in the kernel's parameters
constexpr uint64_t kWindowMask = uint64_t{0xF} << 60;

// A shared::cluster address is (CTA rank in the cluster << 24) | offset in that CTA; a shared::cta
// address of a CTA is the same with its own rank, so it names the same byte in both windows (PTX
// ISA 5.1.6) and bit 24 tells the CTAs of a pair apart.
constexpr uint32_t kSharedRankShift = 24;
constexpr uint32_t kSharedReserved =
    1024;  // the first bytes belong to the system, so that address 0 is never valid

// Host memory that kernels may access. Not thread safe; one per device.
class GlobalMemory {
 public:
  struct Range {
    uint64_t base = 0;
    uint64_t size = 0;
    bool writable = true;
    std::string name;
  };
  // Overlapping registrations are an error (Error{kLaunch}).
  void add(const void* base, uint64_t size, bool writable, std::string name);
  void remove(const void* base);
  void clear();

  // Pointer to [address, address + bytes), nullptr if not inside one (writable) range.
  uint8_t* find(uint64_t address, uint64_t bytes, bool write) const;
  // "in 'a' [0x.., 0x..)" or "past the end of 'a' ...", for messages.
  std::string describe(uint64_t address) const;
  const std::vector<Range>& ranges() const { return ranges_; }

 private:
  std::vector<Range> ranges_;  // sorted by base
  mutable size_t last_ = 0;
};

// What caused an operation: for messages, traces and statistics.
struct Origin {
  Cta* cta = nullptr;
  int32_t warp = -1;
  int32_t line = 0;
  const char* name = "";
};

// Shared memory of one CTA. The shadow keeps, per granule of 16 bytes: asynchronous writes and
// reads in flight, and the last generic-proxy write that no proxy fence has covered.
class SharedMemory {
 public:
  static constexpr uint32_t kGranule = 16;

  void reset(uint32_t bytes,
             const Checks& checks);  // poisons everything with 0xFF (NaN in every float type)
  uint32_t size() const { return size_; }
  uint8_t* data(uint32_t offset) { return bytes_.data() + offset; }

  bool contains(uint64_t offset, uint64_t bytes) const {
    return offset >= kSharedReserved && offset <= size_ && bytes <= size_ - offset;
  }

  // --- Asynchronous operations bracket the time during which they own [offset, offset + bytes):
  // begin_* at issue, end_* at completion. begin_* fault on a conflict: writing what is being read
  // or written, reading what is being written, reading generic-proxy writes that were not fenced.
  // The range must be inside (check contains() first). Overlapping reads are fine. same_pipe: the
  // caller orders this operation after those already in flight, so conflicts are not checked.
  void begin_async_write(Launch& launch, uint32_t offset, uint32_t bytes, const Origin& origin,
                         bool same_pipe = false);
  void end_async_write(uint32_t offset, uint32_t bytes);
  void begin_async_read(Launch& launch, uint32_t offset, uint32_t bytes, const Origin& origin,
                        bool same_pipe = false);
  void end_async_read(uint32_t offset, uint32_t bytes);

  // Copies of the generic proxy that finish late (cp.async) leave their stamp at the end.
  void stamp(uint32_t offset, uint32_t bytes, uint32_t writer_stamp) {
    for (uint32_t g = offset / kGranule, last = (offset + bytes - 1) / kGranule; g <= last; ++g)
      shadow_[g].writer = writer_stamp;
  }

  // --- Generic proxy: called by ld/st/atom and friends; the range must be inside. Fault on a
  // conflict.
  void check_read(Warp& warp, uint32_t offset, uint32_t bytes) {
    if (!checks_.async_hazards && !checks_.uninitialized) return;
    for (uint32_t g = offset / kGranule, last = (offset + bytes - 1) / kGranule; g <= last; ++g) {
      if (shadow_[g].writes != 0) read_conflict(warp, g);
      if (checks_.uninitialized && !shadow_[g].written) read_uninitialized(warp, g);
    }
  }
  void note_write(Warp& warp, uint32_t offset, uint32_t bytes, uint32_t writer_stamp) {
    for (uint32_t g = offset / kGranule, last = (offset + bytes - 1) / kGranule; g <= last; ++g) {
      Shadow& s = shadow_[g];
      if ((s.writes | s.reads) != 0) write_conflict(warp, g);
      s.writer = writer_stamp;
      s.written = true;
    }
  }

 private:
  struct Shadow {
    uint16_t writes = 0;  // asynchronous writes in flight
    uint16_t reads = 0;   // asynchronous reads in flight
    uint32_t writer =
        0;  // Warp::proxy_stamp() of the last generic writer, 0: none since the last async write
    int32_t line = 0;  // PTX line of the last asynchronous operation begun here
    bool written = false;
  };
  [[noreturn]] void read_conflict(Warp& warp, uint32_t granule);
  [[noreturn]] void read_uninitialized(Warp& warp, uint32_t granule);
  void write_conflict(Warp& warp, uint32_t granule);

  uint32_t size_ = 0;
  Checks checks_;
  std::vector<uint8_t> bytes_;
  std::vector<Shadow> shadow_;
};

}  // namespace bwgemm::emulator
