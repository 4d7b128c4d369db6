// One kernel for types of one size: fewer to compile.
//
// tcgen05.mma reads the formats of its operands from the instruction descriptor. So bf16 and f16
// take the same instructions, but for the epilogue's rounding, and so do e4m3 and e5m2. To CUTLASS
// such a kernel is one of bf16 or e4m3 (FormatType), and what its values are is an argument.
#pragma once

#include <cstring>

#include "core/cutlass_type.h"
#include "dense/sm100/visitor.h"
#include "dense/waits_sm100.h"

namespace bwgemm::dense::sm100 {

// The type as which CUTLASS's templates see values of kType.
template <DType kType>
using FormatType = typename CutlassType<kType == DType::kF16    ? DType::kBF16
                                        : kType == DType::kE5M2 ? DType::kE4M3
                                                                : kType>::type;

// Of the MMA's operands: see MmaFormat.
struct OperandFormats {
  uint8_t a = 0, b = 0;
};

// Of results of 16 bits.
struct ResultFormat {
  bool f16 = false;  // else bf16
};

// float -> 16 bits of either type, called Out.
template <class Out, int kCount>
CUTLASS_DEVICE cutlass::Array<Out, kCount> Round(const cutlass::Array<float, kCount>& values,
                                                 ResultFormat format) {
  static_assert(sizeof(Out) == 2);
  cutlass::Array<Out, kCount> rounded;
  if (format.f16) {
    const auto halves = cutlass::NumericArrayConverter<cutlass::half_t, float, kCount>{}(values);
    memcpy(&rounded, &halves, sizeof(rounded));
  } else {
    const auto brains =
        cutlass::NumericArrayConverter<cutlass::bfloat16_t, float, kCount>{}(values);
    memcpy(&rounded, &brains, sizeof(rounded));
  }
  return rounded;
}

// A CollectiveMma.
template <class Base>
struct FormatMainloop : Base {
  struct Arguments : Base::Arguments {
    OperandFormats formats;
  };
  struct Params : Base::Params {
    OperandFormats formats;
  };

  // Kernels that epilogues were linked into before, in exported programs, have Base's parameters.
  static_assert(sizeof(Params) == sizeof(typename Base::Params));

  template <class Shape, class... Rest>
  static Params to_underlying_arguments(const Shape& shape, const Arguments& arguments,
                                        Rest&&... rest) {
    return {Base::to_underlying_arguments(shape, arguments, static_cast<Rest&&>(rest)...),
            arguments.formats};
  }

  template <class... Rest>
  CUTLASS_DEVICE explicit FormatMainloop(const Params& params, Rest&&... rest)
      : Base(params, static_cast<Rest&&>(rest)...), formats_(params.formats) {}

  template <class... Args>
  CUTLASS_DEVICE auto mma_init(Args&&... args) const {
    auto inputs = Base::mma_init(static_cast<Args&&>(args)...);
    inputs.tiled_mma.idesc_.a_format_ = formats_.a & 0b111;
    inputs.tiled_mma.idesc_.b_format_ = formats_.b & 0b111;
    return inputs;
  }

 private:
  OperandFormats formats_;
};

// The epilogue's result, as LoadedAccumulator is, of either type.
template <class Out>
struct FormatAccumulator : Visitor<ResultFormat> {
  using Visitor<ResultFormat>::Visitor;

  struct ConsumerStoreCallbacks : cutlass::epilogue::fusion::EmptyConsumerStoreCallbacks {
    ResultFormat format;

    CUTLASS_DEVICE explicit ConsumerStoreCallbacks(ResultFormat format) : format(format) {}

    template <int kCount>
    CUTLASS_DEVICE cutlass::Array<Out, kCount> visit(
        const cutlass::Array<float, kCount>& accumulator, int index, int, int) {
      if (index == 0) cutlass::arch::fence_view_async_tmem_load();
      return Round<Out>(accumulator, format);
    }
  };

  template <bool kReferenceSource, class... Args>
  CUTLASS_DEVICE auto get_consumer_store_callbacks(
      const cutlass::epilogue::fusion::ConsumerStoreArgs<Args...>&) {
    return ConsumerStoreCallbacks(*params);
  }
};

}  // namespace bwgemm::dense::sm100
