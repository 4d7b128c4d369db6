// The grouped SM100 kernel of block formats: values and tiles of scales arrive together, tcgen05.cp
// copies the scales to tensor memory, and block-scaled MMAs read them there.
//
// One kernel serves both formats: a line of 128 bytes is the K of four instructions, whether of 32
// MXFP8 values or of 64 NVFP4 values. MXFP8 has a tile of scales for each stage, of which each
// instruction takes one scale of a row; NVFP4 has a tile for each instruction.
//
// A tile of scales has 128 rows. B's rows, and both operands' of a k-grouped product, are matrices
// from row 0 on. The ragged rows of an m-grouped A have bands of their own in every group: row r of
// group e is in band first / 128 + e + (r - first) / 128, which no other group has, where `first`
// is the group's first row. As tiles begin at multiples of 128 rows of their group, that is
// tile.row / 128 + e for a tile's first band.
#pragma once

#include "grouped/sm100/kernel.h"
#include "scaled/grouped_kernel_spec.h"

namespace bwgemm::scaled::sm100 {

struct GroupedMmaParams : grouped::sm100::Params {
  CUtensorMap p_scales, q_scales;  // (256 bytes, two a tile, bands)
  int32_t p_scale_batch;           // bands from one batch element of P's to the next
  int32_t q_scale_batch, q_scale_expert;
  int32_t tiles;        // of scales of a band in a stage: 1, or 4 of 4-bit values
  int32_t elements;     // of a line: 128 or 256
  uint32_t descriptor;  // of the instruction, but for the ids of scales
  Scales alpha;         // of all of a matrix's results, if there is one
};

// One instruction of 32 bytes of k: MXFP8, or NVFP4.
template <int kCtas, bool kFourBits>
__device__ void MultiplyScaled(uint64_t p, uint64_t q, uint32_t d, bool accumulate,
                               uint32_t descriptor, uint32_t p_scales, uint32_t q_scales) {
#define BWGEMM_SCALED_MMA(instruction)                                                         \
  asm volatile("{\n\t.reg .pred accumulate;\n\tsetp.ne.b32 accumulate, %4, 0;\n\t" instruction \
               " [%0], %1, %2, %3, [%5], [%6], accumulate;\n\t}" ::"r"(d),                     \
               "l"(p), "l"(q), "r"(descriptor), "r"(static_cast<uint32_t>(accumulate)),        \
               "r"(p_scales), "r"(q_scales)                                                    \
               : "memory")
  if constexpr (kCtas == 2 && kFourBits) {
    BWGEMM_SCALED_MMA("tcgen05.mma.cta_group::2.kind::mxf4nvf4.block_scale.block16");
  } else if constexpr (kCtas == 2) {
    BWGEMM_SCALED_MMA("tcgen05.mma.cta_group::2.kind::mxf8f6f4.block_scale.block32");
  } else if constexpr (kFourBits) {
    BWGEMM_SCALED_MMA("tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale.block16");
  } else {
    BWGEMM_SCALED_MMA("tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale.block32");
  }
#undef BWGEMM_SCALED_MMA
}

// A tile of scales to four columns of tensor memory, in all four quadrants of lanes.
template <int kCtas>
__device__ void CopyScaleTile(const uint8_t* tile, uint32_t column) {
  cute::UMMA::SmemDescriptor from{};  // 32 rows of 16 bytes, 128 bytes from eight to the next eight
  from.version_ = 1;
  from.start_address_ = cute::cast_smem_ptr_to_uint(tile) >> 4;
  from.stride_byte_offset_ = 128 >> 4;
  if constexpr (kCtas == 2) {
    cute::SM100_UTCCP_4x32dp128bit_2cta::copy(from, column);
  } else {
    cute::SM100_UTCCP_4x32dp128bit_1cta::copy(from, column);
  }
}

// Multiplies by alpha, where there is one.
struct AlphaResults : grouped::sm100::PlainResults {
  template <int kCount>
  __device__ static void Apply(const GroupedMmaParams& params, const grouped::Tile& tile, int, int,
                               uint32_t (&values)[kCount]) {
    const Scales& alpha = params.alpha;
    if (!alpha.data) return;
    const float factor =
        __ldg(alpha.data + tile.batch * alpha.batch_pitch + tile.expert * alpha.expert_pitch);
    CUTE_UNROLL
    for (int i = 0; i < kCount; ++i) {
      values[i] = __float_as_uint(factor * __uint_as_float(values[i]));
    }
  }
};

// Bands of Q's rows, and the most tiles of a band that a stage has.
constexpr int kQBands = 2, kMostTiles = 4;
constexpr int kGroupedScaleBytes = (1 + kQBands) * kMostTiles * kScaleTileBytes;

template <class Bytes>
struct GroupedMmaCode : grouped::sm100::Config<Bytes, kGroupedScaleBytes> {
  using Base = grouped::sm100::Config<Bytes, kGroupedScaleBytes>;
  using Base::kCtas, Base::kKGrouped, Base::kTileN;
  static_assert(Bytes::kScaleUse == ScaleUse::kMma && !Bytes::kSwapAb);
  static_assert(kTileN == kQBands * kScaleTileRows && grouped::sm100::kLanes == kScaleTileRows);
  using Params = GroupedMmaParams;
  using Results = AlphaResults;

