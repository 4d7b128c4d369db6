// The shape of one SM90 grouped kernel: operand roles, tiles, shared memory.
//
// The MMA computes P x transpose(Q), P being its M side and Q its N side:
//
//   rows      P = rhs columns, 128 of a tile, Q = lhs rows. The ragged rows lie along N because an
//             MMA may be 8, 16, 24.. columns wide but never less than 64 rows high: few rows fill a
//             narrow tile, and a group's last tile costs what its rows need. The result is
//             transposed on its way to D.
//             It is the other way round, P = lhs rows, for an f32 lhs (see below) and in 8-bit
//             kernels for large groups, since scales of rows cost least along P.
//   contract  P = lhs columns, Q = rhs columns, contracted over the rows of a group.
//
// An f32 operand is P, whichever it is: it is split on its way to the MMA (sm90/split_mma.h). So
// those of contract may be swapped too.
//
// CTAs of a cluster have neighbouring P and the same Q: each loads every second of Q's boxes, into
// both. If P is lhs rows, they have neighbouring Q and the same P.
//
// The two consumer warpgroups either share a tile, 64 rows of P each (cooperative), or own every
// second tile and take turns on the main loop (ping-pong). In ping-pong kernels one's epilogue runs
// under the other's MMAs, which pays if K is short; but a thread keeps the results of all of P, so
// tiles are narrower.
#pragma once

#include <algorithm>

#include "core/cutlass_type.h"
#include "core/ring.h"
#include "grouped/kernel_spec.h"
#include "grouped/schedule.h"
#include "sm90/cta.h"
#include "sm90/high_sums.h"
#include "sm90/mma_types.h"
#include "sm90/stage.h"

namespace bwgemm::grouped::sm90 {

using bwgemm::sm90::kBlock;
using bwgemm::sm90::kConsumers;
using bwgemm::sm90::kThreads;
constexpr int kRing = 4;        // tiles that the scheduler may be ahead
constexpr int kMail = 2;        // tile numbers on their way to the other CTA of a cluster
constexpr int kRowBytes = 128;  // a row of every shared-memory tile: one swizzle line

// What tiles travel through.
struct RingShared {
  Tile ring[kRing];
  uint64_t ring_full[kRing], ring_empty[kRing];
  uint64_t mail_full[kMail], mail_empty[kMail];
  struct alignas(16) {
    int32_t value;
  } mail[kMail];
};

// Shared memory of a linked epilogue, besides the store buffers: see linked_epilogue.h.
template <int kBuffers>
struct EpilogueShared {
  uint64_t loaded[kConsumers][kBuffers];
};
struct NoEpilogueShared {};

// kLinked_: whether an epilogue is linked in (grouped/linked.h). kGated_: whether P's tile is half
// columns of the first matrix of B and half the same columns of the second, whose sums meet in a
// thread.
template <class Spec, bool kLinked_ = false, bool kGated_ = false>
struct Config : Spec {
  static constexpr bool kLinked = kLinked_, kGated = kGated_;
  static constexpr bool kStaged = kLinked && Spec::kSwapAb;  // see linked_epilogue.h
  using Spec::kA, Spec::kAMajor, Spec::kB, Spec::kBMajor, Spec::kClusterM, Spec::kClusterN;
  using Spec::kKGrouped, Spec::kOut, Spec::kSwapAb, Spec::kTileK, Spec::kTileM, Spec::kTileN;
  static constexpr bool kPingpong = Spec::kSchedule == Schedule::kPingpong;
  static constexpr int kAssistants = 0;  // warps of the producer's that read the tiles too
  static_assert(kPingpong || Spec::kSchedule == Schedule::kCooperative);
  static constexpr DType kTypeP = kSwapAb ? kB : kA, kTypeQ = kSwapAb ? kA : kB;
  static constexpr bool kSplitsP = kTypeP == DType::kF32;
  // Main loops of split operands, and linked epilogues, leave few registers for anything else. The
  // former also leave a tile in the ring until its epilogue has read it.
  static constexpr bool kKeepsTiles = kSplitsP, kFewRegisters = kSplitsP || kLinked;
  using InP = typename CutlassType<kTypeP>::type;
  using InQ = typename CutlassType<kTypeQ>::type;
  using Out = typename CutlassType<kOut>::type;
  static_assert(kSplitsP || sizeof(InP) == sizeof(InQ));

  static constexpr bool kAKMajor = kAMajor == AMajor::kK, kBKMajor = kBMajor == BMajor::kK;
  static constexpr bool kPKMajor = kSwapAb ? kBKMajor : kAKMajor;
  static constexpr bool kQKMajor = kSwapAb ? kAKMajor : kBKMajor;
  using P = bwgemm::sm90::Stage<InP, kPKMajor, kTileM, kTileK>;
  using Q = bwgemm::sm90::Stage<InQ, kQKMajor, kTileN, kTileK>;
  // m-grouped: which of the two are the rows of a group.
  static constexpr bool kRowsOnP = !kKGrouped && !kSwapAb, kRowsOnQ = !kKGrouped && kSwapAb;
  // k-grouped: blocks of rows begin at multiples of this, ahead of the group's first row: TMA reads
  // K-major rows from multiples of 16 bytes on, and scales along K are those of whole blocks.
  using Spec::kFirstStep;

  static_assert(kTileM == 2 * kBlock, "one block of P for each consumer, or both for one");
  static_assert(kTileN % 16 == 0 && (kTileN <= 64 || kTileN % 64 == 0) && kTileN <= 256);
  static_assert(kRowsOnQ || kTileN % 64 == 0, "a box is 64 wide");
  static_assert(kTileK * sizeof(InQ) == kRowBytes, "a stage is one swizzle line deep");
  static_assert((kRowsOnP ? kClusterM : kClusterN) == 1);

