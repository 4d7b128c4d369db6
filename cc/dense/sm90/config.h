// The shape of one SM90 kernel: operand roles, tiles, shared memory.
//
// The MMA computes P x transpose(Q), P being its M side and Q its N side: lhs rows and rhs columns,
// or with swapped operands rhs columns and lhs rows; then the result is transposed on its way to D.
// CTAs of a cluster are neighbours along P and share Q, or neighbours along Q and share P.
//
// An operand of f32 is P: it is split on its way to the MMA (sm90/split_mma.h). Where both are, Q
// was split ahead of the launch, into planes of the terms' type (planes.h).
//
// The two consumer warpgroups either share a tile, half of P's rows each (cooperative), or own
// every second tile and take turns on the main loop (ping-pong): then one's epilogue runs under the
// other's MMAs.
#pragma once

#include "core/cutlass_type.h"
#include "core/ring.h"
#include "cutlass/fast_math.h"
#include "dense/kernel_spec.h"
#include "dense/row_range.h"
#include "sm90/cta.h"
#include "sm90/gpc.h"
#include "sm90/high_sums.h"
#include "sm90/mma_types.h"
#include "sm90/stage.h"

namespace bwgemm::dense::sm90 {

using bwgemm::sm90::kBlock;
using bwgemm::sm90::kConsumers;
using bwgemm::sm90::kThreads;
using bwgemm::sm90::Stage;

// Shared memory of a linked epilogue, besides the store buffers: see linked_epilogue.h.
template <int kRowBytes, int kBuffers>
struct EpilogueShared {
  alignas(128) uint8_t rows[kConsumers][kRowBytes];
  uint64_t rows_full[kConsumers];
  uint64_t loaded[kConsumers][kBuffers];
};
struct NoEpilogueShared {};

// kLinked_: whether an epilogue is linked in (linked.h). kGated_: whether P's tile is half rows of
// one matrix and half the same rows of another, whose sums meet in a thread (gated.h).
template <class Spec, bool kLinked_ = false, bool kGated_ = false>
struct Config : Spec {
  static constexpr bool kLinked = kLinked_, kGated = kGated_;
  // Whether it works on lines of the store buffers, which its operands are loaded into.
  static constexpr bool kStaged = kLinked && !Spec::kSwapAb;
  static constexpr DType kTypeP = Spec::kSwapAb ? Spec::kB : Spec::kA;
  static constexpr DType kTypeQ = Spec::kSplitsBoth ? Spec::kTermType
                                  : Spec::kSwapAb   ? Spec::kA
                                                    : Spec::kB;
  using InP = typename CutlassType<kTypeP>::type;
  using InQ = typename CutlassType<kTypeQ>::type;
  using Out = typename CutlassType<Spec::kOut>::type;

  static constexpr int kTileM = Spec::kTileM, kTileN = Spec::kTileN, kTileK = Spec::kTileK;
  static constexpr bool kPingpong = Spec::kSchedule == Schedule::kPingpong;
  static constexpr int kPHalves = kGated ? 2 : 1;
  static constexpr int kPRows = kTileM / kPHalves;  // of P's matrix or matrices, in a tile
  static constexpr int kCluster = Spec::kClusterM * Spec::kClusterN;
  static constexpr bool kSharesP = Spec::kClusterN > 1, kSharesQ = Spec::kClusterM > 1;
  static_assert(kPingpong || Spec::kSchedule == Schedule::kCooperative);
  static_assert(!(kSharesP && kSharesQ) && kCluster <= 8);
  static_assert(!Spec::kStreamK || !kPingpong, "the consumers have no common tile to share");
  static_assert(kTileM % kBlock == 0 && kTileN % 8 == 0 && kTileN <= 256);

  static constexpr bool kAIsKMajor = Spec::kAMajor == AMajor::kK;
  static constexpr bool kBIsKMajor = Spec::kBMajor == BMajor::kK;
  static constexpr bool kSplitsP = kTypeP == DType::kF32;
  static constexpr bool kConditional =
      Spec::kSplitsBoth && (Spec::kTerms == 3 || Spec::kScalesRows);
  static_assert(kTypeQ != DType::kF32, "the f32 operand is P");
  // Planes of Q, and blocks of K after which the upper parts of sums leave the accumulators: see
  // sm90/split_mma.h.
  static constexpr int kPlanes = Spec::kSplitsBoth ? Spec::kTerms : 1;
  static constexpr int kRunBlocks =
      bwgemm::sm90::RunK(Spec::kTerms, kPlanes, Spec::kScalesRows, kTileN) / kTileK;
  static_assert(!kSplitsP || kRunBlocks >= 2);
  using P = Stage<InP, Spec::kSwapAb ? kBIsKMajor : kAIsKMajor, kTileM, kTileK, Spec::kClampsP>;
  using Q = Stage<InQ, Spec::kSwapAb ? kAIsKMajor : kBIsKMajor, kTileN, kTileK, Spec::kClampsQ>;

