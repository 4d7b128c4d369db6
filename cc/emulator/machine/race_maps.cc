// Reads of global memory that do not see what a kernel writes there: by the tensor map proxy, and
// by ld.global.nc.
#include <algorithm>
#include <cstring>

#include "emulator/machine/launch.h"
#include "emulator/machine/race.h"

namespace bwgemm::emulator {

std::vector<Stamp> Races::writes_of_map(uint64_t address) {
  std::vector<Stamp> writes;
  for (uint64_t at = address, last = address + 128; at < last;) {
    const uint64_t page = at / kPage, end = std::min(last, (page + 1) * kPage);
    page_shadow(page).visit(static_cast<uint32_t>(at % kPage), static_cast<uint32_t>(end - at),
                            false, [&](Cell& cell, uint32_t) {
                              writes.push_back(cell.write);
                              for (const Stamp& other : cell.others) {
                                if ((other.flags & kUpdates) != 0) writes.push_back(other);
                              }
                            });
    at = end;
  }
  return writes;
}

void Races::fence_tensor_map(Warp& warp, uint64_t address) {
  if (!on_ || !watches_global_) return;
  const WarpHistory& history = warp.history;
  std::vector<Stamp> writes = writes_of_map(address);
  std::vector<Stamp>& fenced = warp.cta().history.maps[address];
  fenced.resize(writes.size());
  for (size_t i = 0; i < writes.size(); ++i) {
    const bool own = writes[i].actor == history.actor && writes[i].cluster == history.cluster;
    if ((own || knows(history.knows, writes[i], View::kGeneric)) &&
        knows(released_maps_, writes[i], View::kGeneric)) {
      fenced[i] = writes[i];
    }
  }
}

void Races::release_tensor_maps(Warp& warp) {
  if (!on_ || !watches_global_) return;
  warp.history.release();
  released_maps_.join(warp.history.knows);
}

void Races::read_tensor_map(Warp& issuer, uint64_t address, const Origin& origin) {
  if (!on_ || !watches_global_ || !launch_->watches(Rule::kProxyFence)) return;
  const std::vector<Stamp> writes = writes_of_map(address);
  const auto fenced = issuer.cta().history.maps.find(address);
  const std::vector<Stamp>* seen =
      fenced != issuer.cta().history.maps.end() ? &fenced->second : nullptr;
  for (size_t i = 0; i < writes.size(); ++i) {
    if (writes[i].cluster < first_cluster_) continue;  // 0: none; a read reports earlier grids
    if (seen != nullptr && i < seen->size() &&
        std::memcmp(&(*seen)[i], &writes[i], sizeof(Stamp)) == 0)
      continue;
    launch_->report(
        Rule::kProxyFence, origin,
        format("uses the tensor map in %s after the write of %s without "
               "fence.proxy.tensormap::generic .release and .acquire in between",
               launch_->memory().describe(address).c_str(), describe(writes[i]).c_str()));
    return;
  }
}

void Races::read_cached(Warp&, uint64_t address, uint64_t bytes, const Origin& origin) {
  if (!on_ || !watches_global_ || !launch_->watches(Rule::kCachedRead)) return;
  const Stamp* writer = nullptr;
  for (uint64_t at = address; at < address + bytes;) {
    const uint64_t page = at / kPage, end = std::min(address + bytes, (page + 1) * kPage);
    page_shadow(page).visit(
        static_cast<uint32_t>(at % kPage), static_cast<uint32_t>(end - at), false,
        [&](Cell& cell, uint32_t) {
          if (cell.write.cluster >= first_cluster_) writer = &cell.write;
          for (const Stamp& other : cell.others) {
            if ((other.flags & kUpdates) != 0 && other.cluster >= first_cluster_) writer = &other;
          }
        });
    at = end;
  }
  if (writer == nullptr) return;
  launch_->report(Rule::kCachedRead, origin,
                  format("ld.global.nc of %s, which may hold what was there before the write of %s",
                         launch_->memory().describe(address).c_str(), describe(*writer).c_str()));
}

}  // namespace bwgemm::emulator
