// Stream-K on SM90: pieces of tiles instead of tiles, and how the sums of a tile's pieces meet.
//
// A tile's pieces are added in the order of K, in f32 in memory, so that the bits of D do not
// depend on which CTA finishes first. A piece only waits for a piece of a unit with a lower number,
// and only units of the first round wait. So a CTA waits for none of those after it, and as CTAs
// start in their order, there is no deadlock, whatever else runs on the GPU.
#pragma once

#include "dense/sm90/tiles.h"
#include "dense/stream_k_plan.h"

namespace bwgemm::dense::sm90 {

struct StreamKParams : Params {
  StreamKPlan plan;
  float* sums;     // of each tile that is not one CTA's alone, in the order of the registers
  int32_t* steps;  // how many of a tile's steps along K are in its sums, for each consumer
};

// A tile from step `begin` to `end` along K.
struct Piece : Tile {
  int begin, end;
  int slot;  // of its tile among those that have sums in memory
};

__device__ __forceinline__ int KBlocks(const Params&, const Piece& piece) {
  return piece.end - piece.begin;
}
__device__ __forceinline__ int FirstKBlock(const Params&, const Piece& piece) {
  return piece.begin;
}

// The pieces of one CTA: unit after unit, those of a unit from its end to its beginning. The piece
// at the end of a unit begins a tile, and others wait for its sums; the piece at the beginning ends
// one, and waits for others'.
template <class C>
class Pieces {
 public:
  __device__ __forceinline__ Pieces(const StreamKParams& params, uint32_t rank)
      : order_(params.order),
        plan_(params.plan),
        rank_(rank),
        unit_(ClusterIndex<C>(order_)),
        clusters_(gridDim.x * gridDim.y / C::kCluster),
        units_(plan_.shared_units + (plan_.tiles - plan_.shared_tiles) * plan_.splits) {
    BeginUnit();
  }

  __device__ __forceinline__ bool Valid() const { return unit_ < units_; }
  __device__ __forceinline__ const Piece& Current() const { return piece_; }

  __device__ __forceinline__ void Advance() {
    if (begin_ < end_) {
      FindPiece();
    } else {
      unit_ += clusters_;
      BeginUnit();
    }
  }

 private:
  // A cut, moved to a tile's edge if it is too near to one.
  __device__ __forceinline__ int64_t Whole(int64_t step) const {
    const int after = static_cast<int>(step % plan_.steps);
    if (after < kMinPieceSteps) return step - after;
    return plan_.steps - after < kMinPieceSteps ? step + plan_.steps - after : step;
  }

  // Finds the steps of the unit, or of the next that has any, and its first piece.
  __device__ __forceinline__ void BeginUnit() {
    for (; unit_ < plan_.shared_units; unit_ += clusters_) {
      group_ = unit_ % plan_.groups;
      const int place = unit_ / plan_.groups, units = plan_.shared_units / plan_.groups;
      const int tiles =
          plan_.shared_tiles / plan_.groups + (group_ < plan_.shared_tiles % plan_.groups ? 1 : 0);
      const int64_t total = static_cast<int64_t>(tiles) * plan_.steps;
      const int64_t length = total / units;
      const int longer = static_cast<int>(total % units);
      const int64_t begin = place * length + min(place, longer);
      begin_ = Whole(begin);
      end_ = Whole(begin + length + (place < longer ? 1 : 0));
      if (begin_ < end_) return FindPiece();
    }
    if (!Valid()) return;
    const int tiles = plan_.tiles - plan_.shared_tiles;
    const int part = (unit_ - plan_.shared_units) / tiles;
    const int tile = plan_.shared_tiles + (unit_ - plan_.shared_units) % tiles;
    const int length = plan_.steps / plan_.splits, longer = plan_.steps % plan_.splits;
    const int begin = part * length + min(part, longer);
    SetPiece(tile, begin, begin + length + (part < longer ? 1 : 0));
    begin_ = end_ = 0;
  }

  __device__ __forceinline__ void FindPiece() {
    const int64_t tile = (end_ - 1) / plan_.steps, edge = tile * plan_.steps;
    const int64_t first = begin_ > edge ? begin_ : edge;
    SetPiece(static_cast<int>(tile) * plan_.groups + group_, static_cast<int>(first - edge),
             static_cast<int>(end_ - edge));
    end_ = first;
  }

  __device__ __forceinline__ void SetPiece(int tile, int begin, int end) {
    static_cast<Tile&>(piece_) = TileAt<C>(order_, tile, rank_);
    piece_.begin = begin;
    piece_.end = end;
    piece_.slot = tile * C::kCluster + rank_;
  }

  const TileOrder& order_;
  const StreamKPlan& plan_;
  const int rank_;
  int unit_, clusters_, units_;
  int group_;
  int64_t begin_, end_;  // what is left of the unit's steps, among those of its group's tiles
  Piece piece_;
};

// One consumer's part in the sums of tiles.
template <class C>
struct PieceSums {
  using Accumulator = typename C::template Accumulator<C::kTileN>;
  static constexpr int kVectors = C::kResults / 4;  // of a thread
  static_assert(C::kResults % 4 == 0);
  const StreamKParams& params;
  int consumer, thread;

  // Adds what the pieces before this one have summed.
  __device__ __forceinline__ void AddEarlier(Accumulator& acc, const Piece& piece) const {
    if (thread == 0) {
      int32_t done;
      do {
        asm volatile("ld.acquire.gpu.global.s32 %0, [%1];"
                     : "=r"(done)
                     : "l"(Steps(piece))
                     : "memory");
      } while (done != piece.begin);
    }
    cutlass::arch::NamedBarrier::sync(128, consumer);
    const float4* sums = Sums(piece);
    CUTE_UNROLL
    for (int i = 0; i < kVectors; ++i) {
      const float4 earlier = __ldcg(sums + i * 128);
      acc(4 * i) += earlier.x;
      acc(4 * i + 1) += earlier.y;
      acc(4 * i + 2) += earlier.z;
      acc(4 * i + 3) += earlier.w;
    }
  }

  // Leaves the sums to the piece after this one.
  __device__ __forceinline__ void HandOn(const Accumulator& acc, const Piece& piece) const {
    float4* sums = Sums(piece);
    CUTE_UNROLL
    for (int i = 0; i < kVectors; ++i) {
      __stcg(sums + i * 128,
             make_float4(acc(4 * i), acc(4 * i + 1), acc(4 * i + 2), acc(4 * i + 3)));
    }
    cutlass::arch::NamedBarrier::sync(128, consumer);
    if (thread == 0) {
      asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(Steps(piece)), "r"(piece.end)
                   : "memory");
    }
  }

 private:
  __device__ __forceinline__ int64_t Place(const Piece& piece) const {
    return int64_t{piece.slot} * bwgemm::sm90::kConsumers + consumer;
  }
  __device__ __forceinline__ float4* Sums(const Piece& piece) const {
    return reinterpret_cast<float4*>(params.sums) + Place(piece) * kVectors * 128 + thread;
  }
  __device__ __forceinline__ int32_t* Steps(const Piece& piece) const {
    return params.steps + Place(piece);
  }
};

}  // namespace bwgemm::dense::sm90
