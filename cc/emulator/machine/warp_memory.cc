// Where a warp's addresses lead: bounds, windows, and what the rules note of an access.
#include <cstring>

#include "emulator/machine/kernel.h"
#include "emulator/machine/launch.h"
#include "emulator/machine/warp.h"

namespace bwgemm::emulator {

Warp::SharedRef Warp::shared(uint64_t address, uint32_t bytes, uint32_t align, bool cluster) {
  if ((address & kWindowMask) == kSharedWindow) address -= kSharedWindow;
  if ((address & (align - 1)) != 0)
    fault("shared address 0x%llx is not a multiple of %u", static_cast<unsigned long long>(address),
          align);
  const uint64_t rank = address >> kSharedRankShift;
  const uint32_t offset = static_cast<uint32_t>(address) & ((1u << kSharedRankShift) - 1);
  Cta* cta = cta_;
  if (rank != cta->rank()) {
    if (!cluster || rank >= cta->cluster().size()) {
      fault("address 0x%llx is not in the shared memory of this CTA%s (its window starts at 0x%x)",
            static_cast<unsigned long long>(address), cluster ? " or of its cluster" : "",
            cta->rank() << kSharedRankShift);
    }
    cta = &cta->cluster().cta(static_cast<uint32_t>(rank));
    if (cta->exited()) {
      report(Rule::kCtaExit, format("shared memory of CTA %u, which has exited", cta->linear()));
    }
  }
  if (!cta->shared().contains(offset, bytes)) {
    fault(
        "shared address 0x%llx: %u bytes at offset 0x%x are outside the CTA's shared memory [0x%x, "
        "0x%x)",
        static_cast<unsigned long long>(address), bytes, offset, cta->shared().first(),
        cta->shared().size());
  }
  return {cta, offset};
}

uint8_t* Warp::global(uint64_t address, uint64_t bytes, uint32_t align, bool write) {
  if ((address & (align - 1)) != 0)
    fault("global address 0x%llx is not a multiple of %u", static_cast<unsigned long long>(address),
          align);
  uint8_t* pointer = launch_->memory().find(address, bytes, write);
  if (pointer == nullptr) {
    fault("%s of %llu bytes at global address 0x%llx: %s", write ? "write" : "read",
          static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(address),
          launch_->memory().describe(address).c_str());
  }
  return pointer;
}

uint8_t* Warp::local(uint64_t offset, int lane, uint32_t bytes, uint32_t align) {
  if ((offset & (align - 1)) != 0)
    fault("local address 0x%llx is not a multiple of %u", static_cast<unsigned long long>(offset),
          align);
  const uint32_t size = kernel_->local_bytes;
  if (offset > size || bytes > size - offset) {
    fault("local address 0x%llx: %u bytes are outside the thread's %u bytes",
          static_cast<unsigned long long>(offset), bytes, size);
  }
  return local_.get() + size_t{size} * static_cast<size_t>(lane) + offset;
}

uint8_t* Warp::stored_local(uint64_t offset, int lane, uint32_t bytes, uint32_t align) {
  uint8_t* at = local(offset, lane, bytes, align);
  note_local(offset, lane, bytes, true);
  return at;
}

uint8_t* Warp::local_written(uint64_t offset, int lane) {
  return local_written_.data() + size_t{kernel_->local_bytes} * static_cast<size_t>(lane) + offset;
}

const uint8_t* Warp::param(uint64_t offset, uint32_t bytes, uint32_t align) {
  if ((offset & (align - 1)) != 0)
    fault("parameter address 0x%llx is not a multiple of %u",
          static_cast<unsigned long long>(offset), align);
  const size_t size = launch_->params().size();
  if (offset > size || bytes > size - offset) {
    fault("parameter address 0x%llx: %u bytes are outside the kernel's %zu bytes of parameters",
          static_cast<unsigned long long>(offset), bytes, size);
  }
  return launch_->params().data() + offset;
}

void Warp::note_global(uint64_t address, uint64_t bytes, bool write, uint16_t flags) {
  Races& races = launch_->races();
  if (!races.on() || !launch_->memory().last_found_writable()) return;
  flags &= ~kVolatile;
  races.access_global(*this, address, bytes, history.stamp(current_instr_->line, flags), write,
                      origin());
}

uint8_t* Warp::generic(uint64_t address, int lane, uint32_t bytes, uint32_t align, bool write,
                       uint16_t flags, const void* values) {
  if ((flags & kAllLanes) == 0) flags |= lane_flags(lane);
  const auto same = [&](const uint8_t* at) {
    const bool unchanged = values != nullptr && std::memcmp(at, values, bytes) == 0;
    return static_cast<uint16_t>(flags | (unchanged ? kSameValue : 0));
  };
  switch (address & kWindowMask) {
    case kSharedWindow: {
      const SharedRef ref = shared(address, bytes, align, true);
      SharedMemory& memory = ref.cta->shared();
      uint8_t* at = memory.data(ref.offset);
      if (write) {
        memory.note_write(*this, ref.offset, bytes, proxy_stamp(), same(at));
      } else {
        memory.check_read(*this, ref.offset, bytes, flags);
      }
      return at;
    }
    case kLocalWindow:
      return write ? stored_local(address - kLocalWindow, lane, bytes, align)
                   : local(address - kLocalWindow, lane, bytes, align);
    case kParamWindow:
      if (write) fault("write to the kernel's parameters");
      return const_cast<uint8_t*>(param(address - kParamWindow, bytes, align));
    default: {
      uint8_t* at = global(address, bytes, align, write);
      note_global(address, bytes, write, same(at));
      return at;
    }
  }
}

}  // namespace bwgemm::emulator
