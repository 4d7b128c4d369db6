// The SM100 epilogue's result with a function linked in.
//
// A thread has one row of an epilogue tile. It moves the matrix that it reads and the other result
// that it stores in 16 bytes. All lanes of a warp read a row operand at one address. For a sum over
// rows, every warp stores the sum of its 32 rows.
#pragma once

#include "dense/gemm_kernel.h"
#include "dense/linked.h"
#include "dense/sm100/float_format.h"
#include "dense/sm100/visitor.h"

namespace bwgemm::dense::sm100 {

// What the host passes, and the callbacks of a tile's epilogue. Its values are the accumulator's
// or, as the root of a tree, those of its one child.
// kTileM: rows of a tile. kPair: whether two CTAs compute it.
template <int kTileM, bool kPair, bool kSwapAb, class Out>
struct LinkedResult : Visitor<EpilogueArguments> {
  static_assert(sizeof(Out) == 2, "pairs of results are moved as words");
  using Visitor<EpilogueArguments>::Visitor;

  // kColumns: of an epilogue tile. Coordinates: of a thread's elements, from its first one on.
  template <int kColumns, class Coordinates>
  struct ConsumerStoreCallbacks : cutlass::epilogue::fusion::EmptyConsumerStoreCallbacks {
    static constexpr int kVector = 16 / sizeof(Out), kWarp = 32;
    static constexpr int kWarpgroups = kPair ? 2 : 1;  // of a tile
    static_assert(kColumns % (kSwapAb ? kVector : kWarp) == 0);
    // Answers of the plan are constants once the epilogue is inlined; what is then unused takes no
    // registers.
    const EpilogueArguments& arguments;
    Coordinates coordinates;
    int m, n;  // CUTLASS's, of the thread's first element
    int batch;
    uint4 staged[kColumns / kVector];
    float summed[kMaxSums][kColumns];

    CUTLASS_DEVICE ConsumerStoreCallbacks(const EpilogueArguments& arguments,
                                          const Coordinates& coordinates, int m, int n, int batch)
        : arguments(arguments), coordinates(coordinates), m(m), n(n), batch(batch) {}

    CUTLASS_DEVICE static int SumOf(int i) { return bwgemm_epilogue_plan(kFirstSum + i); }

    // Where D has the 16 bytes that begin with a thread's element: nowhere if beyond its edge.
    // Its width is a multiple of theirs.
    template <class Array>
    CUTLASS_DEVICE uint4* In(Array* array, int row, int column) const {
      if (row >= arguments.m || column >= arguments.n) return nullptr;
      return reinterpret_cast<uint4*>(
          static_cast<Out*>(const_cast<void*>(static_cast<const void*>(array))) +
          (int64_t{batch} * arguments.m + row) * arguments.n + column);
    }

    // Ahead of an epilogue tile's wait for its sums.
    CUTLASS_DEVICE void begin_loop(int tile_m, int tile_n) {
      const int operand = bwgemm_epilogue_plan(kStagedOperand);
      if (operand < 0) return;
      CUTE_UNROLL
      for (int i = 0; i < kColumns / kVector; ++i) {
        const auto at = coordinates(cute::_, cute::_, cute::_, tile_m, tile_n)(i * kVector);
        const uint4* from =
            In(arguments.operands[operand], m + cute::get<0>(at), n + cute::get<1>(at));
        staged[i] = from == nullptr ? make_uint4(0, 0, 0, 0) : __ldg(from);
      }
    }

    // Registers may not be used before tcgen05.wait::ld: see LoadedAccumulator, a child's leaf.
    template <class Value, int kCount>
    CUTLASS_DEVICE cutlass::Array<Out, kCount> visit(
        const cutlass::Array<Value, kCount>& accumulator, int index, int tile_m, int tile_n) {
      if (index == 0) cutlass::arch::fence_view_async_tmem_load();
      return visit(accumulator, index, tile_m, tile_n, accumulator);
    }

