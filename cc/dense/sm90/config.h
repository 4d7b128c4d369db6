// The shape of one SM90 kernel: operand roles, tiles, shared memory.
//
// The MMA computes P x transpose(Q), P being its M side and Q its N side: lhs rows and rhs columns,
// or with swapped operands rhs columns and lhs rows; then the result is transposed on its way to D.
// CTAs of a cluster are neighbours along P and share Q, or neighbours along Q and share P.
//
// The two consumer warpgroups either share a tile, half of P's rows each (cooperative), or own
// every second tile and take turns on the main loop (ping-pong): then one's epilogue runs under the
// other's MMAs.
#pragma once

#include <algorithm>

#include "core/ring.h"
#include "cutlass/fast_math.h"
#include "dense/cutlass_type.h"
#include "dense/kernel_spec.h"
#include "sm90/cta.h"
#include "sm90/gpc.h"
#include "sm90/mma_types.h"

namespace bwgemm::sm90 {

constexpr int kBlock = kMmaRows;  // also the 16-bit elements of one swizzle line
constexpr int kLineElements = kBlock;
constexpr int kMostBoxRows = 104;
constexpr int kMostBoxes = 4;

// How one operand of kRows x kTileK lies in a stage: in boxes, each what one TMA instruction loads.
// K-major: rows x 64 k, a line of 128 bytes for each row; MN-major: rows x all k, a line for each
// k. A line of MN-major rows is as long as a swizzle, 64, 32 or 16 of them. Other boxes have 64
// rows, or, where that is no whole number of boxes, up to kMostBoxRows, in the swizzle's eights; or
// all rows, where more than kMostBoxes were needed.
template <class In, bool kKMajor_, int kRows, int kTileK>
struct Stage {
  static constexpr bool kKMajor = kKMajor_;
  static constexpr int kRowBoxes = [] {
    constexpr int kStep = kKMajor ? 8 : kRows % 32 != 0 ? 16 : 32;
    if (kRows % kLineElements == 0) return kRows / kLineElements;
    int boxes = kKMajor ? (kRows + kMostBoxRows - 1) / kMostBoxRows : kRows / kStep;
    while (kRows % (kStep * boxes) != 0) ++boxes;
    return kKMajor && boxes > kMostBoxes ? 1 : boxes;
  }();
  static constexpr int kBoxRows = kRows / kRowBoxes;
  static constexpr int kBoxK = kKMajor ? kLineElements : kTileK;
  static constexpr int kBoxes = kRowBoxes * (kTileK / kBoxK);
  static constexpr int kBoxBytes = kBoxRows * kBoxK * static_cast<int>(sizeof(In));
  static constexpr int kBytes = kBoxes * kBoxBytes;
  static constexpr int kLineBytes =
      (kKMajor ? kLineElements : kBoxRows) * static_cast<int>(sizeof(In));
  static_assert(kRows % kBoxRows == 0 && kTileK % kLineElements == 0);

  // Where a box begins that a tile wants at `row` of an operand of `rows`. No box runs over the
  // end, since TMA takes longer to fill in zeros than to load (64 x 64 tiles on an H200, 4096 x
  // 4096 weights: 20.0 us for 96 rows, 14.3 for 128): the last ones begin earlier and compute some
  // results a second time, bit for bit the same.
  // Rows count in 32 bits without a sign: the tiles of the last cluster may begin beyond 2^31.
  __device__ static int BoxRow(uint32_t row, int rows) {
    return min(row, static_cast<uint32_t>(max(rows - kBoxRows, 0)));
  }

  // An operand of fewer rows than one box has boxes of that many, but for MN-major ones, whose
  // lines run along the rows.
  static int BoxRowsOf(int rows) { return kKMajor ? std::min(rows, kBoxRows) : kBoxRows; }
  static int BytesOf(int rows) { return kBytes / kBoxRows * BoxRowsOf(rows); }
  static_assert(kLineBytes == 128 || kLineBytes == 64 || kLineBytes == 32);

  // Of boxes that lie one after the other: along the rows first, then along K.
  using Atom = std::conditional_t<
      kKMajor, cute::GMMA::Layout_K_SW128_Atom<In>,
      std::conditional_t<kLineBytes == 128, cute::GMMA::Layout_MN_SW128_Atom<In>,
                         std::conditional_t<kLineBytes == 64, cute::GMMA::Layout_MN_SW64_Atom<In>,
                                            cute::GMMA::Layout_MN_SW32_Atom<In>>>>;
  using Order = std::conditional_t<kKMajor, cute::Step<cute::_1, cute::_2, cute::_3>,
                                   cute::Step<cute::_2, cute::_1, cute::_3>>;
  template <int kLayoutRows, int kCount>
  using Layout = decltype(cute::tile_to_shape(
      Atom{}, cute::Shape<cute::Int<kLayoutRows>, cute::Int<kTileK>, cute::Int<kCount>>{},
      Order{}));
};

template <class Spec>
struct Config : Spec {
  using In = typename CutlassType<Spec::kIn>::type;
  using Out = typename CutlassType<Spec::kOut>::type;