  __device__ static int StageElements(const Params& params) { return params.elements; }
  __device__ static int ScaleBytes(const Params& params) {
    return (1 + kQBands) * params.tiles * kScaleTileBytes;
  }

  // Of a stage: P's tiles, then those of each of Q's bands.
  template <class Loader>
  __device__ static void LoadScales(const Loader& loader, const grouped::Tile& tile, int block,
                                    uint8_t* to, uint64_t* full) {
    const Params& params = loader.params;
    const int first = kKGrouped ? tile.row / params.elements : 0;
    const int half = (first + block) * params.tiles * 2;
    const int p_band = tile.batch * params.p_scale_batch +
                       (kKGrouped ? tile.m_tile : tile.row / kScaleTileRows + tile.expert);
    const int q_band = tile.batch * params.q_scale_batch +
                       (kKGrouped ? 0 : tile.expert * params.q_scale_expert) +
                       tile.n_tile * kQBands;
    const int bytes = params.tiles * kScaleTileBytes;
    Loader::Copy3(params.p_scales, full, to, 0, half, p_band + static_cast<int>(loader.cta_rank));
    CUTE_UNROLL
    for (int band = 0; band < kQBands; ++band) {
      Loader::Copy3(params.q_scales, full, to + (1 + band) * bytes, 0, half, q_band + band);
    }
  }

  // Columns: four for each of P's tiles, then eight for each tile of both of Q's bands.
  __device__ static void CopyScales(const Params& params, const uint8_t* from, uint32_t columns) {
    if (!cute::elect_one_sync()) return;
    const int tiles = params.tiles;
    CUTE_NO_UNROLL
    for (int t = 0; t < tiles; ++t) {
      CopyScaleTile<kCtas>(from + t * kScaleTileBytes, columns + 4 * t);
      CUTE_UNROLL
      for (int band = 0; band < kQBands; ++band) {
        CopyScaleTile<kCtas>(from + ((1 + band) * tiles + t) * kScaleTileBytes,
                             columns + 4 * kMostTiles + 4 * (kQBands * t + band));
      }
    }
  }

  __device__ static void Multiply(const Params& params, uint64_t p, uint64_t q, uint32_t d,
                                  bool accumulate, int k, uint32_t columns) {
    if (!cute::elect_one_sync()) return;
    const uint32_t of_p = columns, of_q = columns + 4 * kMostTiles;
    if (params.tiles == 1) {
      const uint32_t ids = static_cast<uint32_t>(k) << 29 | static_cast<uint32_t>(k) << 4;
      MultiplyScaled<kCtas, false>(p, q, d, accumulate, params.descriptor | ids, of_p, of_q);
    } else {
      MultiplyScaled<kCtas, true>(p, q, d, accumulate, params.descriptor, of_p + 4 * k,
                                  of_q + 4 * kQBands * k);
    }
  }

  // Zeroes the scales of blocks outside the group: values there are zeros, and zero times a NaN
  // scale would be NaN.
  __device__ static void TrimScales(const Params& params, uint8_t* scales, int begin, int end) {
    const int block = params.elements / (4 * params.tiles);
    for (int t = 0; t < params.tiles; ++t) {
      uint32_t kept = 0;
      CUTE_UNROLL
      for (int i = 0; i < 4; ++i) {
        const int first = (4 * t + i) * block;
        if (first < end && begin < first + block) kept |= 0xffu << 8 * i;
      }
      if (kept == ~0u) continue;
      for (int band = 0; band < 1 + kQBands; ++band) {
        auto* words =
            reinterpret_cast<uint32_t*>(scales + (band * params.tiles + t) * kScaleTileBytes);
        for (int i = threadIdx.x % 32; i < kScaleTileBytes / 4; i += 32) words[i] &= kept;
      }
    }
  }
};

template <class C>
__global__ void __launch_bounds__(grouped::sm100::kThreads, 1)
    GroupedBlockScaledKernel(const __grid_constant__ GroupedMmaParams params) {
  grouped::sm100::RunCta<C>(params);
}

}  // namespace bwgemm::scaled::sm100
