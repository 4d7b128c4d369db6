// KernelOps for one grouped SM100 kernel of a block format.
#pragma once

#include "core/ceil_div.h"
#include "core/epilogue_arguments.h"
#include "core/mma_format.h"
#include "grouped/sm100/launcher.h"
#include "scaled/limits.h"
#include "scaled/sm100/grouped_mma.h"

namespace bwgemm::scaled::sm100 {

// A line of scaled_grouped.def for one pair of types: the code is all types'.
template <class Spec>
struct GroupedMmaConfig : Spec {
  using Code = GroupedMmaCode<typename Spec::Bytes>;
  static constexpr int kStages = Code::kStages;
};

template <class C>
struct GroupedMmaLauncher {
  using Code = typename C::Code;
  using Plain = grouped::sm100::Launcher<Code>;
  using GroupedProblem = grouped::GroupedProblem;
  static constexpr bool kFourBits = C::kA == DType::kE2M1;
  static constexpr int kPerByte = 8 / BitsOf(C::kA);

  static Status Supports(const GroupedScaledProblem& problem) {
    const GroupedProblem& p = problem.grouped;
    BWGEMM_RETURN_IF_ERROR(CheckPitches(p, C::kKGrouped, C::kOut, kPerByte));
    // TMA counts tiles and bands in 32 bits.
    const int64_t a_bands = C::kKGrouped ? Bands(p.k) : RaggedBands(p);
    const int64_t b_bands = Bands(p.n) * (C::kKGrouped ? 1 : p.experts);
    if (std::max(a_bands, b_bands) > INT32_MAX / p.batch) {
      return Status::InvalidArgument(p.ToString() + " may have more than 2^31 - 1 bands of scales");
    }
    return grouped::CheckCounts(p, Plain::kTile);
  }

  static size_t WorkspaceBytes(const GroupedScaledProblem&) { return 0; }

  static Status Prepare(int device) {
    return SetSharedMemoryLimitOnce<&Function, Code::kSharedBytes>(device);
  }

  static Status Launch(const GroupedScaledProblem& problem, void*, cudaStream_t stream) {
    GroupedMmaParams params{};
    return LaunchWithScales(problem, Function(), params, stream);
  }

  static Status LaunchLinked(const GroupedScaledProblem& problem, const void* function,
                             const void* arguments, void*, cudaStream_t stream) {
    WithEpilogue<GroupedMmaParams> params{};
    params.epilogue = *static_cast<const EpilogueArguments*>(arguments);
    return LaunchWithScales(problem, function, params, stream);
  }

 private:
  template <class LaunchParams>
  static Status LaunchWithScales(const GroupedScaledProblem& problem, const void* function,
                                 LaunchParams& params, cudaStream_t stream) {
    const GroupedProblem& p = problem.grouped;
    GroupedProblem bytes = p;  // what is contracted, in bytes
    (C::kKGrouped ? bytes.m : bytes.k) /= kPerByte;
    BWGEMM_RETURN_IF_ERROR(Plain::MakeMaps(bytes, &params));
    Plain::SetSchedule(p, &params);
    const int64_t depth = C::kKGrouped ? p.m : p.k;
    params.k_blocks = static_cast<int32_t>(CeilDiv(depth, C::kTileK));
    params.tiles = kFourBits ? kMostTiles : 1;
    params.elements = C::kTileK;
    params.descriptor = Descriptor();
    params.alpha = problem.alpha;

    const int64_t a_bands = C::kKGrouped ? Bands(p.k) : RaggedBands(p);
    const int64_t b_bands = Bands(p.n), matrices = C::kKGrouped ? 1 : p.experts;
    const bool a_batched = problem.a.batch_pitch != 0, b_batched = problem.b.batch_pitch != 0;
    params.p_scale_batch = a_batched ? static_cast<int32_t>(a_bands) : 0;
    params.q_scale_batch = b_batched ? static_cast<int32_t>(b_bands * matrices) : 0;
    params.q_scale_expert = static_cast<int32_t>(b_bands);
    const auto encode = [&](const Scales& scales, int64_t bands, CUtensorMap* map) {
      const int64_t halves = 2 * CeilDiv(depth, ScaleTileK(C::kA));
      return grouped::sm100::Encode({scales.tiles, DType::kU8, kHalf, halves, bands},
                                    {kHalf, 2 * params.tiles, CU_TENSOR_MAP_SWIZZLE_NONE},
                                    /*bounded=*/false, map);
    };
    BWGEMM_RETURN_IF_ERROR(
        encode(problem.a, a_bands * (a_batched ? p.batch : 1), &params.p_scales));
    BWGEMM_RETURN_IF_ERROR(
        encode(problem.b, b_bands * matrices * (b_batched ? p.batch : 1), &params.q_scales));
    return Plain::LaunchKernel(function, p, params, stream);
  }

  static constexpr int kHalf = kScaleTileBytes / 2;  // a box of TMA is at most 256 long

  static int64_t Bands(int64_t rows) { return CeilDiv(rows, kScaleTileRows); }
  static int64_t RaggedBands(const GroupedProblem& p) { return RaggedScaleBands(p.m, p.experts); }

  // PTX ISA, "Instruction descriptor format for .kind::mxf8f6f4 and .kind::mxf4nvf4".
  static uint32_t Descriptor() {
    cute::UMMA::InstrDescriptorBlockScaled d{};
    d.a_format_ = MmaFormat(C::kA);
    d.b_format_ = MmaFormat(C::kB);
    d.n_dim_ = C::kTileN >> 3;
    d.m_dim_ = C::kTileM >> 4;
    d.scale_format_ = static_cast<uint8_t>(kFourBits ? cute::UMMA::ScaleFormat::UE4M3
                                                     : cute::UMMA::ScaleFormat::UE8M0);
    return d;
  }

  static const void* Function() {
    return reinterpret_cast<const void*>(&GroupedBlockScaledKernel<Code>);
  }
};

}  // namespace bwgemm::scaled::sm100