  static constexpr int kTileConsumers = kPingpong ? 1 : kConsumers;  // of one tile
  static constexpr int kPBlocks = kTileM / kBlock;
  static constexpr int kOwnBlocks = kPBlocks / kTileConsumers;  // of P, for one consumer
  static constexpr int FirstBlock(int consumer) { return kPingpong ? 0 : consumer * kOwnBlocks; }
  static_assert(kPBlocks % kTileConsumers == 0);
  static_assert(!kGated || (kPingpong && Spec::kSwapAb && kPBlocks % 2 == 0),
                "a consumer has both halves; they are blocks of its MMAs");
  static_assert(kSplitsP || kPBlocks == 1 || kTileK == P::kLineElements, "a block of P is one box");
  // 32-bit results that a thread keeps. If they are few, the producer keeps its registers.
  static constexpr int kResults = kOwnBlocks * kTileN / 2;
  static constexpr bool kMovesRegisters = kResults > 96;
  static constexpr int kProducerRegisters = kSplitsP ? 24 : 40;
  static constexpr int kConsumerRegisters = kSplitsP ? 240 : 232;
  static_assert(kResults <= 192);

  // Epilogue: each consumer sends its results through buffers of kStoreRows lines of 128 bytes.
  static constexpr int kStoreColumns = 128 / static_cast<int>(sizeof(Out));
  // A box of Q above kMostBoxRows is stored in several parts of equal height. The last part may
  // overlap the one before it and writes those rows again, with the same values.
  static constexpr int kStores =
      !Spec::kSwapAb || Q::kBoxRows <= bwgemm::sm90::kMostBoxRows ? 1 : 2;
  static constexpr int kStoreRows =
      Spec::kSwapAb ? (Q::kBoxRows + 8 * kStores - 1) / (8 * kStores) * 8 : kBlock;
  static constexpr int kStoreBytes = kStoreRows * 128;
  static constexpr int kStoreBuffers = kStaged && kPingpong ? 4 : 2;
  // Whether it may load two matrices for a linked epilogue: with a single set of buffers, the
  // second one's loads would not be ahead of their use.
  static constexpr bool kLoadsTwo = kStaged && kPingpong;
  // Of rows that a linked epilogue reads, for one consumer.
  static constexpr int kRowBytes = kTileN * (kPingpong ? 4 : 2);

  static constexpr int kStageBytes = P::kBytes + kPlanes * Q::kBytes;
  static constexpr int kBarrierBytes = kStaged ? 256 + kConsumers * kRowBytes : 1024;
  static constexpr int kStages =
      (kSharedLimit - 1024 - kBarrierBytes - kConsumers * kStoreBuffers * kStoreBytes) /
      kStageBytes;
  static_assert(kStages >= 3 && kStages <= 48);

  struct alignas(1024) Shared {
    uint8_t p[kStages][P::kBytes];
    uint8_t q[kStages][kPlanes * Q::kBytes];
    alignas(1024) uint8_t store[kConsumers][kStoreBuffers][kStoreBytes];
    uint64_t full[kStages], empty[kStages];
    uint64_t turn[kConsumers];
    std::conditional_t<kStaged, EpilogueShared<kRowBytes, kStoreBuffers>, NoEpilogueShared>
        epilogue;
  };
  static constexpr int kSharedBytes = sizeof(Shared) + 1024;  // the base is only 16-byte aligned
  static_assert(kSharedBytes <= kSharedLimit);
  using WithEpilogue = Config<Spec, true, kGated>;

  using DescriptorP = typename P::template Descriptor<kBlock>;
  using DescriptorQ = typename Q::template Descriptor<kTileN>;

  using Multiplied = std::conditional_t<kSplitsP, InQ, InP>;  // P's type as the MMA sees it
  using Types = bwgemm::sm90::MmaTypes<Multiplied, InQ, P::kKMajor, Q::kKMajor, kOwnBlocks>;
  template <int kColumns>
  using Multiply = typename Types::template Multiply<kColumns>;
  template <int kColumns>
  using Accumulator = typename Types::template Accumulator<kColumns>;
};

// The order of a launch's clusters: matrix after matrix; in a matrix, band after band, each
// `swizzle` clusters high except the last, which may be lower; in a band, across it, then along it.
struct TileOrder {
  cutlass::FastDivmod per_batch;  // clusters of a matrix
  cutlass::FastDivmod per_band;   // clusters of a band that is not the last
  int32_t clusters;               // all
  int32_t height;                 // of a matrix, in clusters
  int32_t log_swizzle;
  bool along_q;  // bands run along Q, their height is along P; or the other way round
  bool placed;   // cluster i begins with tile slots[i] instead of i
  uint8_t slots[bwgemm::sm90::kMaxPlacedClusters];
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
  int32_t q_plane;                      // matrices of a plane of Q
  uint64_t p_cache_hint, q_cache_hint;  // L2 eviction priority
};

// Of kernels between which the rows' exponents decide: see f16_terms_launcher.h.
struct ConditionalParams : Params {
  Condition condition;
  RowExponents p_exponents, q_exponents;  // of kernels that scale rows
};
template <class C>
using ParamsOf = std::conditional_t<C::kConditional, ConditionalParams, Params>;

}  // namespace bwgemm::dense::sm90
