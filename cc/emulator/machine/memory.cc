#include "emulator/machine/memory.h"

#include <algorithm>

#include "emulator/machine/launch.h"

namespace bwgemm::emulator {

void GlobalMemory::add(const void* base, uint64_t size, bool writable, std::string name) {
  if (size == 0) return;
  Range range{reinterpret_cast<uintptr_t>(base), size, writable, std::move(name)};
  const auto at =
      std::upper_bound(ranges_.begin(), ranges_.end(), range.base,
                       [](uint64_t address, const Range& r) { return address < r.base; });
  const bool clash_after = at != ranges_.end() && at->base < range.base + size;
  const bool clash_before = at != ranges_.begin() && (at - 1)->base + (at - 1)->size > range.base;
  if (clash_after || clash_before) {
    throw Error(ErrorKind::kLaunch, 0,
                format("memory '%s' overlaps '%s'", range.name.c_str(),
                       (clash_after ? at : at - 1)->name.c_str()));
  }
  ranges_.insert(at, std::move(range));
  last_ = 0;
}

void GlobalMemory::remove(const void* base) {
  const uint64_t address = reinterpret_cast<uintptr_t>(base);
  ranges_.erase(std::remove_if(ranges_.begin(), ranges_.end(),
                               [&](const Range& r) { return r.base == address; }),
                ranges_.end());
  last_ = 0;
}

void GlobalMemory::clear() {
  ranges_.clear();
  last_ = 0;
}

bool GlobalMemory::holds(const void* base) const {
  const uint64_t address = reinterpret_cast<uintptr_t>(base);
  const auto at = std::lower_bound(ranges_.begin(), ranges_.end(), address,
                                   [](const Range& r, uint64_t a) { return r.base < a; });
  return at != ranges_.end() && at->base == address;
}

uint8_t* GlobalMemory::find(uint64_t address, uint64_t bytes, bool write) const {
  const auto inside = [&](const Range& r) {
    return address >= r.base && address - r.base <= r.size && bytes <= r.size - (address - r.base);
  };
  if (last_ >= ranges_.size() || !inside(ranges_[last_])) {
    const auto at = std::upper_bound(ranges_.begin(), ranges_.end(), address,
                                     [](uint64_t a, const Range& r) { return a < r.base; });
    if (at == ranges_.begin() || !inside(*(at - 1))) return nullptr;
    last_ = static_cast<size_t>(at - 1 - ranges_.begin());
  }
  if (write && !ranges_[last_].writable) return nullptr;
  return reinterpret_cast<uint8_t*>(static_cast<uintptr_t>(address));
}

std::string GlobalMemory::describe(uint64_t address) const {
  const auto at = std::upper_bound(ranges_.begin(), ranges_.end(), address,
                                   [](uint64_t a, const Range& r) { return a < r.base; });
  const Range* before = at == ranges_.begin() ? nullptr : &*(at - 1);
  if (before != nullptr && address - before->base < before->size) {
    return format("byte %llu of '%s' (%llu bytes%s)",
                  static_cast<unsigned long long>(address - before->base), before->name.c_str(),
                  static_cast<unsigned long long>(before->size),
                  before->writable ? "" : ", read-only");
  }
  if (before != nullptr && address - before->base - before->size < (1 << 20)) {
    return format("%llu bytes past the end of '%s'",
                  static_cast<unsigned long long>(address - before->base - before->size),
                  before->name.c_str());
  }
  if (at != ranges_.end() && at->base - address < (1 << 20)) {
    return format("%llu bytes before '%s'", static_cast<unsigned long long>(at->base - address),
                  at->name.c_str());
  }
  return "in no registered memory";
}

void SharedMemory::reset(uint32_t first, uint32_t bytes, const Rules& rules, Cta& owner) {
  first_ = first;
  owner_ = &owner;
  size_ = bytes;
  hazards_ = rules.on(Rule::kAsyncHazard);
  proxy_fences_ = rules.on(Rule::kProxyFence);
  uninitialized_ = rules.on(Rule::kUninitializedShared);
  const size_t granules = (size_t{bytes} + kGranule - 1) / kGranule;
  bytes_.assign(granules * kGranule, 0xFF);
  shadow_.assign(granules, Shadow{});
  parts_.clear();
}

bool SharedMemory::find_conflict(uint32_t granule, Bytes bytes, bool write, Conflict* found) const {
  const Shadow& s = shadow_[granule];
  if (s.writes != 0 || (write && s.reads != 0)) {
    *found = {s.line, s.writes != 0};
    return true;
  }
  if (s.parts == 0) return false;
  for (const Part& part : parts_.find(granule)->second) {
    if ((part.bytes & bytes) == 0 || !(write || part.writes)) continue;
    *found = {part.line, part.writes};
    return true;
  }
  return false;
}

void SharedMemory::begin(uint32_t granule, Bytes bytes, bool write, int32_t line) {
  Shadow& s = shadow_[granule];
  if (bytes != kAllBytes) {
    parts_[granule].push_back({bytes, write, line});
    ++s.parts;
    return;
  }
  ++(write ? s.writes : s.reads);
  if (write || s.writes == 0) s.line = line;
}

void SharedMemory::end_part(uint32_t granule, Bytes bytes, bool write, int32_t line) {
  const auto at = parts_.find(granule);
  std::vector<Part>& parts = at->second;
  const auto ended = std::find_if(parts.begin(), parts.end(), [&](const Part& p) {
    return p.bytes == bytes && p.writes == write && p.line == line;
  });
  *ended = parts.back();
  parts.pop_back();
  if (parts.empty()) parts_.erase(at);
  --shadow_[granule].parts;
}

void SharedMemory::end_all(uint32_t offset, uint32_t bytes, bool write, int32_t line) {
  for (uint32_t g = offset / kGranule, last = (offset + bytes - 1) / kGranule; g <= last; ++g) {
    const Bytes part = bytes_of(g, offset, bytes);
    if (part == kAllBytes) {
      --(write ? shadow_[g].writes : shadow_[g].reads);
    } else {
      end_part(g, part, write, line);
    }
  }
}

void SharedMemory::begin_async_write(Launch& launch, uint32_t offset, uint32_t bytes,
                                     const Origin& origin, const Stamp& stamp, bool unordered) {
  if (bytes == 0) return;
  launch.races().access(*origin.cta->warps()[origin.warp], *owner_, offset, bytes, stamp, true,
                        origin);
  for (uint32_t g = offset / kGranule, last = (offset + bytes - 1) / kGranule; g <= last; ++g) {
    const Bytes part = bytes_of(g, offset, bytes);
    Shadow& s = shadow_[g];
    if (s.mbarriers != 0) overwrite_mbarriers(launch, origin, g, part);
    if (hazards_ && part == kAllBytes && (s.writes | s.reads | s.parts) == 0) {
      s.writes = 1;
      s.line = origin.line;
    } else if (hazards_) {
      Conflict other;
      if (!unordered && find_conflict(g, part, true, &other)) {
        launch.report(Rule::kAsyncHazard, origin,
                      format("asynchronous write of shared memory %s while the operation of line "
                             "%d still %s it",
                             launch.shared_text(g * kGranule).c_str(), other.line,
                             other.writes ? "writes" : "reads"));
      }
      begin(g, part, true, origin.line);
    }
    s.writer = 0;
    s.written |= part;
  }
}

void SharedMemory::end_async_write(uint32_t offset, uint32_t bytes, int32_t line) {
  if (!hazards_ || bytes == 0) return;
  end_all(offset, bytes, true, line);
}

void SharedMemory::begin_async_read(Launch& launch, uint32_t offset, uint32_t bytes,
                                    const Origin& origin, const Stamp& stamp) {
  if (bytes == 0) return;
  launch.races().access(*origin.cta->warps()[origin.warp], *owner_, offset, bytes, stamp, false,
                        origin);
  for (uint32_t g = offset / kGranule, last = (offset + bytes - 1) / kGranule; g <= last; ++g) {
    Shadow& s = shadow_[g];
    if (proxy_fences_ && s.writer != 0) {
      Cluster& cluster = origin.cta->cluster();
      const uint32_t index = (s.writer >> 20) - 1;
      const uint32_t per_cta = static_cast<uint32_t>(origin.cta->warps().size());
      const uint32_t rank = index / per_cta, warp = index % per_cta;
      if (rank < cluster.size() &&
          !cluster.cta(rank).warps()[warp]->proxy_fenced(s.writer & 0xFFFFF)) {
        launch.report(Rule::kProxyFence, origin,
                      format("the asynchronous proxy reads shared memory %s that warp %u of the "
                             "CTA with rank %u wrote without a fence.proxy.async after it",
                             launch.shared_text(g * kGranule).c_str(), warp, rank));
      }
    }
    if (!hazards_) continue;
    const Bytes part = bytes_of(g, offset, bytes);
    if (part == kAllBytes && (s.writes | s.parts) == 0 && !uninitialized_) {
      ++s.reads;
      s.line = origin.line;
    } else {
      Conflict other;
      if (find_conflict(g, part, false, &other)) {
        launch.report(Rule::kAsyncHazard, origin,
                      format("asynchronous read of shared memory %s while the operation of line %d "
                             "still writes it",
                             launch.shared_text(g * kGranule).c_str(), other.line));
      }
      if (uninitialized_ && (~s.written & part) != 0) {
        launch.report(Rule::kUninitializedShared, origin,
                      format("asynchronous read of shared memory %s that nothing has written",
                             launch.shared_text(g * kGranule).c_str()));
      }
      begin(g, part, false, origin.line);
    }
  }
}

void SharedMemory::end_async_read(uint32_t offset, uint32_t bytes, int32_t line) {
  if (!hazards_ || bytes == 0) return;
  end_all(offset, bytes, false, line);
}

void SharedMemory::note_access(Warp& warp, uint32_t offset, uint32_t bytes, uint16_t flags,
                               bool write) {
  Races& races = warp.launch().races();
  if (!races.on()) return;
  const uint32_t lanes = warp.executing();
  if ((flags & kVolatile) != 0 && (lanes & (lanes - 1)) == 0) flags &= ~kVolatile;
  const Origin origin = warp.origin();
  races.access(warp, *owner_, offset, bytes, warp.history.stamp(origin.line, flags), write, origin);
}

void SharedMemory::overwrite_mbarriers(Launch& launch, const Origin& origin, uint32_t granule,
                                       Bytes bytes) {
  for (uint32_t offset : {granule * kGranule, granule * kGranule + 8}) {
    if ((bytes_of(granule, offset, 8) & bytes) == 0 || !holds_mbarrier(offset)) continue;
    note_mbarrier(offset, false);
    launch.report(
        Rule::kMbarrierInit, origin,
        format("write of shared memory %s, which is an mbarrier: mbarrier.inval comes first",
               launch.shared_text(offset).c_str()));
  }
}

void SharedMemory::check_conflict(Warp& warp, uint32_t granule, uint32_t offset, uint32_t bytes,
                                  bool write) {
  if (write && shadow_[granule].mbarriers != 0) {
    overwrite_mbarriers(warp.launch(), warp.origin(), granule, bytes_of(granule, offset, bytes));
  }
  Conflict other;
  if (!find_conflict(granule, bytes_of(granule, offset, bytes), write, &other)) return;
  warp.report(
      Rule::kAsyncHazard,
      format("%s of shared memory %s while the asynchronous operation of line %d still %s it",
             write ? "write" : "read", warp.launch().shared_text(granule * kGranule).c_str(),
             other.line, other.writes ? "writes" : "reads"));
}

void SharedMemory::read_uninitialized(Warp& warp, uint32_t granule) {
  warp.report(Rule::kUninitializedShared,
              format("read of shared memory %s that nothing has written",
                     warp.launch().shared_text(granule * kGranule).c_str()));
}

}  // namespace bwgemm::emulator
