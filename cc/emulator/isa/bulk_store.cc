// st.bulk: a thread fills shared memory with zeros (PTX ISA 9.7.9.13).
#include <cstring>

#include "emulator/isa/isa.h"
#include "emulator/isa/lanes.h"
#include "emulator/machine/launch.h"

namespace bwgemm::emulator {
namespace {

constexpr uint64_t kMostBytes = uint64_t{1} << 24;

Step exec_bulk_store(Warp& w, const Instr& in, uint32_t mask) {
  const uint64_t* size = w.r64(in.op[0]);
  for_lanes(mask, [&](int lane) {
    const uint64_t bytes = size[lane];
    if (bytes % 8 != 0 || bytes > kMostBytes)
      w.fault("st.bulk of %llu bytes: not a multiple of 8 up to %llu",
              static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(kMostBytes));
    if (bytes == 0) return;
    const uint32_t count = static_cast<uint32_t>(bytes);
    const auto ref = w.shared(w.address(in.addr, lane), count, 8, false);
    SharedMemory& memory = ref.cta->shared();
    memory.note_write(w, ref.offset, count, w.proxy_stamp(), lane_flags(lane));
    std::memset(memory.data(ref.offset), 0, count);
  });
  w.launch().progress();
  return Step::kNext;
}

void decode_bulk_store(Decoder& d) {
  d.ignore_mods({"weak"});
  const auto space = d.space();
  if (space.space != ptx::Space::kGeneric && (space.space != ptx::Space::kShared || space.cluster))
    d.error("st.bulk writes .shared::cta");
  d.expect_operands(3, 3);
  d.out().addr = d.address(d.operand(0), space.space);
  d.out().op[0] = d.src(1, 64);
  if (!d.is_int_constant(d.operand(2)) || d.int_constant(2) != 0)
    d.error("the initial value of st.bulk must be 0");
  d.out().exec = exec_bulk_store;
}

}  // namespace

void register_bulk_store(IsaTable& t) { t.add({"st.bulk", decode_bulk_store, "9.7.9.13"}); }

}  // namespace bwgemm::emulator
