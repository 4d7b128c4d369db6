// Adds the cluster's parts: every CTA writes its f32 tile to shared memory. Then each CTA adds one
// slice of all tiles, in the order of K, and writes it to D.
#pragma once

#include "cute/arch/cluster_sm90.hpp"
#include "cutlass/arch/memory.h"
#include "cutlass/numeric_conversion.h"
#include "dense/cluster_k/config.h"

namespace bwgemm::dense::cluster_k {

// Fragment layout of an accumulator (PTX ISA "wgmma register fragments"): thread t holds, for every
// 8 columns j and half h, row 16 * (t / 32) + 8 * h + (t % 32) / 4 and columns 8 * j + 2 * (t % 4)
// + {0, 1}. Columns of the MMA are rows of D.
template <class Accumulator>
__device__ __forceinline__ void LayOut(const Accumulator& accumulator, Shared& shared) {
  const int lane = threadIdx.x % 32;
  const int column = threadIdx.x / 32 * 16 + lane / 4;
  CUTE_UNROLL
  for (int j = 0; j < kBlock / 8; ++j) {
    CUTE_UNROLL
    for (int i = 0; i < 4; ++i) {
      shared.partial[j * 8 + lane % 4 * 2 + i % 2][column + i / 2 * 8] = accumulator(j * 4 + i);
    }
  }
}

__device__ __forceinline__ float4 LoadFrom(uint32_t address) {
  float4 v;
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(address)
               : "memory");
  return v;
}

// One instruction; assigning a float4 may become four stores.
template <class Out>
__device__ __forceinline__ void Store(Out* d, float4 v) {
  const cutlass::Array<float, 4> in = {v.x, v.y, v.z, v.w};
  const auto out = cutlass::NumericArrayConverter<Out, float, 4>{}(in);
  cutlass::arch::global_store<decltype(out), sizeof(out)>(out, d, true);
}

// Four sums of a row of D in the type that is stored.
struct PlainResult {
  __device__ __forceinline__ float4 operator()(float4 sum, uint32_t, uint32_t, int) const {
    return sum;
  }
};

// Called by the consumer warpgroup, between the cluster's barriers. Up to kMost x kUnits loads are
// on their way before the first is needed.
template <class Out, uint32_t kMost, uint32_t kUnits, class Result>
__device__ __forceinline__ void AddSliceOf(const Params& params, Shared& shared, const Work& work,
                                           uint32_t rank, uint32_t parts, const Result& result) {
  constexpr uint32_t kVectors = kBlock / 4;  // of a row
  Out* d = static_cast<Out*>(params.d) + work.batch * params.d_batch_pitch +
           work.row * params.d_pitch + work.column;
  uint32_t base[kMost];
  CUTE_UNROLL
  for (uint32_t s = 0; s < kMost; ++s) {
    base[s] = cute::set_block_rank(cute::cast_smem_ptr_to_uint(shared.partial), min(s, parts - 1));
  }
  const uint32_t columns = min(params.columns - work.column, kBlock);
  const uint32_t vectors = min(params.rows - work.row, kBlock) * kVectors;
  const uint32_t end = vectors * (rank + 1) / parts;
  for (uint32_t i = vectors * rank / parts + threadIdx.x; i < end; i += kConsumerThreads * kUnits) {
    float4 part[kUnits][kMost];
    CUTE_UNROLL
    for (uint32_t u = 0; u < kUnits; ++u) {
      const uint32_t unit = min(i + u * kConsumerThreads, end - 1);
      const uint32_t row = unit / kVectors, column = unit % kVectors * 4;
      CUTE_UNROLL
      for (uint32_t s = 0; s < kMost; ++s) {
        const uint32_t address = base[s] + (row * kPartialPitch + column) * sizeof(float);
        part[u][s] = s < parts ? LoadFrom(address) : float4{};
      }
    }
    CUTE_UNROLL
    for (uint32_t u = 0; u < kUnits; ++u) {
      float4 sum = part[u][0];
      CUTE_UNROLL
      for (uint32_t s = 1; s < kMost; ++s) {
        if (s < parts) {
          sum.x += part[u][s].x;
          sum.y += part[u][s].y;
          sum.z += part[u][s].z;
          sum.w += part[u][s].w;
        }
      }
      const uint32_t unit = i + u * kConsumerThreads;
      const uint32_t row = unit / kVectors, column = unit % kVectors * 4;
      if (unit < end && column < columns) {
        Store(d + row * params.d_pitch + column,
              result(sum, work.row + row, work.column + column, work.batch));
      }
    }
  }
}

template <class Out, class Result>
__device__ __forceinline__ void AddSlice(const Params& params, Shared& shared, const Work& work,
                                         uint32_t rank, uint32_t parts, const Result& result) {
  if (parts == 1) {
    AddSliceOf<Out, 1, 8>(params, shared, work, rank, parts, result);
  } else if (parts == 2) {
    AddSliceOf<Out, 2, 4>(params, shared, work, rank, parts, result);
  } else if (parts <= 4) {
    AddSliceOf<Out, 4, 2>(params, shared, work, rank, parts, result);
  } else {
    AddSliceOf<Out, kMaxParts, 1>(params, shared, work, rank, parts, result);
  }
}

}  // namespace bwgemm::dense::cluster_k
