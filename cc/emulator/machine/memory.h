// Global memory (host ranges that the kernel may touch) and the shared memory of one CTA with its
// shadow state.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "emulator/machine/config.h"
#include "emulator/machine/shadow.h"

namespace bwgemm::emulator {

class Launch;
class Warp;
class Cta;

// Generic address space (PTX ISA 5.2). Host addresses stand for global memory; other spaces have
// windows that no host uses.
constexpr uint64_t kSharedWindow = uint64_t{1} << 60;    // + 32-bit shared::cluster address
constexpr uint64_t kLocalWindow = uint64_t{2} << 60;     // + offset in the lane's local memory
constexpr uint64_t kParamWindow = uint64_t{3} << 60;     // + offset in the kernel's parameters
constexpr uint64_t kFunctionWindow = uint64_t{4} << 60;  // addresses of functions; holds no data
constexpr uint64_t kWindowMask = uint64_t{0xF} << 60;

// A shared::cluster address is (CTA rank in the cluster << 24) | offset in that CTA; a shared::cta
// address of a CTA is the same with its own rank, so it names the same byte in both windows (PTX
// ISA 5.1.6) and bit 24 tells the CTAs of a pair apart.
constexpr uint32_t kSharedRankShift = 24;
// The first bytes belong to the system, so that address 0 is never valid. Software that compilers
// bring along (cooperative groups) may use those from kSharedSystem on.
constexpr uint32_t kSharedReserved = 1024, kSharedSystem = 256;

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
  bool holds(const void* base) const;  // a range that starts there

  // Pointer to [address, address + bytes), nullptr if not inside one (writable) range.
  uint8_t* find(uint64_t address, uint64_t bytes, bool write) const;
  // "in 'a' [0x.., 0x..)" or "past the end of 'a' ...", for messages.
  std::string describe(uint64_t address) const;
  // Of the range that find() has just found.
  bool last_found_writable() const { return ranges_[last_].writable; }
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

// Shared memory of one CTA. The shadow keeps asynchronous writes and reads in flight and the last
// generic-proxy write that no proxy fence has covered. It has one entry for each granule of 16
// bytes; operations in flight that own a part of a granule are kept byte by byte beside it.
class SharedMemory {
 public:
  static constexpr uint32_t kGranule = 16;

  // Poisons everything with 0xFF (NaN in every float type). `first`: the first valid address.
  void reset(uint32_t first, uint32_t bytes, const Rules& rules, Cta& owner);
  uint32_t first() const { return first_; }
  uint32_t size() const { return size_; }
  uint8_t* data(uint32_t offset) { return bytes_.data() + offset; }

  bool contains(uint64_t offset, uint64_t bytes) const {
    return offset >= first_ && offset <= size_ && bytes <= size_ - offset;
  }

  // --- Asynchronous operations bracket the time during which they own [offset, offset + bytes):
  // begin_* at issue, end_* at completion, with the line of the issue. begin_* report a conflict:
  // writing what is being read or written, reading what is being written, reading generic-proxy
  // writes that were not fenced. The range must be inside (check contains() first). Overlapping
  // reads are fine. unordered: a reduction, which may meet others in one place: conflicts are not
  // checked.
  // `stamp`: who does it (Races::open, Races::queue).
  void begin_async_write(Launch& launch, uint32_t offset, uint32_t bytes, const Origin& origin,
                         const Stamp& stamp, bool unordered = false);
  void end_async_write(uint32_t offset, uint32_t bytes, int32_t line);
  void begin_async_read(Launch& launch, uint32_t offset, uint32_t bytes, const Origin& origin,
                        const Stamp& stamp);
  void end_async_read(uint32_t offset, uint32_t bytes, int32_t line);

  // --- mbarriers that lie in it, from mbarrier.init to mbarrier.inval. Other writes over one are
  // reported and end it.
  void note_mbarrier(uint32_t offset, bool lies) {
    Shadow& s = shadow_[offset / kGranule];
    const unsigned half = 1u << (offset % kGranule / 8);
    s.mbarriers = static_cast<uint16_t>(lies ? s.mbarriers | half : s.mbarriers & ~half) & 3;
  }
  bool holds_mbarrier(uint32_t offset) const {
    return (shadow_[offset / kGranule].mbarriers >> (offset % kGranule / 8) & 1) != 0;
  }

