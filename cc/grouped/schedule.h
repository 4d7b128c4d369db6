// Which tile a CTA computes next: the device-side schedulers of the grouped kernels.
//
// Nothing is prepared beforehand: one warp reads the group sizes 32 at a time and finds a tile with
// warp-wide prefix sums. Two orders share that search (raster orders n and m of GroupedConfig):
//
//   horizontal  group after group. A CTA's tiles come in increasing order, so the search only moves
//               forward.
//   vertical    a column of tiles over all groups, then the next column. The search jumps, so each
//               lane first notes the running sums at one point of the list; a ballot over these
//               finds where to look.
//
// m-grouped: a group is divided evenly into as few tiles as possible. Tiles that run side by side
// then take the same time, and what they share (a matrix of B, rows of A) is read from memory once.
// Of 32 neighbouring groups those with the longest tiles come first: tiles of similar length run
// together, and the last ones are short (R. L. Graham, "Bounds on multiprocessing timing
// anomalies", 1969).
#pragma once

#include <cstdint>

#include "grouped/problem.h"

namespace bwgemm::grouped {

struct ScheduleParams {
  const int32_t* sizes;
  const int32_t* offset;
  int32_t sizes_pitch;   // G, or 0 when the batch shares them
  int32_t offset_pitch;  // 1 or 0
  int32_t m, groups, experts, batch;
  int32_t row_tile;   // m-grouped: most rows of a tile, a multiple of row_step
  int32_t row_step;   // m-grouped: rows of every tile but a group's last are a multiple of it
  int32_t row_tiles;  // k-grouped: tiles along K of one result matrix
  int32_t col_tiles;  // tiles along N, in units of a cluster
  int32_t swizzle;    // row tiles per band
  bool vertical;
};

struct Tile {
  int32_t batch;   // -1: there is no such tile
  int32_t expert;  // index into B (m-grouped) or the result (k-grouped); -1: zero rows
  int32_t row;     // first row of A
  int32_t rows;  // m-grouped: 1..row_tile rows to compute; k-grouped: of the whole group, may be 0
  int32_t m_tile;  // k-grouped: tile along K
  int32_t n_tile;  // tile along N, in units of a cluster
};

// Position within a matrix of tiles, in bands of `swizzle` rows of tiles, so that tiles that run
// together share operands.
__device__ inline void BandOrder(int32_t index, int32_t row_tiles, int32_t col_tiles,
                                 int32_t swizzle, int32_t* row, int32_t* col) {
  const int32_t band = index / (swizzle * col_tiles);
  const int32_t first = band * swizzle;
  const int32_t height = min(swizzle, row_tiles - first);
  const int32_t rest = index - first * col_tiles;
  *row = first + rest % height;
  *col = rest / height;
}

// All methods are called by a whole warp and answer the same in every lane.
template <Contraction kContraction>
class Scheduler {
 public:
  __device__ explicit Scheduler(const ScheduleParams& params)
      : p_(params), lane_(threadIdx.x % 32) {
    steps_per_batch_ = p_.groups / 32 + 1;  // segments 0..G: the last one is the rows of no group
    steps_ = steps_per_batch_ * p_.batch;
    if (kContraction == Contraction::kMGrouped && p_.vertical) BuildIndex();
    Rewind();
  }

  // The tile of that index, in [0, 2^31). Cheap when indices increase.
  __device__ Tile At(int32_t index) {
    if constexpr (kContraction == Contraction::kMGrouped) {
      return RowsTile(index);
    } else {
      return ContractTile(index);
    }
  }

 private:
  static constexpr unsigned kAll = 0xffffffffu;

  // 32 consecutive segments, one a lane. `before` = ahead of the step, in units of rows or row
  // tiles.
  struct Step {
    int32_t index;         // batch * steps_per_batch + segment / 32
    int32_t rows_before;   // of this batch element
    int32_t tiles_before;  // of all
    int32_t start, end;    // this lane's segment
    int32_t first_tile;    // row tiles ahead of this lane's, of all
    int32_t tiles_end;     // ahead of those that follow this lane's
    int32_t tiles_after;   // ahead of the next step
  };

