// The shape of one SM100 grouped kernel: operand roles, tiles, shared and tensor memory.
//
// The MMA computes P x Q^T, P being its M side and Q its N side:
//   rows             P = lhs rows      Q = rhs columns
//   rows, swapped    P = rhs columns   Q = lhs rows: an MMA is 128 or 256 high, but as wide as the
//                                      tile has rows, so that the last tile of a group costs less
//   contract         P = lhs columns   Q = rhs columns, contracted over a group's rows; of 8-bit
//                                      operands, which are stored transposed, over its columns
// One CTA computes an MMA, or a pair of CTAs: then each of the two holds half of P's rows and half
// of Q's, and the accumulators of its P rows.
#pragma once

#include <cuda.h>

#include "core/cutlass_type.h"
#include "cute/arch/mma_sm100_umma.hpp"
#include "cute/atom/mma_traits_sm100.hpp"
#include "cute/tensor.hpp"
#include "cutlass/arch/barrier.h"
#include "grouped/kernel_spec.h"
#include "grouped/schedule.h"

namespace bwgemm::grouped::sm100 {

constexpr int kEpilogueWarps = 4;  // warp i may only read the tensor-memory lanes 32 i to 32 i + 31
constexpr int kLoadWarp = 4, kMmaWarp = 5;
constexpr int kThreads = 32 * 7;
constexpr int kLanes = 128;      // rows of P in one CTA: lanes of tensor memory
constexpr int kLineBytes = 128;  // of a swizzle line
// Columns that both accumulators have where scales take tensor memory too: the epilogue reads these
// first, and only then may the next tile be computed.
constexpr int kSharedColumns = 64;
constexpr int kStoreBuffers = 2;  // per epilogue warp
constexpr int kStoreBytes = 32 * kLineBytes;

// The sums are the results.
struct PlainResults {
  template <int kCount, class LaunchParams>
  __device__ static void Apply(const LaunchParams&, const Tile&, int, int, uint32_t (&)[kCount]) {}
  // The same, after `Apply` where there were sums, else of zeros.
  template <int kCount, class LaunchParams>
  __device__ static void Finish(const LaunchParams&, const Tile&, int, int, uint32_t (&)[kCount]) {}
  // With swapped operands: of rows from the first number on, and the column.
  template <int kCount, class LaunchParams>
  __device__ static void ApplyToRows(const LaunchParams&, const Tile&, int, int,
                                     uint32_t (&)[kCount]) {}
};

constexpr int kBound = 1 << 30;  // where the rows of a bounded map end (tensor_maps.h)

struct Params {
  CUtensorMap p, q,
      d;  // bounded maps, but for rhs of `rows` and for 8-bit `contract` (tensor_maps.h)
  ScheduleParams schedule;
  int32_t k_blocks;           // rows: stages along K
  int32_t p_batch, p_expert;  // P is matrix batch * p_batch + expert * p_expert of its tensor map;
  int32_t q_batch, q_expert;  // likewise Q and D
  int32_t d_batch, d_expert;
  int32_t d_rows, d_columns;
};

// kScaleBytes_: room in a stage for scales that MMA instructions read from tensor memory; 0: none
// do. kPromotes_: the epilogue adds the sums of every block of k, scaled, in registers.
template <class Spec, int kScaleBytes_ = 0, bool kPromotes_ = false>
struct Config : Spec {
  using Spec::kAMajor, Spec::kBMajor, Spec::kClusterM, Spec::kClusterN, Spec::kIn, Spec::kKGrouped,
      Spec::kOut;
  using Spec::kSwapAb, Spec::kTileK, Spec::kTileM, Spec::kTileN;
  static_assert(Spec::kSchedule == (kClusterM == 2 ? Schedule::k2Sm : Schedule::k1Sm));
  using In = typename CutlassType<kIn>::type;
  using Out = typename CutlassType<kOut>::type;
  using Params = sm100::Params;
  using Results = PlainResults;
  static constexpr int kLine = kLineBytes / static_cast<int>(sizeof(In));  // elements
  static constexpr int kScaleBytes = kScaleBytes_;
  static constexpr bool kReadsScales = kScaleBytes != 0, kPromotes = kPromotes_;

