// How the operands of a tile lie in the shared memory of a pipeline stage: swizzled boxes, each
// what one TMA instruction loads.
#pragma once

#include <algorithm>

#include "sm90/descriptor.h"
#include "sm90/wgmma.h"

namespace bwgemm::sm90 {

constexpr int kBlock = kMmaRows;  // rows of one MMA
constexpr int kMostBoxRows = 104;
constexpr int kMostBoxes = 4;

// Clamps the first row of some that are loaded together so that they stay inside an operand of
// `rows`. `row` is unsigned: the tiles of the last cluster may begin beyond 2^31.
__device__ inline int ClampedRow(uint32_t row, int together, int rows) {
  return min(row, static_cast<uint32_t>(max(rows - together, 0)));
}

// One operand of kRows x kTileK in a stage. Boxes of a K-major operand are rows x one line of K,
// 128 bytes or all of kTileK if that is less; those of an MN-major operand are rows x all k, one
// line of 128, 64 or 32 bytes of rows per k. A box has 64 rows, or 32 where only those fit a line.
// Where kRows is no multiple of 64, it has up to kMostBoxRows, in multiples of the swizzle's 8.
template <class Element, bool kKMajor_, int kRows, int kTileK, bool kClampsBoxes = true>
struct Stage {
  static constexpr bool kKMajor = kKMajor_;
  static constexpr int kElementBytes = static_cast<int>(sizeof(Element));
  static constexpr int kLineElements =
      std::min(128 / kElementBytes, kKMajor ? kTileK : 128 / kElementBytes);
  static constexpr int kRowBoxes = [] {
    constexpr int kStep = kKMajor ? 8 : kRows % 32 != 0 ? 16 : 32;
    if (kRows % kBlock == 0) return kRows / (kKMajor ? kBlock : std::min(kBlock, kLineElements));
    int boxes = kKMajor ? (kRows + kMostBoxRows - 1) / kMostBoxRows : kRows / kStep;
    while (kRows % (kStep * boxes) != 0) ++boxes;
    return kKMajor && boxes > kMostBoxes ? 1 : boxes;
  }();
  static constexpr int kBoxRows = kRows / kRowBoxes;
  static constexpr int kBoxK = kKMajor ? kLineElements : kTileK;
  static constexpr int kBoxes = kRowBoxes * (kTileK / kBoxK);
  static constexpr int kBoxBytes = kBoxRows * kBoxK * kElementBytes;
  static constexpr int kBytes = kBoxes * kBoxBytes;
  static constexpr int kLineBytes = (kKMajor ? kLineElements : kBoxRows) * kElementBytes;
  static_assert(kRows % kBoxRows == 0 && kTileK % kLineElements == 0);

  // Rows that are moved together: a box, but at least what one store of results takes.
  static constexpr int kUnitRows = kBoxRows < kBlock && kRows % kBlock == 0 ? kBlock : kBoxRows;
  static_assert(kUnitRows % kBoxRows == 0);
  static constexpr int kMovedRows = kClampsBoxes ? kUnitRows : 0;

  // Units stay inside the operand, because TMA takes longer to fill in zeros than to load. Some
  // results are then computed twice, with the same bits. If results depend on the place of a row in
  // its tile, units are not moved (kClampsBoxes).
  __device__ static int UnitRow(uint32_t row, int rows) {
    return kClampsBoxes ? ClampedRow(row, kUnitRows, rows) : static_cast<int>(row);
  }
  // The first row of the tile's box i, counted along the rows, of a tile at `row`.
  __device__ static int BoxRow(uint32_t row, int i, int rows) {
    const int in_tile = i * kBoxRows, in_unit = in_tile % kUnitRows;
    return UnitRow(row + (in_tile - in_unit), rows) + in_unit;
  }

  // A K-major operand with fewer rows than a box has lower boxes. In MN-major ones lines run along
  // the rows.
  static int BoxRowsOf(int rows) { return kKMajor ? std::min(rows, kBoxRows) : kBoxRows; }
  static int BytesOf(int rows) { return kBytes / kBoxRows * BoxRowsOf(rows); }
  static_assert(kLineBytes == 128 || kLineBytes == 64 || kLineBytes == 32);

  // `kDescribedRows` of the operand, all or one box, as wgmma finds them.
  template <int kDescribedRows>
  using Descriptor = TileDescriptor<Element, kKMajor, kLineBytes, kDescribedRows, kTileK>;
};

}  // namespace bwgemm::sm90