  __device__ Tile RowsTile(int32_t index) {
    int32_t row_index, col = 0;
    if (p_.vertical) {
      if (total_tiles_ == 0 || index / total_tiles_ >= p_.col_tiles) return None();
      col = index / total_tiles_;
      row_index = index % total_tiles_;
    } else {
      row_index = index / p_.col_tiles;
    }
    if (row_index < step_.tiles_before) Jump(row_index);
    while (row_index >= step_.tiles_after) {
      if (!Advance()) return None();
    }
    const bool mine = step_.first_tile <= row_index && row_index < step_.tiles_end;
    const int owner = __ffs(__ballot_sync(kAll, mine)) - 1;
    const int32_t start = __shfl_sync(kAll, step_.start, owner);
    const int32_t end = __shfl_sync(kAll, step_.end, owner);
    const int32_t before = __shfl_sync(kAll, step_.first_tile, owner);
    const int32_t segment_tiles = __shfl_sync(kAll, step_.tiles_end, owner) - before;
    const int32_t batch = step_.index / steps_per_batch_;
    const int32_t segment = (step_.index % steps_per_batch_) * 32 + owner;
    int32_t row_tile = row_index - before;
    if (!p_.vertical) {
      BandOrder(index - before * p_.col_tiles, segment_tiles, p_.col_tiles, p_.swizzle, &row_tile,
                &col);
    }
    const uint32_t first = RowsBefore(row_tile, end - start, segment_tiles);
    const uint32_t next = RowsBefore(row_tile + 1, end - start, segment_tiles);
    const int32_t expert = segment - Offset(batch);
    Tile tile;
    tile.batch = batch;
    tile.expert = segment < p_.groups && expert >= 0 && expert < p_.experts ? expert : -1;
    tile.row = start + first;
    tile.rows = min(static_cast<int32_t>(next - first), end - tile.row);
    tile.m_tile = 0;
    tile.n_tile = col;
    return tile;
  }

  __device__ Tile ContractTile(int32_t index) {
    const int32_t per_expert = p_.row_tiles * p_.col_tiles;
    const int32_t matrix = index / per_expert;
    if (matrix >= p_.batch * p_.experts) return None();
    Tile tile;
    tile.batch = matrix / p_.experts;
    tile.expert = matrix % p_.experts;
    BandOrder(index - matrix * per_expert, p_.row_tiles, p_.col_tiles, p_.swizzle, &tile.m_tile,
              &tile.n_tile);
    tile.row = 0;
    tile.rows = 0;
    const int32_t group = tile.expert + Offset(tile.batch);
    if (group < p_.groups) {
      const int32_t wanted = tile.batch * steps_per_batch_ + group / 32;
      if (wanted < step_.index) Rewind();
      while (step_.index < wanted && Advance()) {
      }
      tile.row = __shfl_sync(kAll, step_.start, group % 32);
      tile.rows = __shfl_sync(kAll, step_.end, group % 32) - tile.row;
    }
    return tile;
  }

  __device__ static Tile None() { return {-1, -1, 0, 0, 0, 0}; }

  __device__ int32_t Offset(int32_t batch) const {
    return min(max(p_.offset[batch * p_.offset_pitch], 0), p_.groups);
  }

  // Of a group, ahead of one of its tiles; for the one after the last perhaps more than it has.
  __device__ uint32_t RowsBefore(uint32_t tile, uint32_t rows, uint32_t tiles) const {
    const uint32_t steps = (rows - 1) / p_.row_step + 1;
    return (tile * (steps / tiles) + min(tile, steps % tiles)) * p_.row_step;
  }

  __device__ void Rewind() { Load(0, 0, 0); }

