// The shape of one SM90 grouped kernel: operand roles, tiles, shared memory.
//
// The MMA computes P x transpose(Q), P being its M side and Q its N side:
//
//   rows      P = rhs columns, 128 of a tile, Q = lhs rows. The ragged rows lie along N because an
//             MMA may be 8, 16, 24.. columns wide but never less than 64 rows high: few rows fill a
//             narrow tile, and a group's last tile costs what its rows need. The result is
//             transposed on its way to D.
//   contract  P = lhs columns, Q = rhs columns, contracted over the rows of a group.
//
// CTAs of a cluster have neighbouring P and the same Q, of whose 64-wide boxes each loads every
// second, into both.
//
// The two consumer warpgroups either share a tile, 64 rows of P each (cooperative), or own every
// second tile and take turns on the main loop (ping-pong): then one's epilogue runs under the
// other's MMAs, which pays where K is short, but a thread has the results of all of P to keep, so
// tiles are narrower.
#pragma once

#include <algorithm>

#include "core/ring.h"
#include "dense/cutlass_type.h"
#include "grouped/schedule.h"
#include "sm90/cta.h"
#include "sm90/mma_types.h"

namespace bwgemm::grouped::sm90 {

using bwgemm::sm90::kConsumers;
using bwgemm::sm90::kSharedLimit;
using bwgemm::sm90::kThreads;
constexpr int kRing = 4;  // tiles that the scheduler may be ahead
constexpr int kMail = 2;  // tile numbers on their way to the other CTA of a cluster
constexpr int kBlock = bwgemm::sm90::kMmaRows;  // also the elements of one 128-byte row
constexpr int kRowBytes = 128;  // a row of every shared-memory tile: one swizzle line
constexpr int kBlockBytes = kBlock * kRowBytes;

template <Kind kKind_, DType kIn_, DType kOut_, RhsMajor kRhs_, int kTileM_, int kTileN_,
          int kTileK_, int kClusterM_, int kClusterN_, bool kSwapAb_, bool kPingpong_ = false>
struct Config {
  static constexpr Kind kKind = kKind_;
  static constexpr DType kIn = kIn_, kOut = kOut_;
  static constexpr RhsMajor kRhs = kRhs_;
  static constexpr int kTileM = kTileM_, kTileN = kTileN_, kTileK = kTileK_;
  static constexpr int kClusterM = kClusterM_, kClusterN = kClusterN_;
  static constexpr bool kSwapAb = kSwapAb_, kPingpong = kPingpong_;
  using In = typename CutlassType<kIn>::type;
  using Out = typename CutlassType<kOut>::type;

  static constexpr bool kContract = kKind == Kind::kContract;
  static constexpr bool kPKMajor = !kContract && kRhs == RhsMajor::kK;
  static constexpr bool kQKMajor = !kContract;

  static_assert(kIn != DType::kF32, "the tensor-core kernels take bf16 or f16 inputs");
  static_assert(kOut == kIn || kOut == DType::kF32, "the output is the input type or f32");
  static_assert(kSwapAb == !kContract && (!kContract || kRhs == RhsMajor::kN));
  static_assert(kTileM == 2 * kBlock, "one block of P for each consumer, or both for one");
  static_assert(kTileN % 16 == 0 && (kTileN <= 64 || kTileN % 64 == 0) && kTileN <= 256);
  static_assert(!kContract || kTileN % 64 == 0, "an MN-major box is 64 wide");
  static_assert(kTileK == kBlock, "a stage is one swizzle line deep");
  static_assert(kClusterN == 1 && (kClusterM == 1 || (kClusterM == 2 && kTileN >= 128)));

  static constexpr int kTileConsumers = kPingpong ? 1 : kConsumers;  // of one tile
  static constexpr int kPBlocks = kTileM / kBlock;
  static constexpr int kOwnBlocks = kPBlocks / kTileConsumers;  // of P, for one consumer
  static constexpr int FirstBlock(int consumer) { return kPingpong ? 0 : consumer * kOwnBlocks; }
  static_assert(kOwnBlocks * kTileN <= 2 * 192, "a thread's registers hold half of these results");

