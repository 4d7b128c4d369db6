#include "emulator/machine/livelock.h"

#include <cstring>

#include "emulator/machine/kernel.h"
#include "emulator/machine/warp.h"

namespace bwgemm::emulator {
namespace {

// Times that a warp must be in its state again: what a state leaves out (which group of lanes ran
// first, whether a wait was let go early) is drawn anew each time.
constexpr uint32_t kTimes = 32;
// Polls, and windows of as many, after which a warp is given up on whose state changes.
constexpr uint64_t kPolls = uint64_t{1} << 16;
constexpr uint32_t kWindows = 8;

uint64_t mixed(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9E3779B97F4A7C15ull;
  return hash ^ (hash >> 29);
}

uint64_t hash_of(const void* data, size_t bytes, uint64_t hash) {
  const uint8_t* at = static_cast<const uint8_t*>(data);
  for (; bytes >= 8; at += 8, bytes -= 8) {
    uint64_t word;
    std::memcpy(&word, at, 8);
    hash = mixed(hash, word);
  }
  uint64_t rest = 0;
  if (bytes != 0) std::memcpy(&rest, at, bytes);  // of nothing the address may be null
  return mixed(hash, rest);
}

// It goes on without anybody else's help.
bool runs(const LaneGroup& g) {
  return g.state == GroupState::kReady || (g.state == GroupState::kWaiting && g.deadline != 0);
}

}  // namespace

bool LivelockWatch::hopeless(Warp& w, const std::vector<Warp*>& warps) {
  uint64_t place = w.live_;
  uint32_t running = 0;
  for (const LaneGroup& g : w.groups_) {
    place += mixed(mixed(g.mask, g.pc), static_cast<uint64_t>(g.state));  // in any order
    if (runs(g)) running |= g.mask;
  }
  const auto [at, fresh] = seen_.try_emplace(&w);
  Seen& s = at->second;
  if (s.settled && running != 0) return false;
  if (fresh || w.polls_ - s.polls >= kPolls) {
    s.windows = !fresh && (running & ~w.polled_) == 0 ? s.windows + 1 : 0;
    s.polls = w.polls_;
    w.polled_ = 0;
  }
  ++s.looks;
  const auto state = [&] {
    const size_t words = size_t{w.kernel_->rows} * kWarpSize;
    uint64_t hash = hash_of(w.regs_, words * sizeof(uint32_t), place);
    hash = hash_of(w.preds_, w.kernel_->preds * sizeof(uint32_t), hash);
    return hash_of(w.local_.get(), w.local_ ? size_t{w.kernel_->local_bytes} * kWarpSize : 0, hash);
  };
  const bool again = !fresh && place == s.place && (running & ~w.ran_) == 0 && state() == s.state;
  if (again) {
    if (!w.read_time_) ++s.times;
  } else if (fresh || s.looks > s.patience) {
    // The state before may have been on the way to the circle: longer each time.
    s.place = place;
    s.state = state();
    s.times = 0;
    s.looks = 0;
    s.patience *= 2;
  }
  if (again || s.looks == 0) {
    w.ran_ = 0;
    w.read_time_ = false;
  }
  s.settled = running == 0 || s.times >= kTimes || s.windows >= kWindows;
  if (!s.settled) return false;
  for (const Warp* other : warps) {
    bool blocked = true;
    for (const LaneGroup& g : other->groups_) blocked &= !runs(g);
    if (blocked) continue;
    const auto found = seen_.find(other);
    if (found == seen_.end() || !found->second.settled) return false;
  }
  return true;
}

}  // namespace bwgemm::emulator
