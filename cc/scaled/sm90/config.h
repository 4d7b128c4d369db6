// The shape of one scaled SM90 kernel: that of a dense one, whose elements are of 8 bits. Grouped
// ones: grouped_config.h.
#pragma once

#include <numeric>

#include "dense/sm90/config.h"
#include "dense/sm90/linked.h"
#include "scaled/kernel_spec.h"

namespace bwgemm::scaled::sm90 {

// Base: the shape of a kernel without scales, dense or grouped.

// Sums of all of K are scaled in the epilogue. A tile's scales are loaded ahead of it into slots:
// one, or ping-pong one for each consumer.
template <class Base_>
struct ScaledSums : Base_ {
  using Base = Base_;
  static constexpr bool kPromotes = false;
  static constexpr int kScaleSlots = Base::kPingpong ? 2 : 1;
  static constexpr int kTileScales = Base::kTileM + Base::kTileN;
};

// Sums of every 128 of K are scaled and added in f32, with scales that are loaded into the stages.
template <class Base_>
struct PromotedSums : Base_ {
  using Base = Base_;
  static constexpr bool kPromotes = true;
  static constexpr bool kOfRows = Base::kScaleUse == ScaleUse::kRows;
  static_assert(Base::kOwnBlocks == 1 && Base::kTileK == kScaleBlock);

  // Rows of Q in an MMA. Its sums have registers of their own. If there is room for two sets, the
  // MMAs of the next block of K run while the sums of one block are promoted.
  static constexpr int kPart = Base::kTileN == 256 ? kScaleBlock : Base::kTileN;
  static constexpr int kParts = Base::kTileN / kPart;
  static constexpr int kMostRegisters = 192, kSums = Base::kTileN / 2;
  static constexpr int kSumSets = kParts == 1 && kSums + kPart <= kMostRegisters ? 2 : 1;
  static_assert(kSums + kSumSets * kPart / 2 <= kMostRegisters);
  static constexpr bool kTakesTurns = kSumSets == 1 && !Base::kPingpong;  // for each batch of MMAs

  // A tile has rows of at most two square blocks, and this many rows of one wherever it lies.
  static constexpr int kChunk = std::gcd(kPart, kScaleBlock);
  static_assert(kOfRows || kParts > 1 || kPart <= kScaleBlock + kChunk);

  // A stage's scales: of the tile's rows of P, then of Q or of Q's two squares.
  static constexpr int kStageScales = Base::kTileM + (kOfRows ? Base::kTileN : 4);
};

// A linked epilogue reads rows in place: shared memory for them would cost a stage.
template <class Base>
using EpilogueSharedOf =
    std::conditional_t<Base::kStaged, dense::sm90::EpilogueShared<1, Base::kStoreBuffers>,
                       dense::sm90::NoEpilogueShared>;

// kLinked: as of dense::sm90::Config.
template <class Spec, bool kLinked = false>
struct SumsConfig : ScaledSums<dense::sm90::Config<Spec, kLinked>> {
  using Base = dense::sm90::Config<Spec, kLinked>;
  using ScaledSums<Base>::kScaleSlots, ScaledSums<Base>::kTileScales;
  using WithEpilogue = SumsConfig<Spec, true>;
  static constexpr bool kLoadsTwo = false;
  static constexpr int kBarrierBytes = Base::kStaged ? 512 : 256;
  static constexpr int kFixedBytes =
      (kBarrierBytes + kScaleSlots * kTileScales * 4 + 1023) / 1024 * 1024 +
      bwgemm::sm90::kConsumers * Base::kStoreBuffers * Base::kStoreBytes;
  static constexpr int kStages = (kSharedLimit - 1024 - kFixedBytes) / Base::kStageBytes;

  struct alignas(1024) Shared {
    uint8_t p[kStages][Base::P::kBytes];
    uint8_t q[kStages][Base::Q::kBytes];
    alignas(1024) uint8_t store[bwgemm::sm90::kConsumers][Base::kStoreBuffers][Base::kStoreBytes];
    float scales[kScaleSlots][kTileScales];  // of the tile's rows of P, then of Q
    uint64_t full[kStages], empty[kStages];
    uint64_t turn[bwgemm::sm90::kConsumers];
    uint64_t scales_full[kScaleSlots], scales_empty[kScaleSlots];
    EpilogueSharedOf<Base> epilogue;
  };
  static constexpr int kSharedBytes = sizeof(Shared) + 1024;
  static_assert(kStages >= 3 && kSharedBytes <= kSharedLimit);
};

template <class Spec, bool kLinked = false>
struct PromotingConfig : PromotedSums<dense::sm90::Config<Spec, kLinked>> {
  using Base = dense::sm90::Config<Spec, kLinked>;
  using PromotedSums<Base>::kPart, PromotedSums<Base>::kStageScales;
  using WithEpilogue = PromotingConfig<Spec, true>;
  static constexpr bool kLoadsTwo = false;
  static constexpr int kBarrierBytes = 1024;
  static constexpr bool kMovesRegisters = Base::kMovesRegisters || kPart > 64;
  static constexpr int kStageBytes = Base::kStageBytes + kStageScales * 4;
  static constexpr int kStages =
      (kSharedLimit - 1024 - kBarrierBytes -
       bwgemm::sm90::kConsumers * Base::kStoreBuffers * Base::kStoreBytes) /
      kStageBytes;

  struct alignas(1024) Shared {
    uint8_t p[kStages][Base::P::kBytes];
    uint8_t q[kStages][Base::Q::kBytes];
    alignas(1024) uint8_t store[bwgemm::sm90::kConsumers][Base::kStoreBuffers][Base::kStoreBytes];
    uint64_t full[kStages], empty[kStages], scales_full[kStages], scales_empty[kStages];
    uint64_t turn[bwgemm::sm90::kConsumers];
    alignas(16) float scales[kStages][kStageScales];
    EpilogueSharedOf<Base> epilogue;
  };
  static constexpr int kSharedBytes = sizeof(Shared) + 1024;
  static_assert(kSharedBytes <= kSharedLimit);

  using DescriptorPart = typename Base::Q::template Descriptor<kPart>;
};

template <class Spec, bool kLinked = false>
using Config = std::conditional_t<Spec::kScaleUse == ScaleUse::kSums, SumsConfig<Spec, kLinked>,
                                  PromotingConfig<Spec, kLinked>>;

template <class Dense>
struct WithScales : Dense {
  Scales p_scales, q_scales;
};
using Params = WithScales<dense::sm90::Params>;
using LinkedParams = WithScales<dense::sm90::LinkedParams>;

}  // namespace bwgemm::scaled::sm90