  static constexpr bool kPKMajor = kSwapAb ? kBMajor == BMajor::kK : kAMajor == AMajor::kK;
  static constexpr bool kQKMajor = kSwapAb ? kAMajor == AMajor::kK : kBMajor == BMajor::kK;
  // A group begins and ends within lines, which TMA fills with other groups' elements. Stages are
  // whole lines of the tensor: boxes begin at multiples of 16 bytes, and scales go by lines.
  static constexpr bool kTrims = kKGrouped && kPKMajor;
  static constexpr int kCtas = kClusterM;  // that share one MMA
  static constexpr int kQRows = kTileN / kCtas;
  // Tiles that the scheduler may be ahead: few for k-grouped, whose tiles differ in cost.
  static constexpr int kRing = kKGrouped ? 2 : 4;

  static_assert(kClusterN == 1 && (kCtas == 1 || kCtas == 2), "a cluster is the CTAs of one MMA");
  static_assert(kTileM == kLanes * kCtas, "a CTA's accumulator has all lanes of tensor memory");
  // The width of an MMA is a multiple of this.
  static constexpr int kWidthStep = 16 * kCtas;
  static_assert(kTileN % kWidthStep == 0 && kTileN <= 256, "the N side of tcgen05.mma");
  static_assert(kQKMajor || kQRows % kLine == 0, "an MN-major box is one swizzle line wide");
  static_assert(kTileK == kLine, "a stage is one swizzle line deep");

  static_assert(!kTrims || (kCtas == 1 && kQKMajor), "the leader trims its own shared memory");

  // Shared memory of one stage. K-major: rows of a line of k. MN-major: boxes of a line of rows,
  // each as many k deep.
  static constexpr int kPBytes = kLanes * kLineBytes;
  static constexpr int kQBytes = kQRows * kLineBytes;
  static constexpr int kStageBytes = kPBytes + kQBytes;  // of one CTA, and of values

  // A warp stores its 32 lanes by pieces: unswapped, 32 rows of D and as many columns as fill 128
  // bytes; swapped, 32 columns of D and up to 32 rows.
  static constexpr int kStoreColumns = kSwapAb ? 32 : kLineBytes / static_cast<int>(sizeof(Out));
  static constexpr int kStoreRows = kSwapAb && kTileN < 32 ? kTileN : 32;

  // One accumulator is being stored while another is being computed; of blocks of k, as many as
  // there is room for.
  static constexpr int kAccumulators = kPromotes ? 512 / kTileN : 2;
  // Tensor memory: the accumulators, from step to step, and scales.
  static constexpr int kAccumulatorStep = kReadsScales ? kTileN - kSharedColumns : kTileN;
  static constexpr int kScaleColumn = kAccumulatorStep + kTileN;
  static constexpr int kColumns = kAccumulators * kTileN < 32 ? 32 : kAccumulators * kTileN;
  static_assert((kColumns & (kColumns - 1)) == 0, "tensor memory comes in powers of two");
  // Accumulators that the MMAs may be ahead of the epilogue; of such that share columns, one.
  static constexpr int kDrained = kReadsScales ? 1 : kAccumulators;

  static constexpr int kBarrierBytes = 1024;  // barriers and the ring of tiles
  static constexpr int kStages =
      (kSharedLimit - 1024 - kBarrierBytes - kEpilogueWarps * kStoreBuffers * kStoreBytes) /
      (kStageBytes + kScaleBytes);
  static_assert(kStages >= 3);

