// DType as the type that CUTLASS and CuTe compute with.
#pragma once

#include "core/types.h"
#include "cutlass/bfloat16.h"
#include "cutlass/float8.h"
#include "cutlass/float_subbyte.h"
#include "cutlass/half.h"

namespace bwgemm {

template <DType>
struct CutlassType;
template <>
struct CutlassType<DType::kBF16> {
  using type = cutlass::bfloat16_t;
};
template <>
struct CutlassType<DType::kF16> {
  using type = cutlass::half_t;
};
template <>
struct CutlassType<DType::kF32> {
  using type = float;
};
template <>
struct CutlassType<DType::kE4M3> {
  using type = cutlass::float_e4m3_t;
};
template <>
struct CutlassType<DType::kE5M2> {
  using type = cutlass::float_e5m2_t;
};
template <>
struct CutlassType<DType::kE2M1> {
  using type = cutlass::float_e2m1_t;
};

}  // namespace bwgemm
