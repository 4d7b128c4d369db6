// The MMA warp of the leading CTA: stages -> accumulators in tensor memory.
#pragma once

#include "grouped/sm100/pipeline.h"

namespace bwgemm::grouped::sm100 {

template <class C>
struct MmaIssuer {
  const typename C::Params& params;
  typename C::Shared& shared;
  uint32_t tensor_memory;
  RingState<C::kStages> stage{};
  RingState<C::kAccumulators> accumulator{};
  RingState<C::kDrained> drained{};

  // Whole warp; the instructions elect a lane.
  __device__ void Compute(const Tile& tile, int k_blocks) {
    typename C::TiledMma mma;
    C::SetFormats(params, mma.idesc_);
    // A narrower MMA reads the first rows of the same Q, and writes the first of the columns.
    if constexpr (C::kSwapAb) mma.idesc_.n_dim_ = Width<C>(tile) / 8;
    const auto slice = mma.get_slice(cute::Int<0>{});
    auto p = slice.make_fragment_A(cute::make_tensor(
        cute::make_smem_ptr(reinterpret_cast<typename C::In*>(&shared.p)), typename C::LayoutP{}));
    auto q = slice.make_fragment_B(cute::make_tensor(
        cute::make_smem_ptr(reinterpret_cast<typename C::In*>(&shared.q)), typename C::LayoutQ{}));
    auto d = slice.make_fragment_C(
        cute::partition_shape_C(mma, cute::Shape<cute::Int<C::kTileM>, cute::Int<C::kTileN>>{}));
    uint32_t of_d = 0;
    CUTE_NO_UNROLL
    for (int block = 0; block < k_blocks; ++block) {
      if (block == 0 || C::kPromotes) {
        of_d = tensor_memory + accumulator.index * C::kAccumulatorStep;
        d.data() = of_d;
        Barrier::wait(&shared.drained[drained.index], drained.phase ^ 1);
        drained.Advance();
        FenceAfterWait();
        mma.accumulate_ = cute::UMMA::ScaleOut::Zero;
      }
      Barrier::wait(&shared.full[stage.index], stage.phase);
      if constexpr (C::kTrims) {
        const int before = Ahead<C>(tile, params) - block * C::StageElements(params);
        Trim(before, before + tile.rows);
      }
      if constexpr (C::kReadsScales) {
        C::CopyScales(params, shared.scales[stage.index], tensor_memory + C::kScaleColumn);
      }
      CUTE_UNROLL
      for (int k = 0; k < cute::size<2>(p); ++k) {
        if constexpr (C::kReadsScales) {
          C::Multiply(params, p(cute::_0{}, cute::_0{}, k, stage.index),
                      q(cute::_0{}, cute::_0{}, k, stage.index), of_d, block != 0 || k != 0, k,
                      tensor_memory + C::kScaleColumn);
        } else {
          cute::gemm(mma, p(cute::_, cute::_, k, stage.index), q(cute::_, cute::_, k, stage.index),
                     d);
          mma.accumulate_ = cute::UMMA::ScaleOut::One;
        }
      }
      Commit(&shared.empty[stage.index]);
      stage.Advance();
      if (block == k_blocks - 1 || C::kPromotes) {
        Commit(&shared.accumulated[accumulator.index]);
        accumulator.Advance();
      }
    }
  }

 private:
  // Zeroes what a stage has of k outside of the group: in both operands, since it may be NaN. The
  // group's elements are those from `begin` to `end`, which may lie outside of the stage.
  __device__ void Trim(int begin, int end) {
    const int elements = C::StageElements(params);
    if (begin <= 0 && end >= elements) return;
    begin = max(begin, 0);
    end = min(end, elements);
    const int bits = kLineBytes * 8 / elements;
    TrimLines<kLanes>(shared.p[stage.index], begin * bits, end * bits);
    TrimLines<C::kQRows>(shared.q[stage.index], begin * bits, end * bits);
    if constexpr (C::kReadsScales) {
      C::TrimScales(params, shared.scales[stage.index], begin, end);
    }
    cute::tma_store_fence();  // the MMAs read by the asynchronous proxy
    __syncwarp();
  }

  // Lines of bits, of which TMA has exchanged the 16-byte chunks (128-byte swizzle).
  template <int kLines>
  __device__ static void TrimLines(uint8_t* lines, int begin, int end) {
    for (int i = threadIdx.x % 32; i < kLines; i += 32) {
      uint8_t* line = lines + i * kLineBytes;
      for (int chunk = 0; chunk < kLineBytes / 16; ++chunk) {
        const int first = chunk * 128;
        if (begin <= first && first + 128 <= end) continue;
        auto* words = reinterpret_cast<uint32_t*>(line + (chunk ^ (i % 8)) * 16);
        CUTE_UNROLL
        for (int w = 0; w < 4; ++w) {
          words[w] &= LowBits(end - first - w * 32) & ~LowBits(begin - first - w * 32);
        }
      }
    }
  }

  __device__ static uint32_t LowBits(int count) {
    return count >= 32 ? ~0u : (1u << max(count, 0)) - 1;
  }

  // Arrives, in each CTA of the MMA, when all MMAs so far are done.
  __device__ static void Commit(uint64_t* barrier) {
    if constexpr (C::kCtas == 2) {
      cutlass::arch::umma_arrive_multicast_2x1SM(barrier, /*cta_mask=*/0b11);
    } else {
      cutlass::arch::umma_arrive(barrier);
    }
  }
};

}  // namespace bwgemm::grouped::sm100