  struct alignas(1024) Shared {
    uint8_t p[kStages][kPBytes];
    uint8_t q[kStages][kQBytes];
    uint8_t store[kEpilogueWarps][kStoreBuffers][kStoreBytes];
    alignas(128) uint8_t scales[kReadsScales ? kStages : 1][kReadsScales ? kScaleBytes : 1];
    Tile ring[kRing];
    uint64_t ring_full[kRing], ring_empty[kRing];
    uint64_t full[kStages];   // of the leader: both CTAs' loads have arrived
    uint64_t empty[kStages];  // the MMAs have read the stage
    uint64_t accumulated[kAccumulators];
    uint64_t drained[kDrained];  // of the leader: both CTAs' epilogues have read
    uint4 answer;                // of cluster launch control
    uint64_t answered;
    uint64_t answer_read;  // of the leader
    uint32_t tensor_memory;
  };
  static constexpr int kSharedBytes = sizeof(Shared) + 1024;  // the base is only 16-byte aligned
  static_assert(kSharedBytes <= kSharedLimit);

  template <bool kKMajor>
  static constexpr cute::UMMA::Major kMajor =
      kKMajor ? cute::UMMA::Major::K : cute::UMMA::Major::MN;
  using Mma1 =
      cute::SM100_MMA_F16BF16_SS<In, In, float, kLanes, kTileN, kMajor<kPKMajor>, kMajor<kQKMajor>>;
  using Mma2 = cute::SM100_MMA_F16BF16_2x1SM_SS<In, In, float, kCtas == 2 ? kTileM : 256, kTileN,
                                                kMajor<kPKMajor>, kMajor<kQKMajor>>;
  template <class Op>
  using Mma8 =
      cute::MMA_Traits<Op, In, In, float, cute::Int<kTileM>, cute::Int<kTileN>,
                       cute::integral_constant<cute::UMMA::Major, kMajor<kPKMajor>>,
                       cute::integral_constant<cute::UMMA::Major, kMajor<kQKMajor>>,
                       cute::integral_constant<cute::UMMA::ScaleIn, cute::UMMA::ScaleIn::One>,
                       cute::integral_constant<cute::UMMA::ScaleIn, cute::UMMA::ScaleIn::One>>;
  using Mma =
      std::conditional_t<sizeof(In) == 2, std::conditional_t<kCtas == 2, Mma2, Mma1>,
                         std::conditional_t<kCtas == 2, Mma8<cute::SM100_MMA_F8F6F4_2x1SM_SS>,
                                            Mma8<cute::SM100_MMA_F8F6F4_SS>>>;
  using TiledMma = decltype(cute::make_tiled_mma(Mma{}));

  // Writes into the instruction descriptor what In does not say: the formats of 8-bit operands.
  template <class Descriptor>
  __device__ static void SetFormats(const Params&, Descriptor&) {}
  // Elements of a line along K.
  __device__ static int StageElements(const Params&) { return kTileK; }

  // The stages as the MMA sees them: ((rows, 32 bytes of k), 1, 4, stages).
  template <bool kKMajor>
  using Atom = std::conditional_t<kKMajor, cute::UMMA::Layout_K_SW128_Atom<In>,
                                  cute::UMMA::Layout_MN_SW128_Atom<In>>;
  template <bool kKMajor>
  using Order = std::conditional_t<kKMajor, cute::Step<cute::_1, cute::_2, cute::_3>,
                                   cute::Step<cute::_2, cute::_1, cute::_3>>;
  using LayoutP = decltype(cute::UMMA::tile_to_mma_shape(
      Atom<kPKMajor>{},
      cute::append(
          cute::partition_shape_A(TiledMma{}, cute::Shape<cute::Int<kTileM>, cute::Int<kTileK>>{}),
          cute::Int<kStages>{}),
      Order<kPKMajor>{}));
  using LayoutQ = decltype(cute::UMMA::tile_to_mma_shape(
      Atom<kQKMajor>{},
      cute::append(
          cute::partition_shape_B(TiledMma{}, cute::Shape<cute::Int<kTileN>, cute::Int<kTileK>>{}),
          cute::Int<kStages>{}),
      Order<kQKMajor>{}));
};

}  // namespace bwgemm::grouped::sm100
