// One decoded instruction and what executing it means.
//
// Registers live in a per-warp file of rows; one row is 32 lanes of 32 bits. A 64-bit register
// takes two consecutive rows, read as uint64_t[32]; a 128-bit one four rows, uint64_t[32] of low
// halves then uint64_t[32] of high halves. 8- and 16-bit registers take one row and are
// zero-extended. Immediates, variable addresses and special registers that do not change during a
// launch are rows too, filled when the warp starts: an instruction never asks what kind of source
// it has. Predicates are one lane mask each, in an array of their own.
#pragma once

#include <cstdint>

namespace bwgemm::emulator {

class Warp;
struct Instr;

using Row = uint32_t;   // index of a register's first row
using Pred = uint32_t;  // index of a predicate; kPredNot set: its complement

constexpr Pred kPredNot = 0x80000000u;
constexpr Row kNoRow = 0xFFFFFFFFu;  // '_' as a destination, or an absent operand
constexpr uint32_t kFullMask = 0xFFFFFFFFu;

enum class Step : uint8_t {
  kNext,   // done, go to the next instruction
  kJump,   // the instruction has set the program counter of the group (Warp::branch, ...)
  kBlock,  // the group was parked by Warp::block: this instruction runs again when it is woken
  kYield,  // done, and let other warps run
  kExit,   // the active lanes have left the kernel
};

// Executes `in` for the lanes of `mask` (active lanes whose guard holds; never 0).
using ExecFn = Step (*)(Warp& warp, const Instr& in, uint32_t mask);

enum InstrFlags : uint16_t {
  // .aligned: all live lanes of the warp have to arrive before the instruction runs (the machine
  // parks early ones).
  kConverge = 1,
  // Reads or writes registers that may be undefined (undefined.h).
  kTracked = 2,
  // Not for a warp of which lanes have exited: .aligned instructions but barriers.
  kWholeWarp = 8,
  // Writes registers that wgmma reads or writes (Kernel::wgmma_rows).
  kTouches = 4,
};

// base register + displacement; row == kNoRow: the displacement is the address.
struct Address {
  Row row = kNoRow;
  bool wide = false;  // the base is a 64-bit register
  int64_t offset = 0;
};

struct Instr {
  ExecFn exec = nullptr;
  const void* aux =
      nullptr;  // what a family needs beyond the fields below, made by Decoder::make_aux
  Row op[6] = {kNoRow, kNoRow, kNoRow, kNoRow, kNoRow, kNoRow};  // by convention destination first
  Address addr;
  int64_t imm = 0;
  uint32_t target = 0;  // branch target
  int32_t line = 0;
  Pred guard = 0;
  bool guarded = false;
  uint8_t sub = 0;  // small family-specific selectors
  uint16_t flags = 0;
  const char* name = "";  // mnemonic, static for the life of the kernel
};

}  // namespace bwgemm::emulator
