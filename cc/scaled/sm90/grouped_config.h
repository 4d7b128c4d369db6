// The shape of one grouped scaled SM90 kernel: that of a grouped one, whose elements are of 8 bits.
#pragma once

#include "core/epilogue_arguments.h"
#include "grouped/sm90/config.h"
#include "scaled/grouped_kernel_spec.h"
#include "scaled/sm90/config.h"

namespace bwgemm::scaled::sm90 {

struct GroupedParams : grouped::sm90::Params {
  Scales p_scales, q_scales;
  int32_t p_rows, q_rows;  // of the operands that have these scales
};
struct LinkedGroupedParams : GroupedParams {
  EpilogueArguments epilogue;
};

template <class Base>
struct GroupedShared {
  static constexpr int kStoreBytes =
      bwgemm::sm90::kConsumers * Base::kStoreBuffers * Base::kStoreBytes;
  // Shared memory is declared at a multiple of 1024, where it begins if nothing else is in it. The
  // others round its address up; k-grouped kernels rely on it, for a fourth stage of 128 x 256.
  static constexpr int kRounding = Base::kKGrouped ? 0 : 1024;
  static constexpr int kBarrierBytes = Base::kKGrouped ? 896 : Base::kBarrierBytes;
  // Bytes for the pipeline's stages, barriers and the ring of tiles taken off.
  static constexpr int kStageSpace = kSharedLimit - kRounding - kBarrierBytes - kStoreBytes;
};

template <class Spec, bool kLinked>
struct GroupedSumsConfig : ScaledSums<grouped::sm90::Config<Spec, kLinked>> {
  using Base = grouped::sm90::Config<Spec, kLinked>;
  using LinkedParams = LinkedGroupedParams;
  using ScaledSums<Base>::kScaleSlots, ScaledSums<Base>::kTileScales;
  static constexpr int kAssistants = 1;
  static constexpr int kStages =
      (GroupedShared<Base>::kStageSpace - kScaleSlots * kTileScales * 4) / Base::kStageBytes;

  struct alignas(1024) Shared {
    uint8_t p[kStages][Base::kPBytes];
    uint8_t q[kStages][Base::kQBytes];
    uint8_t store[bwgemm::sm90::kConsumers][Base::kStoreBuffers][Base::kStoreBytes];
    float scales[kScaleSlots][kTileScales];  // of the tile's rows of P, then of Q
    uint64_t full[kStages], empty[kStages];
    uint64_t untrimmed[Base::kKGrouped ? kStages : 1];  // filled, but for the trimmer
    uint64_t turn[bwgemm::sm90::kConsumers];
    uint64_t scales_full[kScaleSlots], scales_empty[kScaleSlots];
    grouped::sm90::RingShared tiles;
  };
  static constexpr int kSharedBytes = sizeof(Shared) + GroupedShared<Base>::kRounding;
  static_assert(kStages >= 3 && kSharedBytes <= kSharedLimit);
};

template <class Spec, bool kLinked>
struct GroupedPromotingConfig : PromotedSums<grouped::sm90::Config<Spec, kLinked>> {
  using Base = grouped::sm90::Config<Spec, kLinked>;
  using LinkedParams = LinkedGroupedParams;
  using PromotedSums<Base>::kPart, PromotedSums<Base>::kStageScales;
  static constexpr int kAssistants = 1;
  static constexpr int kStages =
      GroupedShared<Base>::kStageSpace / (Base::kStageBytes + kStageScales * 4);

  struct alignas(1024) Shared {
    uint8_t p[kStages][Base::kPBytes];
    uint8_t q[kStages][Base::kQBytes];
    uint8_t store[bwgemm::sm90::kConsumers][Base::kStoreBuffers][Base::kStoreBytes];
    uint64_t full[kStages], empty[kStages], scales_full[kStages], scales_empty[kStages];
    uint64_t untrimmed[Base::kKGrouped ? kStages : 1];  // filled, but for the trimmer
    uint64_t turn[bwgemm::sm90::kConsumers];
    grouped::sm90::RingShared tiles;
    alignas(16) float scales[kStages][kStageScales];
  };
  static constexpr int kSharedBytes = sizeof(Shared) + GroupedShared<Base>::kRounding;
  static_assert(kStages >= 3 && kSharedBytes <= kSharedLimit);

  using DescriptorPart = typename Base::template DescriptorOfQ<kPart>;
};

// kLinked: whether an epilogue is linked in (grouped/linked.h).
template <class Spec, bool kLinked = false>
using GroupedConfig =
    std::conditional_t<Spec::kScaleUse == ScaleUse::kSums, GroupedSumsConfig<Spec, kLinked>,
                       GroupedPromotingConfig<Spec, kLinked>>;

}  // namespace bwgemm::scaled::sm90
