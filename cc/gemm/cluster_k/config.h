// The shape of one cluster-K kernel: operand roles, tiles, shared memory.
//
// The CTAs of a cluster share one tile of D: each multiplies its part of K, then adds the parts of
// its slice of the tile out of the others' shared memory. Splitting K that way costs no second
// kernel and no trip through L2. Made for results of few tiles: small M, where weights stream from
// memory and every multiprocessor should pull its share, and long K.
//
// The MMA computes P x transpose(Q): P = rhs columns (weights) on its M side, Q = lhs rows on its N
// side, whose width may be as small as the rows are few. D = transpose of that.
#pragma once

#include <algorithm>

#include "cute/arch/mma_sm90_gmma.hpp"
#include "cute/atom/mma_traits_sm90_gmma.hpp"
#include "cute/tensor.hpp"
#include "gemm/cutlass_type.h"
#include "gemm/kernel_spec.h"

namespace bwgemm::cluster_k {

constexpr int kMaxParts = kMaxClusterParts;
constexpr int kBlock = 64;      // rows of one MMA; also the elements of a 128-byte line
constexpr int kRowBytes = 128;  // of a stage's part of K
constexpr int kMostStages = 24;
constexpr int kAlignment = 1024;  // of swizzled tiles
// The base of dynamic shared memory is only 16-byte aligned; then come the barriers.
constexpr int kFixedBytes = 2 * kAlignment;
constexpr int kSharedLimit = 227 * 1024;  // of a CTA
constexpr int kSharedOfSm = 228 * 1024;   // of a multiprocessor,
constexpr int kSharedReserved = 1024;     // of which the system takes this for each CTA

template <class Spec>
struct Config : Spec {
  using Spec::kIn, Spec::kOut, Spec::kLhs, Spec::kRhs, Spec::kTileM, Spec::kTileN, Spec::kTileK;
  using In = typename CutlassType<kIn>::type;
  using Out = typename CutlassType<kOut>::type;

  static_assert(Spec::kSchedule == Schedule::kClusterK && !Spec::kStreamK);
  static_assert(Spec::kSwapAb, "rhs columns are the MMA's M side");
  static_assert(Spec::kClusterM == 1 && Spec::kClusterN == 1,
                "the cluster lies along K: see splits");
  static_assert(kTileM == kBlock || kTileM == 2 * kBlock, "one or two consumers, 64 rows each");
  static_assert(kTileN == 16 || kTileN == 32 || (kTileN % 64 == 0 && kTileN <= 256));
  static_assert(kTileK == kBlock, "a stage is one 128-byte line deep");

  static constexpr bool kPKMajor = kRhs == RhsMajor::kK;
  static constexpr bool kQKMajor = kLhs == LhsMajor::kK;
  static constexpr int kConsumers = kTileM / kBlock;  // warpgroups
  static constexpr int kThreads = kConsumers * 128 + 32;

  // One TMA instruction's share of a stage: all rows if K-major, else 64 of them or fewer.
  static constexpr int kPBox = kPKMajor ? kTileM : kBlock;
  static constexpr int kQBox = kQKMajor || kTileN < kBlock ? kTileN : kBlock;
  static constexpr int kPBytes = kTileM * kRowBytes;
  static constexpr int kQBytes = kTileN * kRowBytes;
  static constexpr int kStageBytes = kPBytes + kQBytes;

  // The tile in f32, transposed: a line for each row of D. Padded so that the threads of a warp,
  // which hold 8 columns of 4 rows two apart, write to all banks.
  static constexpr int kPartialPitch = kTileM + 4;
  static constexpr int kPartialBytes = kTileN * kPartialPitch * static_cast<int>(sizeof(float));

  // Small tiles may share a multiprocessor. A launch has as many stages as its number of CTAs
  // leaves room for: what is on its way from memory hides its latency.
  static constexpr int kCtasPerSm = kTileM * kTileN <= 64 * 64     ? 3
                                    : kTileM * kTileN <= 128 * 128 ? 2
                                                                   : 1;
  static constexpr int kMaxStages =
      std::min(kMostStages, (kSharedLimit - kFixedBytes) / kStageBytes);
  static_assert(kMaxStages >= 3);
  static_assert(kPartialBytes <= kMaxStages * kStageBytes);

  struct Shared {
    alignas(kAlignment) uint64_t full[kMostStages];
    uint64_t empty[kMostStages];
    alignas(kAlignment) union {
      uint8_t stages[kMaxStages * kStageBytes];  // P of all stages, then Q: a launch may have fewer
      float partial[kTileN][kPartialPitch];
    };
  };
  static_assert(sizeof(Shared) == kAlignment + kMaxStages * kStageBytes);

  static constexpr int SharedBytes(int stages) {
    return kFixedBytes + std::max(stages * kStageBytes, kPartialBytes);
  }

  // Shared-memory layouts. K-major: lines of 64 k; MN-major: boxes of 64 k lines, as wide as the
  // box.
  template <bool kKMajor, int kWidth>
  using Atom = std::conditional_t<
      kKMajor, cute::GMMA::Layout_K_SW128_Atom<In>,
      std::conditional_t<kWidth == 16, cute::GMMA::Layout_MN_SW32_Atom<In>,
                         std::conditional_t<kWidth == 32, cute::GMMA::Layout_MN_SW64_Atom<In>,
                                            cute::GMMA::Layout_MN_SW128_Atom<In>>>>;
  using LayoutP = decltype(cute::tile_to_shape(
      Atom<kPKMajor, kBlock>{},
      cute::Shape<cute::Int<kBlock>, cute::Int<kTileK>, cute::Int<kConsumers * kMaxStages>>{}));
  using QOrder = std::conditional_t<kQKMajor, cute::Step<cute::_1, cute::_2, cute::_3>,
                                    cute::Step<cute::_2, cute::_1, cute::_3>>;
  using LayoutQ = decltype(cute::tile_to_shape(
      Atom<kQKMajor, kQBox>{},
      cute::Shape<cute::Int<kTileN>, cute::Int<kTileK>, cute::Int<kMaxStages>>{}, QOrder{}));

  template <bool kKMajor>
  static constexpr cute::GMMA::Major kMajor =
      kKMajor ? cute::GMMA::Major::K : cute::GMMA::Major::MN;
  // One warpgroup's MMA.
  using TiledMma = decltype(cute::make_tiled_mma(
      cute::GMMA::ss_op_selector<
          In, In, float, cute::Shape<cute::Int<kBlock>, cute::Int<kTileN>, cute::Int<kTileK>>,
          kMajor<kPKMajor>, kMajor<kQKMajor>>()));
  using Accumulator = decltype(cute::partition_fragment_C(
      TiledMma{}, cute::Shape<cute::Int<kBlock>, cute::Int<kTileN>>{}));
};

struct Params {
  CUtensorMap p, q;
  void* d;
  int64_t d_pitch, d_batch_pitch;
  int32_t rows, columns;     // of D
  int32_t k_blocks;          // of 64, all parts together
  int32_t p_tiles, q_tiles;  // along the columns and the rows of D
  bool p_batched, q_batched;
  uint64_t p_cache_hint;  // L2 eviction priority
  int32_t stages;
};

// The tile and the part of K of one CTA.
struct Work {
  int batch, row, column;
  int first_block, blocks;
};

}  // namespace bwgemm::cluster_k
