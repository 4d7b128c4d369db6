// What races remember of a place beyond its cell: sets of readers, and who has seen whose writes.
#include <utility>
#include <vector>

#include "emulator/machine/reader_sets.h"
#include "emulator/machine/strong_accesses.h"
#include "emulator/tests/tensor_check.h"

using namespace bwgemm::emulator;

namespace {

using Kind = StrongAccesses::Kind;

Stamp by(uint16_t actor, uint32_t clock = 1, int lane = 0) {
  return {clock, 1, actor, lane_flags(lane), 7};
}

std::vector<Stamp> readers_of(const ReaderSets& sets, const Cell& cell) {
  const ReaderSets::Readers readers = sets.of(cell);
  return {readers.begin(), readers.end()};
}

bool seen_by(const StrongAccesses& all, uint64_t key, const Stamp& write, uint16_t reader) {
  return all.observed(key, write,
                      [&](const Stamp& read, uint32_t) { return read.actor == reader; });
}

}  // namespace

TEST(sets_of_readers_are_shared_and_bounded) {
  ReaderSets sets;
  const auto nobody = [](const Stamp&) { return false; };
  Cell a{}, b{};
  for (uint16_t actor = 0; actor < 3; ++actor) a.others[actor] = b.others[actor] = by(actor);
  CHECK(!ReaderSets::holds_set(a));
  CHECK(readers_of(sets, a).empty());
  for (uint16_t actor = 3; actor < 60; ++actor) {
    a.others[2] = sets.with(a, by(actor), nobody);
    b.others[2] = sets.with(b, by(actor, 1, 5), nobody);
    CHECK(likeness(a, b) == Likeness::kSame);
  }
  CHECK(ReaderSets::holds_set(a));
  CHECK_EQ(readers_of(sets, a).size(), size_t{32});
  CHECK_EQ(readers_of(sets, a).back().actor, uint16_t{59});
  CHECK(lane_of(readers_of(sets, b).back()) < 0);
  // One who reads again keeps its place; those that are over make room.
  const Stamp before = a.others[2];
  a.others[2] = sets.with(a, by(40), nobody);
  CHECK(likeness(a.others[2], before) == Likeness::kSame);
  a.others[2] = sets.with(a, by(60), [](const Stamp& read) { return read.actor < 50; });
  CHECK_EQ(readers_of(sets, a).size(), size_t{11});
}

// A granule is split as far as accesses ask for, remembers in each part what was there before, and
// is one again when it has been written as a whole.
TEST(granules_are_split_and_joined) {
  Shadow shadow;
  shadow.reset(32);
  const auto visited = [&](uint32_t offset, uint32_t bytes, bool write, uint16_t actor) {
    std::vector<std::pair<uint32_t, uint16_t>> before;
    shadow.visit(offset, bytes, write, [&](Cell& cell, uint32_t at) {
      before.emplace_back(at, cell.write.actor);
      if (write) cell = Cell{by(actor), {}};
    });
    return before;
  };
  using Parts = std::vector<std::pair<uint32_t, uint16_t>>;
  CHECK(visited(0, 32, true, 1) == (Parts{{0, 0}, {16, 0}}));
  CHECK(visited(4, 8, true, 2) == (Parts{{4, 1}, {8, 1}}));
  CHECK(visited(8, 2, true, 3) == (Parts{{8, 2}}));
  CHECK(visited(4, 8, false, 0) == (Parts{{4, 2}, {6, 2}, {8, 3}, {10, 2}}));
  CHECK(visited(9, 1, true, 4) == (Parts{{9, 3}}));
  CHECK(visited(7, 4, false, 0) == (Parts{{7, 2}, {8, 3}, {9, 4}, {10, 2}}));
  CHECK(visited(18, 2, false, 0) == (Parts{{18, 1}}));
  CHECK(visited(0, 32, true, 5).size() == 24);
  CHECK(visited(0, 32, false, 0) == (Parts{{0, 5}, {16, 5}}));
  CHECK(visited(12, 6, false, 0) == (Parts{{12, 5}, {16, 5}}));
}

TEST(reads_see_the_last_store_and_the_atomics_since) {
  StrongAccesses all;
  CHECK(!all.note(64, 4, by(0), Kind::kStore));
  CHECK(!all.note(64, 4, by(1), Kind::kStore));
  CHECK(!all.note(64, 4, by(2), Kind::kReduces));
  CHECK(!all.note(64, 4, by(3), Kind::kAtomic));
  CHECK(!all.note(64, 4, by(4), Kind::kLoad));
  for (const uint16_t reader : {3, 4}) {
    CHECK(!seen_by(all, 64, by(0), reader));
    CHECK(seen_by(all, 64, by(1), reader));
    CHECK(seen_by(all, 66, by(2), reader));
  }
  CHECK(!seen_by(all, 64, by(1), 2));
  CHECK(!seen_by(all, 64, by(3), 3));
  CHECK(seen_by(all, 64, by(3), 4));
  CHECK(!seen_by(all, 68, by(1), 4));
  CHECK(!seen_by(all, 64, by(1, 2), 4));  // a later one
}

TEST(many_writers_of_one_counter) {
  StrongAccesses all;
  for (uint16_t actor = 0; actor < 100; ++actor) all.note(64, 4, by(actor), Kind::kAtomic);
  for (const uint16_t writer : {0, 50, 91, 98}) CHECK(seen_by(all, 64, by(writer), 99));
  CHECK(!seen_by(all, 64, by(99), 99));
}

TEST(strong_accesses_of_other_bytes) {
  StrongAccesses all;
  CHECK(!all.note(64, 4, by(0), Kind::kAtomic));
  CHECK(!all.note(68, 4, by(1), Kind::kAtomic));
  CHECK(all.note(64, 8, by(2), Kind::kAtomic));
  CHECK(!all.note(64, 8, by(3), Kind::kAtomic));
  CHECK(all.note(71, 1, by(4), Kind::kLoad));
  CHECK(!all.note(72, 8, by(4), Kind::kLoad));
}

int main(int argc, char** argv) { return bwgemm::emulator::testing::run_all(argc, argv); }