  static constexpr int kPHalves = kGated ? 2 : 1;
  static constexpr int kPRows = kTileM / kPHalves;  // of P's matrix or matrices, in a tile
  static_assert(!kGated || (kRowsOnQ && kPingpong && P::kBoxRows == kBlock));
  static constexpr int kTileConsumers = kPingpong ? 1 : kConsumers;  // of one tile
  static constexpr int kPBlocks = kTileM / kBlock;
  static constexpr int kOwnBlocks = kPBlocks / kTileConsumers;  // of P, for one consumer
  static constexpr int FirstBlock(int consumer) { return kPingpong ? 0 : consumer * kOwnBlocks; }
  static_assert(kOwnBlocks * kTileN <= 2 * 192, "a thread's registers hold half of these results");

  static constexpr int kCluster = kClusterM * kClusterN;
  static_assert(kCluster == 1 || (kCluster == 2 && kTileN >= 128));
  // What one TMA instruction loads, or stores, of the rows. Small boxes leave room for a fifth
  // stage of the widest ping-pong tile.
  static constexpr int kQBox = std::min(kTileN, kRowsOnQ&& kPingpong ? 32 : kBlock);
  static constexpr int kQBoxes = kTileN / kQBox;
  static constexpr int kPBytes = P::kBytes;
  static constexpr int kQBytes = kTileN * kRowBytes;
  static constexpr int kStageBytes = kPBytes + kQBytes;

  // Part-filled tiles are computed in multiples of this many columns. A smaller step wastes less
  // work but needs more code. The main loop of split operands has the most code, and linking takes
  // longer with more.
  static constexpr bool kFineSteps = kCluster > 1 && kOut != DType::kF32;
  static constexpr int kColumnStep = kRowsOnQ ? std::min(kTileN, kStaged      ? 48
                                                                 : kSplitsP   ? 64
                                                                 : kFineSteps ? 16
                                                                              : 32)
                                              : kTileN;
  // Rows of every tile of a group but the last are a multiple of this.
  static constexpr int kRowStep = kRowsOnP ? kTileM : kColumnStep;

  // Epilogue: each consumer sends its results through buffers of kStoreRows lines of 128 bytes. A
  // staged one loads what it reads into them too, some chunks ahead: small ones allow for more.
  static constexpr int kStoreColumns = kRowBytes / static_cast<int>(sizeof(Out));
  static constexpr int kStoreRows = kStaged ? 16 : kSwapAb ? kQBox : kBlock;
  static constexpr int kStoreBytes = kStoreRows * kRowBytes;
  static constexpr int kStoreBuffers = !kStaged ? 2 : kPingpong ? 16 : 24;

  static constexpr int kBarrierBytes = 1024;  // barriers and the ring of tiles
  static constexpr int kStages =
      (kSharedLimit - 1024 - kBarrierBytes - kConsumers * kStoreBuffers * kStoreBytes) /
      kStageBytes;
  static_assert(kStages >= 3 && kStages <= 24);

  struct alignas(1024) Shared {
    uint8_t p[kStages][kPBytes];
    uint8_t q[kStages][kQBytes];
    uint8_t store[kConsumers][kStoreBuffers][kStoreBytes];
    uint64_t full[kStages], empty[kStages];
    uint64_t untrimmed[kKGrouped ? kStages : 1];  // filled, but for the trimmer
    uint64_t turn[kConsumers];
    RingShared tiles;
    std::conditional_t<kStaged, EpilogueShared<kStoreBuffers>, NoEpilogueShared> epilogue;
  };
  static constexpr int kSharedBytes = sizeof(Shared) + 1024;  // the base is only 16-byte aligned
  static_assert(kSharedBytes <= kSharedLimit);
  using WithEpilogue = Config<Spec, true>;
  // Where consumers share a tile, each would have one of both sums.
  using WithGatedEpilogue = Config<Spec, true, kPingpong>;

  using DescriptorP = bwgemm::sm90::TileDescriptor<InP, kPKMajor, kRowBytes, kBlock, kTileK>;
  template <int kColumns>
  using DescriptorOfQ = bwgemm::sm90::TileDescriptor<InQ, kQKMajor, kRowBytes, kColumns, kTileK>;
  using DescriptorQ = DescriptorOfQ<kTileN>;

  // See SplitMma.
  static constexpr int kPlanes = 1;
  static constexpr int kRunBlocks = bwgemm::sm90::RunK(2, kPlanes, /*f16=*/false, kTileN) / kTileK;

  using Multiplied = std::conditional_t<kSplitsP, InQ, InP>;  // P's type as the MMA sees it
  using Types = bwgemm::sm90::MmaTypes<Multiplied, InQ, kPKMajor, kQKMajor, kOwnBlocks>;
  template <int kColumns>
  using Multiply = typename Types::template Multiply<kColumns>;
  template <int kColumns>
  using Accumulator = typename Types::template Accumulator<kColumns>;
};

struct Params {
  CUtensorMap p, q, d;
  ScheduleParams schedule;
  int32_t k_blocks;           // rows: blocks along K
  int32_t p_batch, p_expert;  // P is matrix batch * p_batch + expert * p_expert of its tensor map;
  int32_t q_batch, q_expert;  // likewise Q and D
  int32_t d_batch, d_expert;
  int32_t* counter;  // tiles given out beyond each cluster's first; null: in turn
  void* d_data;      // rows: for tiles that end inside the result
  int32_t m, n;
};

}  // namespace bwgemm::grouped::sm90
