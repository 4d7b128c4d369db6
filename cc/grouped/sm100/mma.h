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
  RingState<kAccumulators> accumulator{};

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
    d.data() = tensor_memory + accumulator.index * C::kTileN;

    Barrier::wait(&shared.drained[accumulator.index], accumulator.phase ^ 1);
    FenceAfterWait();
    mma.accumulate_ = cute::UMMA::ScaleOut::Zero;
    CUTE_NO_UNROLL
    for (int block = 0; block < k_blocks; ++block) {
      Barrier::wait(&shared.full[stage.index], stage.phase);
      FenceAfterWait();
      if constexpr (C::kTrims) Trim(tile.rows - block * C::kTileK);
      CUTE_UNROLL
      for (int k = 0; k < cute::size<2>(p); ++k) {
        cute::gemm(mma, p(cute::_, cute::_, k, stage.index), q(cute::_, cute::_, k, stage.index),
                   d);
        mma.accumulate_ = cute::UMMA::ScaleOut::One;
      }
      Commit(&shared.empty[stage.index]);
      stage.Advance();
    }
    Commit(&shared.accumulated[accumulator.index]);
    accumulator.Advance();
  }

 private:
  // Zeroes what a stage has of k beyond the group: in both operands, since it may be NaN.
  __device__ void Trim(int valid) {
    if (valid >= C::kTileK) return;
    TrimLines<kLanes>(shared.p[stage.index], valid);
    TrimLines<C::kQRows>(shared.q[stage.index], valid);
    cute::tma_store_fence();  // the MMAs read by the asynchronous proxy
    __syncwarp();
  }

  // Lines of bytes, of which TMA has exchanged the 16-byte chunks (128-byte swizzle).
  template <int kLines>
  __device__ static void TrimLines(uint8_t* lines, int valid) {
    const int first = valid / 16, cut = valid % 16;
    for (int i = threadIdx.x % 32; i < kLines; i += 32) {
      uint8_t* line = lines + i * kLineBytes;
      for (int chunk = first; chunk < kLineBytes / 16; ++chunk) {
        auto* words = reinterpret_cast<uint32_t*>(line + (chunk ^ (i % 8)) * 16);
        CUTE_UNROLL
        for (int w = 0; w < 4; ++w) {
          const int kept = chunk == first ? Clamp(cut - w * 4, 4) : 0;  // bytes
          words[w] = kept == 4 ? words[w] : words[w] & ((1u << kept * 8) - 1);
        }
      }
    }
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