  static constexpr int kTileM = Spec::kTileM, kTileN = Spec::kTileN, kTileK = Spec::kTileK;
  static constexpr bool kPingpong = Spec::kSchedule == Schedule::kPingpong;
  static constexpr int kCluster = Spec::kClusterM * Spec::kClusterN;
  static constexpr bool kSharesP = Spec::kClusterN > 1, kSharesQ = Spec::kClusterM > 1;
  static_assert(kPingpong || Spec::kSchedule == Schedule::kCooperative);
  static_assert(!Spec::kStreamK && !(kSharesP && kSharesQ) && kCluster <= 8);
  static_assert(kTileM % kBlock == 0 && kTileN % 8 == 0 && kTileN <= 256);

  static constexpr bool kLhsKMajor = Spec::kLhs == LhsMajor::kK;
  static constexpr bool kRhsKMajor = Spec::kRhs == RhsMajor::kK;
  using P = Stage<In, Spec::kSwapAb ? kRhsKMajor : kLhsKMajor, kTileM, kTileK>;
  using Q = Stage<In, Spec::kSwapAb ? kLhsKMajor : kRhsKMajor, kTileN, kTileK>;

  static constexpr int kTileConsumers = kPingpong ? 1 : kConsumers;  // of one tile
  static constexpr int kPBlocks = kTileM / kBlock;
  static constexpr int kOwnBlocks = kPBlocks / kTileConsumers;  // of P, for one consumer
  static constexpr int FirstBlock(int consumer) { return kPingpong ? 0 : consumer * kOwnBlocks; }
  static_assert(kPBlocks % kTileConsumers == 0);
  static_assert(kPBlocks == 1 || kTileK == kLineElements, "a block of P is one box");
  // 32-bit results that a thread keeps. Where they are few, no registers need to change hands.
  static constexpr int kResults = kOwnBlocks * kTileN / 2;
  static constexpr bool kMovesRegisters = kResults > 96;
  static_assert(kResults <= 192);

  // Epilogue: each consumer sends its results through two buffers of kStoreRows lines of 128 bytes.
  static constexpr int kStoreColumns = 128 / static_cast<int>(sizeof(Out));
  // A box of Q higher than most leaves in several stores of equal height, the last of which may
  // begin within the one before it and writes those rows again, the same.
  static constexpr int kStores = !Spec::kSwapAb || Q::kBoxRows <= kMostBoxRows ? 1 : 2;
  static constexpr int kStoreRows =
      Spec::kSwapAb ? (Q::kBoxRows + 8 * kStores - 1) / (8 * kStores) * 8 : kBlock;
  static constexpr int kStoreBytes = kStoreRows * 128;
  static constexpr int kStoreBuffers = 2;

  static constexpr int kStageBytes = P::kBytes + Q::kBytes;
  static constexpr int kBarrierBytes = 1024;
  static constexpr int kStages =
      (kSharedLimit - 1024 - kBarrierBytes - kConsumers * kStoreBuffers * kStoreBytes) /
      kStageBytes;
  static_assert(kStages >= 3 && kStages <= 48);

  struct alignas(1024) Shared {
    uint8_t p[kStages][P::kBytes];
    uint8_t q[kStages][Q::kBytes];
    alignas(1024) uint8_t store[kConsumers][kStoreBuffers][kStoreBytes];
    uint64_t full[kStages], empty[kStages];
    uint64_t turn[kConsumers];
  };
  static constexpr int kSharedBytes = sizeof(Shared) + 1024;  // the base is only 16-byte aligned
  static_assert(kSharedBytes <= kSharedLimit);

  using LayoutP = typename P::template Layout<kBlock, kPBlocks * kStages>;
  using LayoutQ = typename Q::template Layout<kTileN, kStages>;

  using Types = MmaTypes<In, P::kKMajor, Q::kKMajor, kOwnBlocks>;
  template <int kColumns>
  using TiledMma = typename Types::template TiledMma<kColumns>;
  template <int kColumns>
  using Accumulator = typename Types::template Accumulator<kColumns>;
};

// The order of a launch's clusters: matrix after matrix; of a matrix in bands, `swizzle` clusters
// high but for the last one, which may be lower; of a band across it, then along it.
struct TileOrder {
  cutlass::FastDivmod per_batch;  // clusters of a matrix
  cutlass::FastDivmod per_band;   // clusters of a band that is not the last
  int32_t clusters;               // all
  int32_t height;                 // of a matrix, in clusters
  int32_t log_swizzle;
  bool along_q;  // bands run along Q, their height is along P; or the other way round
  bool placed;   // cluster i begins with tile slots[i] instead of i
  uint8_t slots[kMaxPlacedClusters];
};

struct Params {
  CUtensorMap p, q, d;
  TileOrder order;
  int32_t k_blocks;      // of a tile
  int32_t longer_parts;  // where the batch is parts of K: the first ones, which have a block more
  int32_t part_blocks;   // between the beginnings of parts, but for the longer ones'; else 0
  int32_t stages;        // of the pipeline, at most kStages
  int32_t p_rows, q_rows;
  uint32_t stage_bytes;
  bool p_batched, q_batched;
  uint64_t p_cache_hint, q_cache_hint;  // L2 eviction priority
};

}  // namespace bwgemm::sm90