  static constexpr int kCluster = kClusterM;
  // What one TMA instruction loads, or stores, of the rows. Small boxes leave room for a fifth
  // stage of the widest ping-pong tile.
  static constexpr int kQBox = std::min(kTileN, !kContract && kPingpong ? 32 : kBlock);
  static constexpr int kQBoxes = kTileN / kQBox;
  static constexpr int kPBytes = kTileM * kRowBytes;
  static constexpr int kQBytes = kTileN * kRowBytes;
  static constexpr int kStageBytes = kPBytes + kQBytes;

  // Part-filled tiles are computed in multiples of this many columns: the fewer, the more code. 16
  // instead of 32 is 1 to 3 % of the time of large groups.
  static constexpr bool kFineSteps = kCluster > 1 && kOut != DType::kF32;
  static constexpr int kColumnStep = kContract ? kTileN : std::min(kTileN, kFineSteps ? 16 : 32);

  // Epilogue: each consumer sends its results through two buffers of kStoreRows lines of 128 bytes.
  static constexpr int kStoreColumns = kRowBytes / static_cast<int>(sizeof(Out));
  static constexpr int kStoreRows = kContract ? kBlock : kQBox;
  static constexpr int kStoreBytes = kStoreRows * kRowBytes;
  static constexpr int kStoreBuffers = 2;

  static constexpr int kBarrierBytes = 1024;  // barriers and the ring of tiles
  static constexpr int kStages =
      (kSharedLimit - 1024 - kBarrierBytes - kConsumers * kStoreBuffers * kStoreBytes) /
      kStageBytes;
  static_assert(kStages >= 3 && kStages <= 24);

  struct alignas(1024) Shared {
    uint8_t p[kStages][kPBytes];
    uint8_t q[kStages][kQBytes];
    uint8_t store[kConsumers][kStoreBuffers][kStoreBytes];
    Tile ring[kRing];
    uint64_t full[kStages], empty[kStages];
    uint64_t turn[kConsumers];
    uint64_t ring_full[kRing], ring_empty[kRing];
    uint64_t mail_full[kMail], mail_empty[kMail];
    struct alignas(16) {
      int32_t value;
    } mail[kMail];
  };
  static constexpr int kSharedBytes = sizeof(Shared) + 1024;  // the base is only 16-byte aligned
  static_assert(kSharedBytes <= kSharedLimit);

  // Blocks of P lie one after the other; K-major: 64 rows x 64 k, MN-major: 64 k x 64 rows.
  template <bool kKMajor>
  using Atom = std::conditional_t<kKMajor, cute::GMMA::Layout_K_SW128_Atom<In>,
                                  cute::GMMA::Layout_MN_SW128_Atom<In>>;
  using LayoutP = decltype(cute::tile_to_shape(
      Atom<kPKMajor>{},
      cute::Shape<cute::Int<kBlock>, cute::Int<kTileK>, cute::Int<kPBlocks * kStages>>{}));
  using QOrder = std::conditional_t<kQKMajor, cute::Step<cute::_1, cute::_2, cute::_3>,
                                    cute::Step<cute::_2, cute::_1, cute::_3>>;
  using LayoutQ = decltype(cute::tile_to_shape(
      Atom<kQKMajor>{}, cute::Shape<cute::Int<kTileN>, cute::Int<kTileK>, cute::Int<kStages>>{},
      QOrder{}));

  using Types = bwgemm::sm90::MmaTypes<In, kPKMajor, kQKMajor, kOwnBlocks>;
  template <int kColumns>
  using TiledMma = typename Types::template TiledMma<kColumns>;
  template <int kColumns>
  using Accumulator = typename Types::template Accumulator<kColumns>;
};

struct Params {
  CUtensorMap p, q, d;
  ScheduleParams schedule;
  int32_t k_blocks;           // rows: blocks of 64 along K
  int32_t p_batch, p_expert;  // P is matrix batch * p_batch + expert * p_expert of its tensor map;
  int32_t q_batch, q_expert;  // likewise Q and D
  int32_t d_batch, d_expert;
  int32_t* counter;  // tiles given out beyond each cluster's first; null: in turn
  void* d_data;      // rows: for tiles that end inside the result
  int32_t m, n;
};

}  // namespace bwgemm::grouped::sm90