    // `index` counts the parts of what one load has brought, and is known when it is compiled.
    template <class Value, int kCount>
    CUTLASS_DEVICE cutlass::Array<Out, kCount> visit(const cutlass::Array<Value, kCount>&,
                                                     int index, int tile_m, int tile_n,
                                                     const cutlass::Array<float, kCount>& values) {
      static_assert(kCount % kVector == 0);
      cutlass::Array<float, kCount> results;
      CUTE_UNROLL
      for (int first = 0; first < kCount; first += kVector) {
        const int element = index * kCount + first;
        const auto at = coordinates(cute::_, cute::_, cute::_, tile_m, tile_n)(element);
        const int in_m = m + cute::get<0>(at), in_n = n + cute::get<1>(at);
        uint32_t loaded[kVector / 2], stored[kVector / 2];
        memcpy(loaded, &staged[element / kVector], sizeof(loaded));
        CUTE_UNROLL
        for (int i = 0; i < kVector; i += 2) {
          float2 sums[kMaxSums];
          const int row = kSwapAb ? in_n + i : in_m, column = kSwapAb ? in_m : in_n + i;
          const float2 pair =
              bwgemm_epilogue(values[first + i], values[first + i + 1], row, column, batch,
                              &arguments, &loaded[i / 2], &stored[i / 2], nullptr, 0, sums);
          results[first + i] = pair.x;
          results[first + i + 1] = pair.y;
          CUTE_UNROLL
          for (int s = 0; s < kMaxSums; ++s) {
            if (SumOf(s) < 0) continue;
            summed[s][element + i] = in_m < arguments.m ? sums[s].x : 0;
            summed[s][element + i + 1] = in_m < arguments.m ? sums[s].y : 0;
          }
        }
        const int result = bwgemm_epilogue_plan(kStagedResult);
        if (result < 0) continue;
        if (uint4* to = In(arguments.results[result], in_m, in_n)) {
          *to = make_uint4(stored[0], stored[1], stored[2], stored[3]);
        }
      }
      return Round<Out>(results, ResultFormat{bwgemm_epilogue_plan(kF16Result) >= 0});
    }

    // Each lane adds the warp's rows of every 32nd column of an epilogue tile.
    CUTLASS_DEVICE void end_loop(int tile_m, int tile_n) {
      if constexpr (kSwapAb) return;
      CUTE_UNROLL
      for (int s = 0; s < kMaxSums; ++s) {
        if (SumOf(s) < 0) continue;
        CUTE_UNROLL
        for (int first = 0; first < kColumns; first += kWarp) {
          const float sum = SumOfLane(summed[s] + first);
          const auto at = coordinates(cute::_, cute::_, cute::_, tile_m, tile_n)(first);
          const int row = m + cute::get<0>(at), lane = threadIdx.x % kWarp;
          const int column = n + cute::get<1>(at) + lane;
          if (column >= arguments.n) continue;
          const int64_t part =
              batch * PartialSumRows(arguments.m, kTileM, kWarpgroups) + row / kWarp;
          static_cast<float*>(arguments.results[SumOf(s)])[part * arguments.n + column] = sum;
        }
      }
    }

    // The sum over lanes of their values[lane]. Every exchange halves what a lane still has.
    CUTLASS_DEVICE static float SumOfLane(float* values) {
      const int lane = threadIdx.x % kWarp;
      CUTE_UNROLL
      for (int width = kWarp / 2; width > 0; width /= 2) {
        const bool upper = lane & width;
        CUTE_UNROLL
        for (int i = 0; i < width; ++i) {
          const float given = upper ? values[i] : values[i + width];
          const float kept = upper ? values[i + width] : values[i];
          values[i] = kept + __shfl_xor_sync(0xffffffff, given, width);
        }
      }
      return values[0];
    }
  };

  template <bool kReferenceSource, class... Args>
  CUTLASS_DEVICE auto get_consumer_store_callbacks(
      const cutlass::epilogue::fusion::ConsumerStoreArgs<Args...>& args) {
    using Coordinates = decltype(args.tCcD);
    constexpr int kColumns = decltype(cute::size(cute::take<0, 3>(args.tCcD.layout())))::value;
    // residue_tCcD is what lies between the thread's first element and D's last corner.
    const auto [M, N, K, L] = args.problem_shape_mnkl;
    return ConsumerStoreCallbacks<kColumns, Coordinates>(
        *params, args.tCcD, M - cute::get<0>(args.residue_tCcD),
        N - cute::get<1>(args.residue_tCcD), cute::get<3>(args.tile_coord_mnkl));
  }
};

template <class Spec>
struct Linked {
  template <class CtaTile, class Out>
  using Fusion = LinkedResult<Spec::kTileM, Spec::kSchedule == Schedule::k2Sm, Spec::kSwapAb, Out>;
};

template <class Spec>
using LinkedGemm = GemmKernel<Spec, Linked<Spec>>;

}  // namespace bwgemm::dense::sm100
