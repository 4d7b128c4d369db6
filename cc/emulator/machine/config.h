// What a launch is given and what it hands back: configuration, statistics, trace events.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "emulator/machine/error.h"
#include "emulator/machine/rules.h"

namespace bwgemm::emulator {

struct Dim3 {
  uint32_t x = 1, y = 1, z = 1;
  uint64_t count() const { return uint64_t{x} * y * z; }
};

inline std::string to_string(Dim3 d) { return format("(%u,%u,%u)", d.x, d.y, d.z); }

// One span or instant of the timeline. Times are scheduler ticks (one executed warp instruction =
// one tick).
struct TraceEvent {
  enum class Kind : uint8_t { kWait, kAsync, kInstant };
  Kind kind = Kind::kInstant;
  const char* name = "";  // static storage: "mbarrier.try_wait", "tma.load", "tcgen05.mma"
  uint32_t cta = 0;       // linear CTA index in the grid
  uint32_t sm = 0;
  int32_t warp = -1;  // warp in the CTA, -1: none
  int32_t line = 0;   // PTX line that caused it
  uint64_t begin = 0, end = 0;
  uint64_t arg0 = 0, arg1 = 0;  // by name: bytes, address, phase ...
};

class Races;

class TraceSink {
 public:
  virtual ~TraceSink() = default;
  virtual void event(const TraceEvent& event) = 0;
};

struct LaunchConfig {
  uint64_t seed = 0;
  int sm_count = 4;
  uint64_t step_limit = uint64_t{1} << 36;  // warp instructions
  size_t shared_per_sm = 228 * 1024;        // bytes, decides how many CTAs fit on one SM
  size_t shared_per_cta = 227 * 1024;
  Rules rules;
  bool races = true;  // keep the history of accesses that the rules about order need (race.h)
  // tcgen05.ld and tcgen05.st are done when they are issued, as hardware is seen to do for one
  // thread: programs that leave out their waits run.
  bool relaxed = false;
  // Threads that run clusters side by side. With more than one the order is no longer the seed's,
  // and accesses of global memory by different warps are not compared.
  int threads = 1;
  bool cooperative = false;     // the grid may synchronise: all its CTAs must fit at a time
  uint64_t grid_workspace = 0;  // where it does; set by launch()
  TraceSink* trace = nullptr;
  // Not null: what orders the accesses of the launch before, if this one may start while that one
  // still runs (programmatic dependent launch); it becomes that of this launch.
  std::shared_ptr<Races>* history = nullptr;
  // What a kernel prints; not set: to standard output.
  std::function<void(const std::string&)> print;
  // Called now and then with (clusters finished, clusters in the grid); returning false stops the
  // launch.
  std::function<bool(uint64_t, uint64_t)> progress;
};

// Waits of the warps with the same index in their CTA (a warp-specialised kernel gives each index
// one role).
struct WarpStats {
  uint64_t instructions = 0;
  uint64_t waits = 0;       // times a warp was parked
  uint64_t wait_ticks = 0;  // ticks it spent parked
  uint64_t mma = 0;         // MMA instructions issued (tcgen05, wgmma, mma.sync)
  uint64_t tma = 0;         // bulk copies issued
};

struct Stats {
  uint64_t instructions = 0;         // warp instructions executed
  uint64_t thread_instructions = 0;  // the same times active lanes
  uint64_t ticks = 0;                // end of the timeline
  uint64_t ctas = 0;
  uint64_t clusters_cancelled = 0;  // taken over through cluster launch control
  uint64_t mma_instructions = 0;
  uint64_t mma_flops = 0;
  uint64_t tma_loads = 0;
  uint64_t tma_load_bytes = 0;  // read from global memory (a multicast counts once)
  uint64_t tma_store_bytes = 0;
  uint64_t global_load_bytes = 0;  // ordinary loads and stores
  uint64_t global_store_bytes = 0;
  uint64_t async_operations = 0;
  std::vector<WarpStats> warps;  // by warp index in the CTA
};

struct LaunchResult {
  bool ok = true;
  ErrorKind kind = ErrorKind::kFault;  // if !ok
  std::string error;                   // message with line number and text
  int line = 0;
  std::string rule;               // that was broken; empty for faults that no rule covers
  std::vector<Warning> warnings;  // of rules that are warnings, in the order of the first breach
  Stats stats;
};

}  // namespace bwgemm::emulator
