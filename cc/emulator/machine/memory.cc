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

void SharedMemory::reset(uint32_t bytes, const Checks& checks) {
  size_ = bytes;
  checks_ = checks;
  const size_t granules = (size_t{bytes} + kGranule - 1) / kGranule;
  bytes_.assign(granules * kGranule, 0xFF);
  shadow_.assign(granules, Shadow{});
}

void SharedMemory::begin_async_write(Launch& launch, uint32_t offset, uint32_t bytes,
                                     const Origin& origin, bool same_pipe) {
  if (bytes == 0) return;
  const uint32_t last = (offset + bytes - 1) / kGranule;
  for (uint32_t g = offset / kGranule; g <= last; ++g) {
    Shadow& s = shadow_[g];
    if (checks_.async_hazards) {
      if (!same_pipe && (s.writes | s.reads) != 0) {
        launch.fault(origin, format("asynchronous write of shared memory 0x%x while the operation "
                                    "of line %d still %s it",
                                    g * kGranule, s.line, s.writes != 0 ? "writes" : "reads"));
      }
      ++s.writes;
      s.line = origin.line;
    }
    s.writer = 0;
    s.written = true;
  }
}

void SharedMemory::end_async_write(uint32_t offset, uint32_t bytes) {
  if (!checks_.async_hazards || bytes == 0) return;
  for (uint32_t g = offset / kGranule, last = (offset + bytes - 1) / kGranule; g <= last; ++g)
    --shadow_[g].writes;
}

void SharedMemory::begin_async_read(Launch& launch, uint32_t offset, uint32_t bytes,
                                    const Origin& origin, bool same_pipe) {
  if (bytes == 0) return;
  const uint32_t last = (offset + bytes - 1) / kGranule;
  for (uint32_t g = offset / kGranule; g <= last; ++g) {
    Shadow& s = shadow_[g];
    if (checks_.proxy_fences && s.writer != 0) {
      Cluster& cluster = origin.cta->cluster();
      const uint32_t index = (s.writer >> 20) - 1;
      const uint32_t per_cta = static_cast<uint32_t>(origin.cta->warps().size());
      const uint32_t rank = index / per_cta, warp = index % per_cta;
      if (rank < cluster.size() &&
          !cluster.cta(rank).warps()[warp]->proxy_fenced(s.writer & 0xFFFFF)) {
        launch.fault(origin, format("the asynchronous proxy reads shared memory 0x%x that warp %u "
                                    "of the CTA with rank %u wrote without a "
                                    "fence.proxy.async after it",
                                    g * kGranule, warp, rank));
      }
    }
    if (checks_.async_hazards) {
      if (!same_pipe && s.writes != 0) {
        launch.fault(origin, format("asynchronous read of shared memory 0x%x while the operation "
                                    "of line %d still writes it",
                                    g * kGranule, s.line));
      }
      if (checks_.uninitialized && !s.written) {
        launch.fault(origin,
                     format("asynchronous read of shared memory 0x%x that nothing has written",
                            g * kGranule));
      }
      ++s.reads;
      if (s.writes == 0) s.line = origin.line;
    }
  }
}

void SharedMemory::end_async_read(uint32_t offset, uint32_t bytes) {
  if (!checks_.async_hazards || bytes == 0) return;
  for (uint32_t g = offset / kGranule, last = (offset + bytes - 1) / kGranule; g <= last; ++g)
    --shadow_[g].reads;
}

void SharedMemory::read_conflict(Warp& warp, uint32_t granule) {
  warp.fault(
      "read of shared memory 0x%x while the asynchronous operation of line %d still writes it",
      granule * kGranule, shadow_[granule].line);
}

void SharedMemory::read_uninitialized(Warp& warp, uint32_t granule) {
  warp.fault("read of shared memory 0x%x that nothing has written", granule * kGranule);
}

void SharedMemory::write_conflict(Warp& warp, uint32_t granule) {
  const Shadow& s = shadow_[granule];
  warp.fault("write of shared memory 0x%x while the asynchronous operation of line %d still %s it",
             granule * kGranule, s.line, s.writes != 0 ? "writes" : "reads");
}

}  // namespace bwgemm::emulator
