// What one thread of control knows to have happened: vector clocks over the actors of a launch.
//
// An actor is a warp, an mbarrier (its completed phases) or a queue of asynchronous operations that
// complete in order (bulk groups, tensor-core batches, ...). Actors are numbered within a cluster.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace bwgemm::emulator {

// Happened-before as it looks to ordinary accesses; to ordinary reads of what was written, which
// synchronisation of too narrow a scope does not show; to accesses of the asynchronous proxy to
// shared and to global memory, which see ordinary writes only beyond a proxy fence; to those of
// tensor memory, beyond tcgen05.fence on the other side; and in mere time, relaxed synchronisation
// included.
enum class View : uint8_t { kGeneric, kWritten, kAsync, kAsyncGlobal, kTensor, kTime };
constexpr size_t kViews = 6;
constexpr bool is_async(View view) { return view == View::kAsync || view == View::kAsyncGlobal; }

struct Moment {
  uint32_t at[kViews] = {};
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
  // The owner's own clock: no change in what it knows of others.
  void learn_own(uint32_t cluster, uint32_t actor, uint32_t clock, View view) {
    Moment& moment = find(cluster, actor);
    const auto raise = [&](View one) {
      uint32_t& at = moment.at[static_cast<size_t>(one)];
      at = std::max(at, clock);
    };
    raise(view);
    if (view == View::kGeneric) raise(View::kWritten);
  }
  // How often something may have been learned of others.
  uint64_t changes() const { return changes_; }
  // In every view.
  void learn(uint32_t cluster, uint32_t actor, uint32_t clock) {
    ++changes_;
    for (uint32_t& at : find(cluster, actor).at) at = std::max(at, clock);
  }
  void learn(uint32_t cluster, uint32_t actor, uint32_t clock, View view) {
    ++changes_;
    learn_own(cluster, actor, clock, view);
  }
  // What the other knows of one actor.
  void join(const Knowledge& other, uint32_t cluster, uint32_t actor) {
    ++changes_;
    Moment& to = find(cluster, actor);
    for (size_t view = 0; view < kViews; ++view)
      to.at[view] = std::max(to.at[view], other.of(cluster, actor, static_cast<View>(view)));
  }
  void join(const Knowledge& other) {
    ++changes_;
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
    join_views(other, [](View view) { return view == View::kTime; });
  }
  // All but that its writes can be read.
  void join_order(const Knowledge& other) {
    join_views(other, [](View view) { return view != View::kWritten; });
  }
  // fence.proxy.async: what ordinary accesses see, asynchronous ones now see too.
  void fence_proxy(View view) {
    ++changes_;
    for (Chunk& chunk : chunks_) {
      for (Moment& m : chunk.actors) {
        uint32_t& async = m.at[static_cast<size_t>(view)];
        async = std::max(async, m.at[static_cast<size_t>(View::kGeneric)]);
      }
    }
  }
  bool empty() const { return chunks_.empty(); }
  void clear() {
    ++changes_;
    chunks_.clear();
  }
  // What both know, where the other knows all that this one does but of this actor.
  void catch_up(const Knowledge& other, uint32_t cluster, uint32_t actor) {
    const uint64_t changes = changes_;
    const Moment own = find(cluster, actor);
    chunks_ = other.chunks_;
    changes_ = changes + 1;
    Moment& now = find(cluster, actor);
    for (size_t view = 0; view < kViews; ++view)
      now.at[view] = std::max(now.at[view], own.at[view]);
  }

 private:
  struct Chunk {
    uint32_t cluster;
    std::vector<Moment> actors;
  };
  template <class Joins>
  void join_views(const Knowledge& other, Joins&& joins) {
    ++changes_;
    for (const Chunk& from : other.chunks_) {
      std::vector<Moment>& to = chunk(from.cluster);
      if (to.size() < from.actors.size()) to.resize(from.actors.size());
      for (size_t i = 0; i < from.actors.size(); ++i) {
        for (size_t view = 0; view < kViews; ++view) {
          if (joins(static_cast<View>(view)))
            to[i].at[view] = std::max(to[i].at[view], from.actors[i].at[view]);
        }
      }
    }
  }
  Moment& find(uint32_t cluster, uint32_t actor) {
    std::vector<Moment>& actors = chunk(cluster);
    if (actor >= actors.size()) actors.resize(actor + 1);
    return actors[actor];
  }
  std::vector<Moment>& chunk(uint32_t cluster) {
    for (Chunk& chunk : chunks_) {
      if (chunk.cluster == cluster) return chunk.actors;
    }
    chunks_.push_back({cluster, {}});
    return chunks_.back().actors;
  }
  std::vector<Chunk> chunks_;  // one per cluster that something is known of: mostly one
  uint64_t changes_ = 0;
};

}  // namespace bwgemm::emulator
