// How many tiles a grouped problem may have, and what is refused because the device could not count
// it.
#include <utility>

#include "emulator/tests/tensor_check.h"
#include "grouped/limits.h"

namespace bwgemm::grouped {
namespace {

constexpr TileShape kRows{Contraction::kMGrouped, 32, 128};
constexpr TileShape kContract{Contraction::kKGrouped, 128, 256};

GroupedProblem Problem(int m, int n, int k, int groups, int experts, int batch = 1) {
  GroupedProblem p;
  p.m = m;
  p.n = n;
  p.k = k;
  p.groups = groups;
  p.experts = experts;
  p.batch = batch;
  return p;
}

// Every group may end inside of a tile, whether its matrix is here or on another device.
TEST(row_tiles_are_bounded_by_the_groups_and_not_by_the_experts) {
  CHECK_EQ(MostRowTiles(Problem(320, 8, 8, 64, 2), kRows), int64_t{10 + 65});
  CHECK_EQ(MostRowTiles(Problem(320, 8, 8, 64, 64), kRows), int64_t{10 + 65});
  CHECK_EQ(MostRowTiles(Problem(3, 8, 8, 64, 2), kRows), int64_t{1 + 3});  // one a row at most
  CHECK_EQ(MostTiles(Problem(320, 300, 8, 64, 2, 5), kRows), int64_t{75 * 3 * 5});
  CHECK_EQ(MostTiles(Problem(320, 300, 200, 64, 2, 5), kContract), int64_t{2 * 2 * 2 * 5});
}

TEST(more_tiles_than_the_device_counts_are_refused) {
  // 2^20 + 1 groups' ends and 2^20 tiles of rows, by 2^9 columns of tiles: 2^30 and a little.
  const int m = 32 << 20, n = 128 << 9;
  const Status status = CheckCounts(Problem(m, n, 8, 1 << 20, 1), kRows);
  CHECK(!status.ok());
  CHECK_TEXT(status.message, "has more than 2^30 tiles");
  CHECK(CheckCounts(Problem(m, n / 2, 8, 1 << 20, 1), kRows).ok());
  CHECK(!CheckCounts(Problem(m, n / 2, 8, 1 << 20, 1, 2), kRows).ok());
}

// 2^20 groups in each of 2^17 batch elements: 2^32 steps of 32 groups, which wrapped to zero.
TEST(more_steps_of_groups_than_the_device_counts_are_refused) {
  for (const TileShape& tile : {kRows, kContract}) {
    const Status status = CheckCounts(Problem(8, 8, 8, 1 << 20, 1, 1 << 17), tile);
    CHECK(!status.ok());
    CHECK_TEXT(status.message, "steps of 32 groups");
    CHECK(CheckCounts(Problem(8, 8, 8, 1 << 20, 1, 1 << 15), tile).ok());
  }
}

TEST(rows_that_tma_cannot_address_are_refused) {
  CHECK(CheckLimits(Problem(8, 8, 16, 2, 2), kRows, DType::kBF16).ok());
  for (const auto& [n, k] : {std::pair(8, 12), std::pair(12, 8)}) {
    const Status status = CheckLimits(Problem(8, n, k, 2, 2), kRows, DType::kBF16);
    CHECK_TEXT(status.message, "must be multiples of 8");
  }
}

}  // namespace
}  // namespace bwgemm::grouped

int main(int argc, char** argv) { return bwgemm::emulator::testing::run_all(argc, argv); }
