// Adding the cluster's parts: every CTA lays its f32 tile out in shared memory, then each adds one
// slice of all of them, in the order of K, and writes it to D.
#pragma once

#include "cute/arch/cluster_sm90.hpp"
#include "cutlass/arch/barrier.h"
#include "cutlass/numeric_conversion.h"
#include "gemm/cluster_k/config.h"

namespace bwgemm::cluster_k {

// Fragment layout of an accumulator (PTX ISA "wgmma register fragments"): thread t holds, for every
// 8 columns j and half h, row 16 * (t / 32) + 8 * h + (t % 32) / 4 and columns 8 * j + 2 * (t % 4)
// + {0, 1}. Columns of the MMA are rows of D.
template <class C>
__device__ __forceinline__ void LayOut(const typename C::Accumulator& accumulator,
                                       typename C::Shared& shared, int consumer, int thread) {
  const int lane = thread % 32;
  const int column = consumer * kBlock + thread / 32 * 16 + lane / 4;
  CUTE_UNROLL
  for (int j = 0; j < C::kTileN / 8; ++j) {
    CUTE_UNROLL
    for (int i = 0; i < 4; ++i) {
      shared.partial[j * 8 + lane % 4 * 2 + i % 2][column + i / 2 * 8] = accumulator(j * 4 + i);
    }
  }
}

__device__ __forceinline__ uint32_t AddressIn(uint32_t rank, uint32_t address) {
  uint32_t mapped;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(address), "r"(rank));
  return mapped;
}

__device__ __forceinline__ float4 LoadFrom(uint32_t address) {
  float4 v;
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(address));
  return v;
}

__device__ __forceinline__ void Store(float* d, float4 v) { *reinterpret_cast<float4*>(d) = v; }
template <class Out>
__device__ __forceinline__ void Store(Out* d, float4 v) {
  const cutlass::Array<float, 4> in = {v.x, v.y, v.z, v.w};
  const auto out = cutlass::NumericArrayConverter<Out, float, 4>{}(in);
  *reinterpret_cast<uint2*>(d) = reinterpret_cast<const uint2&>(out);
}

// Called by all consumers, between the cluster's barriers. kParts x kUnits loads are on their way
// before the first is needed.
template <class C, uint32_t kParts, uint32_t kUnits>
__device__ __forceinline__ void AddSliceOf(const Params& params, typename C::Shared& shared,
                                           const Work& work, uint32_t rank, uint32_t parts,
                                           uint32_t thread) {
  constexpr uint32_t kVectors = C::kTileM / 4;  // of a row
  constexpr uint32_t kThreads = C::kConsumers * 128;
  using Out = typename C::Out;
  Out* d = static_cast<Out*>(params.d) + work.batch * params.d_batch_pitch +
           work.row * params.d_pitch + work.column;
  uint32_t base[kParts];
  CUTE_UNROLL
  for (uint32_t s = 0; s < kParts; ++s) {
    base[s] = AddressIn(min(s, parts - 1), cute::cast_smem_ptr_to_uint(shared.partial));
  }
  const uint32_t columns = min(params.columns - work.column, C::kTileM);
  const uint32_t vectors = min(params.rows - work.row, C::kTileN) * kVectors;
  const uint32_t end = vectors * (rank + 1) / parts;
  for (uint32_t i = vectors * rank / parts + thread; i < end; i += kThreads * kUnits) {
    float4 part[kUnits][kParts];
    CUTE_UNROLL
    for (uint32_t u = 0; u < kUnits; ++u) {
      const uint32_t unit = min(i + u * kThreads, end - 1);
      const uint32_t row = unit / kVectors, column = unit % kVectors * 4;
      CUTE_UNROLL
      for (uint32_t s = 0; s < kParts; ++s) {
        part[u][s] = LoadFrom(base[s] + (row * C::kPartialPitch + column) * sizeof(float));
      }
    }
    CUTE_UNROLL
    for (uint32_t u = 0; u < kUnits; ++u) {
      float4 sum = part[u][0];
      CUTE_UNROLL
      for (uint32_t s = 1; s < kParts; ++s) {
        if (s < parts) {
          sum.x += part[u][s].x;
          sum.y += part[u][s].y;
          sum.z += part[u][s].z;
          sum.w += part[u][s].w;
        }
      }
      const uint32_t unit = i + u * kThreads;
      const uint32_t row = unit / kVectors, column = unit % kVectors * 4;
      if (unit < end && column < columns) Store(d + row * params.d_pitch + column, sum);
    }
  }
}

template <class C>
__device__ __forceinline__ void AddSlice(const Params& params, typename C::Shared& shared,
                                         const Work& work, uint32_t rank, uint32_t parts,
                                         uint32_t thread) {
  if (parts == 1) {
    AddSliceOf<C, 1, 8>(params, shared, work, rank, parts, thread);
  } else if (parts == 2) {
    AddSliceOf<C, 2, 4>(params, shared, work, rank, parts, thread);
  } else if (parts <= 4) {
    AddSliceOf<C, 4, 2>(params, shared, work, rank, parts, thread);
  } else {
    AddSliceOf<C, kMaxParts, 1>(params, shared, work, rank, parts, thread);
  }
}

}  // namespace bwgemm::cluster_k