  // Copies of the generic proxy that finish late (cp.async) leave their stamp at the end.
  void stamp(uint32_t offset, uint32_t bytes, uint32_t writer_stamp) {
    for (uint32_t g = offset / kGranule, last = (offset + bytes - 1) / kGranule; g <= last; ++g)
      shadow_[g].writer = writer_stamp;
  }

  // --- Generic proxy: called by ld/st/atom and friends, with StampFlags; the range must be inside.
  // Report conflicts.
  void check_read(Warp& warp, uint32_t offset, uint32_t bytes, uint16_t flags = 0) {
    note_access(warp, offset, bytes, flags, false);
    if (!hazards_ && !uninitialized_) return;
    for (uint32_t g = offset / kGranule, last = (offset + bytes - 1) / kGranule; g <= last; ++g) {
      const Shadow& s = shadow_[g];
      if ((s.writes | s.parts) != 0) check_conflict(warp, g, offset, bytes, false);
      if (uninitialized_ && (~s.written & bytes_of(g, offset, bytes)) != 0)
        read_uninitialized(warp, g);
    }
  }
  void note_write(Warp& warp, uint32_t offset, uint32_t bytes, uint32_t writer_stamp,
                  uint16_t flags = 0) {
    note_access(warp, offset, bytes, flags, true);
    for (uint32_t g = offset / kGranule, last = (offset + bytes - 1) / kGranule; g <= last; ++g) {
      Shadow& s = shadow_[g];
      if ((s.writes | s.reads | s.parts | s.mbarriers) != 0)
        check_conflict(warp, g, offset, bytes, true);
      s.writer = writer_stamp;
      s.written |= bytes_of(g, offset, bytes);
    }
  }

 private:
  // Sets of bytes of a granule.
  using Bytes = uint16_t;
  static constexpr Bytes kAllBytes = 0xFFFF;

  struct Shadow {
    uint16_t writes = 0;  // asynchronous writes in flight of the whole granule
    uint16_t reads = 0;   // asynchronous reads in flight of the whole granule
    uint32_t writer =
        0;  // Warp::proxy_stamp() of the last generic writer, 0: none since the last async write
    int32_t line = 0;     // PTX line of the last asynchronous operation begun on the whole granule
    uint16_t parts : 14;  // operations in flight in parts_
    uint16_t mbarriers : 2;  // in the lower and in the upper half
    Bytes written = 0;
    Shadow() : parts(0), mbarriers(0) {}
  };
  // An operation in flight that owns some bytes of a granule.
  struct Part {
    Bytes bytes;
    bool writes;
    int32_t line;
  };
  static Bytes bytes_of(uint32_t granule, uint32_t offset, uint32_t bytes) {
    const uint32_t start = granule * kGranule;
    const uint32_t first = offset > start ? offset - start : 0;
    const uint32_t end = offset + bytes - start;
    if (first == 0 && end >= kGranule) return kAllBytes;
    return static_cast<Bytes>((1u << (end < kGranule ? end : kGranule)) - (1u << first));
  }
  // An operation in flight.
  struct Conflict {
    int32_t line = 0;
    bool writes = false;
  };
  // The one that an access of these bytes conflicts with, if any.
  bool find_conflict(uint32_t granule, Bytes bytes, bool write, Conflict* found) const;
  void begin(uint32_t granule, Bytes bytes, bool write, int32_t line);
  void end_part(uint32_t granule, Bytes bytes, bool write, int32_t line);
  void end_all(uint32_t offset, uint32_t bytes, bool write, int32_t line);
  void overwrite_mbarriers(Launch& launch, const Origin& origin, uint32_t granule, Bytes bytes);
  void check_conflict(Warp& warp, uint32_t granule, uint32_t offset, uint32_t bytes, bool write);
  void note_access(Warp& warp, uint32_t offset, uint32_t bytes, uint16_t flags, bool write);
  void read_uninitialized(Warp& warp, uint32_t granule);

  Cta* owner_ = nullptr;
  uint32_t first_ = kSharedReserved, size_ = 0;
  bool hazards_ = true, proxy_fences_ = true, uninitialized_ = false;  // rules that are on
  std::vector<uint8_t> bytes_;
  std::vector<Shadow> shadow_;
  std::unordered_map<uint32_t, std::vector<Part>> parts_;  // by granule
};

}  // namespace bwgemm::emulator
