// Notices that nothing will ever happen again although warps run: they poll for what nobody does.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

namespace bwgemm::emulator {

class Warp;

// Asked while nothing happens that other warps could see. A warp that is in a state it was in
// before will be so for ever. One that counts its attempts, or looks at a clock, never is: it is
// given up on after very many.
class LivelockWatch {
 public:
  // Something has happened.
  void reset() { seen_.clear(); }
  // After `w` has run: whether each of `warps` is blocked or runs in a circle.
  bool hopeless(Warp& w, const std::vector<Warp*>& warps);

 private:
  struct Seen {
    uint64_t place = 0, state = 0;  // hashes
    uint32_t times = 0;             // that the warp was there again
    uint64_t looks = 0;             // since the state was taken
    uint64_t patience = 64;         // looks before another one is
    uint64_t polls = 0;             // before the last window
    uint32_t windows = 0;           // of so many polls, in each of which all lanes did
    bool settled = false;
  };
  std::unordered_map<const Warp*, Seen> seen_;
};

}  // namespace bwgemm::emulator