  // Moves to the next 32 segments; false after the last.
  __device__ bool Advance() {
    if (step_.index + 1 >= steps_) return false;
    const int32_t rows = __shfl_sync(kAll, step_.end, 31);
    const bool new_batch = (step_.index + 1) % steps_per_batch_ == 0;
    Load(step_.index + 1, new_batch ? 0 : rows, step_.tiles_after);
    return true;
  }

  __device__ void Load(int32_t index, int32_t rows_before, int32_t tiles_before) {
    const int32_t batch = index / steps_per_batch_;
    const int32_t segment = (index % steps_per_batch_) * 32 + lane_;
    int64_t size = 0;
    if (segment < p_.groups) {
      size = max(__ldg(p_.sizes + static_cast<int64_t>(batch) * p_.sizes_pitch + segment), 0);
    }
    // 64 bits: 32 sizes of up to 2^31 must not wrap.
    const int64_t end = rows_before + InclusiveSum(size);
    step_.index = index;
    step_.rows_before = rows_before;
    step_.tiles_before = tiles_before;
    step_.start = static_cast<int32_t>(min(end - size, static_cast<int64_t>(p_.m)));
    step_.end =
        segment < p_.groups ? static_cast<int32_t>(min(end, static_cast<int64_t>(p_.m))) : p_.m;
    if (segment > p_.groups) step_.start = p_.m;
    if constexpr (kContraction == Contraction::kMGrouped) {
      const int32_t rows = step_.end - step_.start;
      const int32_t tiles = rows == 0 ? 0 : (rows - 1) / p_.row_tile + 1;
      const int32_t rows_of_tile = rows == 0 ? 0 : (rows - 1) / tiles + 1;
      int32_t ahead = 0, all = 0;
#pragma unroll 4  // not 32: this warp has few registers, and spills them to memory
      for (int lane = 0; lane < 32; ++lane) {
        const int32_t others_rows = __shfl_sync(kAll, rows_of_tile, lane);
        const int32_t others = __shfl_sync(kAll, tiles, lane);
        const bool first =
            others_rows > rows_of_tile || (others_rows == rows_of_tile && lane < lane_);
        ahead += first ? others : 0;
        all += others;
      }
      step_.first_tile = tiles_before + ahead;
      step_.tiles_end = step_.first_tile + tiles;
      step_.tiles_after = tiles_before + all;
    }
  }

  __device__ int64_t InclusiveSum(int64_t value) const {
    for (int distance = 1; distance < 32; distance *= 2) {
      const int64_t other = __shfl_up_sync(kAll, value, distance);
      if (lane_ >= distance) value += other;
    }
    return value;
  }

  // One pass over all sizes: lane i keeps the sums ahead of step i * stride_.
  __device__ void BuildIndex() {
    stride_ = (steps_ + 31) / 32;
    Rewind();
    do {
      if (step_.index == lane_ * stride_) {
        index_rows_ = step_.rows_before;
        index_tiles_ = step_.tiles_before;
      }
    } while (Advance());
    total_tiles_ = step_.tiles_after;
  }

  // To a step at or before the one with that row tile.
  __device__ void Jump(int32_t row_index) {
    if (!p_.vertical) return Rewind();
    const bool candidate = lane_ * stride_ < steps_ && index_tiles_ <= row_index;
    const int lane = 31 - __clz(__ballot_sync(kAll, candidate));  // lane 0 always is one
    Load(lane * stride_, __shfl_sync(kAll, index_rows_, lane),
         __shfl_sync(kAll, index_tiles_, lane));
  }

  ScheduleParams p_;
  int32_t lane_;
  int32_t steps_per_batch_, steps_;
  int32_t stride_ = 1, total_tiles_ = 0;
  int32_t index_rows_ = 0, index_tiles_ = 0;
  Step step_{};
};

}  // namespace bwgemm::grouped
