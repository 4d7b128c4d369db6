// What one thread of control knows to have happened: vector clocks over the actors of a launch.
//
// An actor is a warp, an mbarrier (its completed phases) or a queue of asynchronous operations that
// complete in order (bulk groups, tensor-core batches, ...). Actors are numbered within a cluster.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace bwgemm::emulator {

// Happened-before as it looks to ordinary accesses; to those of the asynchronous proxy, which see
// ordinary writes only beyond a proxy fence; to those of tensor memory, beyond tcgen05.fence on the
// other side; and in mere time, relaxed synchronisation included.
enum class View : uint8_t { kGeneric, kAsync, kTensor, kTime };
constexpr size_t kViews = 4;

struct Moment {
  uint32_t at[kViews] = {0, 0, 0, 0};
};

class Knowledge {
 public:
  uint32_t of(uint32_t cluster, uint32_t actor, View view) const {
    for (const Chunk& chunk : chunks_) {
      if (chunk.cluster != cluster) continue;
      return actor < chunk.actors.size() ? chunk.actors[actor].at[static_cast<size_t>(view)] : 0;
    }
    return 0;
  }
  Moment& moment(uint32_t cluster, uint32_t actor) {
    std::vector<Moment>& actors = chunk(cluster);
    if (actor >= actors.size()) actors.resize(actor + 1);
    return actors[actor];
  }
  // In every view.
  void learn(uint32_t cluster, uint32_t actor, uint32_t clock) {
    for (uint32_t& at : moment(cluster, actor).at) at = std::max(at, clock);
  }
  void learn(uint32_t cluster, uint32_t actor, uint32_t clock, View view) {
    uint32_t& at = moment(cluster, actor).at[static_cast<size_t>(view)];
    at = std::max(at, clock);
  }
  void join(const Knowledge& other) {
    for (const Chunk& from : other.chunks_) {
      std::vector<Moment>& to = chunk(from.cluster);
      if (to.size() < from.actors.size()) to.resize(from.actors.size());
      uint32_t* a = to.data()->at;
      const uint32_t* b = from.actors.data()->at;
      for (size_t i = 0; i < from.actors.size() * kViews; ++i) a[i] = std::max(a[i], b[i]);
    }
  }
  // Only the time of the other.
  void join_time(const Knowledge& other) {
    constexpr size_t kTime = static_cast<size_t>(View::kTime);
    for (const Chunk& from : other.chunks_) {
      std::vector<Moment>& to = chunk(from.cluster);
      if (to.size() < from.actors.size()) to.resize(from.actors.size());
      for (size_t i = 0; i < from.actors.size(); ++i)
        to[i].at[kTime] = std::max(to[i].at[kTime], from.actors[i].at[kTime]);
    }
  }
  // fence.proxy.async: what ordinary accesses see, asynchronous ones now see too.
  void fence_proxy() {
    for (Chunk& chunk : chunks_) {
      for (Moment& m : chunk.actors) {
        uint32_t& async = m.at[static_cast<size_t>(View::kAsync)];
        async = std::max(async, m.at[static_cast<size_t>(View::kGeneric)]);
      }
    }
  }
  bool empty() const { return chunks_.empty(); }
  void clear() { chunks_.clear(); }

 private:
  struct Chunk {
    uint32_t cluster;
    std::vector<Moment> actors;
  };
  std::vector<Moment>& chunk(uint32_t cluster) {
    for (Chunk& chunk : chunks_) {
      if (chunk.cluster == cluster) return chunk.actors;
    }
    chunks_.push_back({cluster, {}});
    return chunks_.back().actors;
  }
  std::vector<Chunk> chunks_;  // one per cluster that something is known of: mostly one
};

}  // namespace bwgemm::emulator
