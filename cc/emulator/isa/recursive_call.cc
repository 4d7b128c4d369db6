// Calls of functions that calls lead back to. Registers and .param variables have one place each,
// so a call saves those of a caller that it may lead to, and its return puts them back.
#include <cstring>

#include "emulator/isa/calls.h"
#include "emulator/isa/isa.h"
#include "emulator/isa/lanes.h"

namespace bwgemm::emulator {
namespace {

constexpr size_t kMostSavedWords = size_t{1} << 17;  // of a lane

// Calls visit(word) for every word that is to be saved, each time in the same order.
template <class Visit>
void visit_words(Warp& w, const RecursiveFunction& f, int lane, Visit&& visit) {
  const auto visit_double = [&](Row row) {
    uint64_t& value = w.r64(row)[lane];
    uint32_t halves[2];
    std::memcpy(halves, &value, sizeof value);
    for (uint32_t& half : halves) visit(half);
    std::memcpy(&value, halves, sizeof value);
  };
  for (const Row row : f.words) visit(w.r32(row)[lane]);
  for (const Row row : f.double_words) visit_double(row);
  visit(w.r32(f.return_row)[lane]);
  visit_double(f.frame_row);
  for (Pred pred = f.first_pred; pred < f.end_pred; ++pred) {
    uint32_t value = w.pred(pred) >> lane & 1;
    visit(value);
    w.set_pred(pred, 1u << lane, value << lane);
  }
  for (const RecursiveFunction::Bytes& param : f.params) {
    for (uint32_t at = 0; at < param.count; at += 4) {
      const uint32_t bytes = param.count - at < 4 ? param.count - at : 4;
      uint8_t* memory = w.local(param.offset + at, lane, bytes, 1);
      uint32_t word = 0;
      std::memcpy(&word, memory, bytes);
      visit(word);
      std::memcpy(memory, &word, bytes);
    }
  }
}

}  // namespace

Step exec_recursive_call(Warp& w, const Instr& in, uint32_t mask) {
  const auto& p = *static_cast<const Passing*>(in.aux);
  const RecursiveFunction& callee = *p.callee;
  Warp::CallStack& stack = w.call_stack();
  uint64_t* top = w.r64(p.stack_row);
  for_lanes(mask, [&](int lane) {
    std::vector<uint32_t>& saved = stack.saved[lane];
    if (top[lane] + callee.frame_bytes > w.kernel().local_bytes || saved.size() > kMostSavedWords)
      w.fault("recursive call of '%s': the stack of lane %d is full", p.name.c_str(), lane);
    if (p.caller != nullptr)
      visit_words(w, *p.caller, lane, [&](uint32_t& word) { saved.push_back(word); });
  });
  pass_arguments(w, p, mask, static_cast<uint32_t>(in.imm));
  for_lanes(mask, [&](int lane) {
    w.r64(callee.frame_row)[lane] = top[lane];
    for (const auto& [row, offset] : callee.addresses) w.r64(row)[lane] = top[lane] + offset;
    w.note_local(top[lane], lane, callee.frame_bytes, false);
    top[lane] += callee.frame_bytes;
  });
  return w.branch(mask, in.target);
}

Step exec_recursive_return_site(Warp& w, const Instr& in, uint32_t mask) {
  const auto& p = *static_cast<const Passing*>(in.aux);
  Warp::CallStack& stack = w.call_stack();
  mask &= stack.returned;
  stack.returned &= ~mask;
  for_lanes(mask, [&](int lane) {
    // Results are where the caller's own values may have to come back to.
    std::vector<uint8_t> results;
    const auto take = [&](uint32_t offset, uint32_t bytes) {
      const uint8_t* from = w.local(offset, lane, bytes, 1);
      results.insert(results.end(), from, from + bytes);
    };
    for (const auto& c : p.results) take(c.from, c.bytes);
    for (const auto& r : p.result_registers) take(r.offset, static_cast<uint32_t>(r.bits / 8));
    w.r64(p.stack_row)[lane] = w.r64(p.callee->frame_row)[lane];
    if (p.caller != nullptr) {
      std::vector<uint32_t>& saved = stack.saved[lane];
      size_t count = 0;
      visit_words(w, *p.caller, lane, [&](uint32_t&) { ++count; });
      size_t at = saved.size() - count;
      visit_words(w, *p.caller, lane, [&](uint32_t& word) { word = saved[at++]; });
      saved.resize(saved.size() - count);
    }
    const uint8_t* from = results.data();
    for (const auto& c : p.results) {
      std::memcpy(w.local(c.to, lane, c.bytes, 1), from, c.bytes);
      from += c.bytes;
    }
    for (const auto& r : p.result_registers) {
      uint64_t value = 0;
      std::memcpy(&value, from, static_cast<size_t>(r.bits / 8));
      from += r.bits / 8;
      if (r.bits == 64) {
        w.r64(r.row)[lane] = value;
      } else {
        w.r32(r.row)[lane] = static_cast<uint32_t>(value);
      }
    }
  });
  return Step::kNext;
}

}  // namespace bwgemm::emulator
