// The shape of one cluster-K kernel: operand roles, tiles, shared memory.
//
// The CTAs of a cluster share one tile of D. Each multiplies its part of K, then adds its slice of
// the tile from the others' shared memory. Splitting K that way needs no second kernel and no trip
// through L2. It is for results of few tiles: long K, and small M, where weights stream from memory
// and every multiprocessor should read its share.
//
// The MMA computes P x transpose(Q), with rhs columns (weights) as P on its M side and lhs rows as
// Q on its N side. D is the transpose of that.
#pragma once

#include "core/cutlass_type.h"
#include "dense/kernel_spec.h"
#include "sm90/mma_types.h"

namespace bwgemm::dense::cluster_k {

constexpr int kMaxParts = kMaxClusterParts;
// Rows of P, rows of Q and depth of a stage: one MMA, one warpgroup, a 128-byte swizzle line of
// either operand in either memory order, one TMA box.
constexpr int kBlock = 64;
constexpr int kRowBytes = 128;
constexpr int kBoxBytes = kBlock * kRowBytes;
constexpr int kStageBytes = 2 * kBoxBytes;  // P's box and Q's

constexpr int kConsumerThreads = 128;
constexpr int kThreads = kConsumerThreads + 32;

// The tile in f32, transposed: a line for each row of D. Padded so that the threads of a warp,
// which hold 8 columns of 4 rows two apart, write to all banks.
constexpr int kPartialPitch = kBlock + 4;
constexpr int kPartialBytes = kBlock * kPartialPitch * static_cast<int>(sizeof(float));

// CTAs may share a multiprocessor. A launch uses as many stages as their number leaves room for:
// more loads in flight hide the latency of memory better.
constexpr int kCtasPerSm = 3;
constexpr int kSharedOfSm = 228 * 1024;  // bytes of a multiprocessor
constexpr int kSharedReserved = 1024;    // bytes of these that the system takes for each CTA
constexpr int kAlignment = 1024;         // of swizzled tiles
// The base of dynamic shared memory is only 16-byte aligned; then come the barriers.
constexpr int kFixedBytes = 2 * kAlignment;

constexpr int SharedBytes(int stages) { return kFixedBytes + stages * kStageBytes; }
constexpr int StagesOf(int ctas_of_sm) {
  return (kSharedOfSm / ctas_of_sm - kSharedReserved - kFixedBytes) / kStageBytes;
}
// How many clusters run at once with one CTA on a multiprocessor: a lower bound for usual GPUs. A
// cluster lies in one GPC, and one of the GPCs may have few multiprocessors. Two CTAs take the two
// multiprocessors of a TPC, so every pair finds a place.
constexpr int kSmsOfGpc = 16;
constexpr int ClustersAtOnce(int ctas, int sm_count) {
  if (ctas <= 2) return sm_count / ctas;
  return (sm_count / kSmsOfGpc - 1) * (kSmsOfGpc / ctas);
}
constexpr int kMinStages = StagesOf(kCtasPerSm), kMaxStages = StagesOf(1);
static_assert(kMinStages >= 2, "a stage is given back when the MMAs of the next are issued");
static_assert(kPartialBytes <= kMinStages * kStageBytes, "it takes the place of the stages");

struct Shared {
  alignas(kAlignment) uint64_t full[kMaxStages];
  uint64_t empty[kMaxStages];
  union alignas(kAlignment) {
    uint8_t stages[kMaxStages * kStageBytes];  // P of all stages, then Q: a launch may have fewer
    float partial[kBlock][kPartialPitch];
  };
};
static_assert(sizeof(Shared) == kAlignment + kMaxStages * kStageBytes);

template <class Spec>
struct Config : Spec {
  using In = typename CutlassType<Spec::kIn>::type;
  using Out = typename CutlassType<Spec::kOut>::type;

  static_assert(Spec::kSchedule == Schedule::kClusterK && !Spec::kStreamK);
  static_assert(Spec::kA == Spec::kB, "operands of one type");
  static_assert(Spec::kSwapAb, "rhs columns are the MMA's M side");
  static_assert(Spec::kClusterM == 1 && Spec::kClusterN == 1,
                "the cluster lies along K: see splits");
  static_assert(Spec::kTileM == kBlock && Spec::kTileN == kBlock && Spec::kTileK == kBlock,
                "cluster-K kernels have one tile, 64x64x64");

  static constexpr bool kPKMajor = Spec::kBMajor == BMajor::kK;
  static constexpr bool kQKMajor = Spec::kAMajor == AMajor::kK;

  template <bool kKMajor>
  using Descriptor = bwgemm::sm90::TileDescriptor<In, kKMajor, kRowBytes, kBlock, kBlock>;

  using Types = bwgemm::sm90::MmaTypes<In, In, kPKMajor, kQKMajor, 1>;
  using Multiply = typename Types::template Multiply<kBlock>;
  using Accumulator = typename Types::template Accumulator<kBlock>;
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
  uint32_t stage_bytes;
};

// The tile and the part of K of one CTA.
struct Work {
  int batch, row, column;
  int first_block, blocks;
};

}  // namespace bwgemm::dense::cluster_k
