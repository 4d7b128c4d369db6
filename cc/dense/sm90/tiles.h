// The tiles of one CTA, one after the other. Producer and consumers each count for themselves.
#pragma once

#include "dense/sm90/config.h"

namespace bwgemm::dense::sm90 {

// Where a tile lies, in units of tiles.
struct Tile {
  int p, q, batch;
};

// Its first row of either operand; of P's matrices, if there are two.
template <class C>
__device__ __forceinline__ uint32_t PRow(const Tile& tile) {
  return static_cast<uint32_t>(tile.p) * C::kPRows;
}
template <class C>
__device__ __forceinline__ uint32_t QRow(const Tile& tile) {
  return static_cast<uint32_t>(tile.q) * C::kTileN;
}

// The number of its blocks along K, and the index of the first one.
__device__ __forceinline__ int KBlocks(const Params& params, const Tile& tile) {
  return params.k_blocks + (tile.batch < params.longer_parts);
}
__device__ __forceinline__ int FirstKBlock(const Params& params, const Tile& tile) {
  return tile.batch * params.part_blocks + min(tile.batch, params.longer_parts);
}

// The tile of the cluster at `index` in the order that the CTA of this rank computes.
template <class C>
__device__ __forceinline__ Tile TileAt(const TileOrder& order, int index, int rank) {
  Tile tile;
  int in_batch, band, in_band;
  order.per_batch(tile.batch, in_batch, index);
  order.per_band(band, in_band, in_batch);
  const int first = band << order.log_swizzle, left = order.height - first;
  int across, along;
  if (left >= 1 << order.log_swizzle) {
    across = in_band & ((1 << order.log_swizzle) - 1);
    along = in_band >> order.log_swizzle;
  } else {
    across = in_band % left;
    along = in_band / left;
  }
  tile.p = (order.along_q ? first + across : along) * C::kClusterM;
  tile.q = (order.along_q ? along : first + across) * C::kClusterN;
  (C::kSharesQ ? tile.p : tile.q) += rank;
  return tile;
}

// This CTA's cluster. The grid is one cluster wide in its outer dimension.
template <class C>
__device__ __forceinline__ int ClusterIndex(const TileOrder& order) {
  const uint32_t cta =
      order.along_q ? blockIdx.x + blockIdx.y * gridDim.x : blockIdx.x * gridDim.y + blockIdx.y;
  return cta / C::kCluster;
}

template <class C>
class Tiles {
 public:
  __device__ __forceinline__ Tiles(const Params& params, uint32_t rank)
      : order_(params.order), rank_(rank), index_(ClusterIndex<C>(order_)) {
    if (order_.placed) index_ = order_.slots[index_];
    step_ = gridDim.x * gridDim.y / C::kCluster;
    tile_ = TileAt<C>(order_, index_, rank_);
  }

  __device__ __forceinline__ bool Valid() const {
    return index_ < static_cast<uint32_t>(order_.clusters);
  }
  __device__ __forceinline__ const Tile& Current() const { return tile_; }

  __device__ __forceinline__ void Advance() {
    index_ += step_;
    tile_ = TileAt<C>(order_, index_, rank_);
  }

 private:
  const TileOrder& order_;
  const int rank_;
  uint32_t index_;  // beyond the last tile it may not fit in an int
  int step_;
  Tile tile_;
};

}  // namespace bwgemm::dense::sm90
