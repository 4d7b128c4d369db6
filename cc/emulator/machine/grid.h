// One grid, run by one thread or by several.
//
// A worker is a Launch: it has its share of the SMs, and runs the clusters that it starts on them
// from beginning to end. Workers share global memory, and the order in which clusters start.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

namespace bwgemm::emulator {

struct Grid {
  explicit Grid(uint32_t workers) : workers(workers), running(workers) {}

  const uint32_t workers;
  std::atomic<uint64_t> next_cluster{0};  // first one not started
  std::atomic<uint64_t> finished_clusters{0};
  std::atomic<uint32_t> running;     // workers that are not done
  std::atomic<uint32_t> stale{0};    // of them, those to which nothing has happened for long
  std::atomic<bool> stopped{false};  // one has failed
  std::mutex memory;                 // read-modify-writes of global memory
  std::mutex output;                 // what kernels print

  bool shared() const { return workers > 1; }
};

// Thrown in a worker when another one has failed.
struct Stopped {};

}  // namespace bwgemm::emulator
