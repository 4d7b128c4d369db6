// The tiles of one CTA, one after the other. Producer and consumers each count for themselves.
#pragma once

#include "gemm/sm90/config.h"

namespace bwgemm::sm90 {

// Where a tile lies, in units of tiles.
struct Tile {
  int p, q, batch;
};

template <class C>
class Tiles {
 public:
  __device__ __forceinline__ Tiles(const TileOrder& order, uint32_t rank)
      : order_(order), rank_(rank) {
    // The grid is one cluster wide in the dimension that runs slower.
    const uint32_t cta = order.along_q ? blockIdx.x + blockIdx.y * gridDim.x
                                       : blockIdx.x * gridDim.y + blockIdx.y;
    index_ = cta / C::kCluster;
    step_ = gridDim.x * gridDim.y / C::kCluster;
    FindTile();
  }

  __device__ __forceinline__ bool Valid() const { return index_ < order_.clusters; }
  __device__ __forceinline__ const Tile& Current() const { return tile_; }

  __device__ __forceinline__ void Advance() {
    index_ += step_;
    FindTile();
  }

 private:
  // Bands are whole: some clusters of the order lie beside the matrix.
  __device__ __forceinline__ void FindTile() {
    for (; index_ < order_.clusters; index_ += step_) {
      int rest = index_, slow_band, fast;
      order_.per_batch(tile_.batch, rest, index_);
      order_.major(slow_band, fast, rest >> order_.log_swizzle);
      const int slow =
          (slow_band << order_.log_swizzle) | (rest & ((1 << order_.log_swizzle) - 1));
      tile_.p = (order_.along_q ? slow : fast) * C::kClusterM;
      tile_.q = (order_.along_q ? fast : slow) * C::kClusterN;
      if (tile_.p < order_.p_tiles && tile_.q < order_.q_tiles) break;
    }
    (C::kSharesQ ? tile_.p : tile_.q) += rank_;
  }

  const TileOrder& order_;
  const int rank_;
  int index_, step_;
  Tile tile_;
};

}  // namespace bwgemm::sm90
