// Keeps the trace events of one launch, with names interned, in a form that Python can take as one
// array.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "emulator/machine/config.h"

namespace bwgemm::emulator {

// One event. jax_bwgemm/emulator/trace.py declares the same layout as a NumPy structured type.
struct TraceRow {
  uint64_t begin, end;
  uint64_t arg0, arg1;
  uint32_t cta, sm;
  int32_t warp, line;
  uint32_t name;  // index into TraceRecorder::names()
  uint32_t kind;  // TraceEvent::Kind
};
static_assert(sizeof(TraceRow) == 56);

class TraceRecorder final : public TraceSink {
 public:
  // Events past `limit` are counted, not kept: a long launch must not fill the memory.
  explicit TraceRecorder(size_t limit) : limit_(limit) {}

  void event(const TraceEvent& e) override {
    if (rows_.size() >= limit_) {
      ++dropped_;
      return;
    }
    rows_.push_back({e.begin, e.end, e.arg0, e.arg1, e.cta, e.sm, e.warp, e.line, NameIndex(e.name),
                     static_cast<uint32_t>(e.kind)});
  }

  const std::vector<TraceRow>& rows() const { return rows_; }
  const std::vector<std::string>& names() const { return names_; }
  uint64_t dropped() const { return dropped_; }

 private:
  // Event names live as long as their kernel, so equal pointers are equal names.
  uint32_t NameIndex(const char* name) {
    const auto [it, is_new] = index_.try_emplace(name, static_cast<uint32_t>(names_.size()));
    if (is_new) names_.emplace_back(name);
    return it->second;
  }

  size_t limit_;
  uint64_t dropped_ = 0;
  std::vector<TraceRow> rows_;
  std::vector<std::string> names_;
  std::unordered_map<const char*, uint32_t> index_;
};

}  // namespace bwgemm::emulator
