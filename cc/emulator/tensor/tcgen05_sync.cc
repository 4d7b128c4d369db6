// tcgen05.commit and tcgen05.fence: PTX ISA 9.7.16.11 and 9.7.16.12.
#include "emulator/machine/mbarrier.h"
#include "emulator/tensor/register.h"
#include "emulator/tensor/tensor_state.h"

namespace bwgemm::emulator {
namespace {

// Completes after everything the thread has issued to the tensor core; its arrival is what lets
// others touch the operands and results again.
struct CommitOp : AsyncOp {
  Holds holds;
  std::vector<std::pair<Cta*, uint32_t>> barriers;

  bool step(Launch& launch) override {
    holds.release();
    for (const auto& [cta, offset] : barriers) mbarrier_arrive(launch, *cta, offset, 1, origin);
    return true;
  }
};

Step exec_commit(Warp& warp, const Instr& in, uint32_t mask) {
  const CtaSet set = cta_set(warp, in.sub);
  for_lanes(mask, [&](int lane) {
    auto op = std::make_unique<CommitOp>();
    const Warp::SharedRef barrier = warp.shared(warp.address(in.addr, lane), 8, 8, true);
    if (in.op[0] == kNoRow) {
      op->barriers.push_back({barrier.cta, barrier.offset});
    } else {
      // The same offset in every CTA of the mask.
      const uint32_t ctas = warp.r32(in.op[0])[lane] & 0xffffu;
      Cluster& cluster = warp.cta().cluster();
      for_lanes(ctas, [&](int rank) {
        if (static_cast<uint32_t>(rank) >= cluster.size()) {
          warp.fault("CTA mask 0x%x names rank %d of a cluster of %u", ctas, rank, cluster.size());
        }
        op->barriers.push_back({&cluster.cta(static_cast<uint32_t>(rank)), barrier.offset});
      });
    }
    op->holds.take(std::move(tensor_of(warp).uncommitted[lane]));
    warp.launch().submit(warp, std::move(op), tensor_pipe(set));
  });
  return Step::kNext;
}

void decode_commit(Decoder& d) {
  d.out().sub = decode_cta_group(d);
  if (!d.mod("mbarrier::arrive::one")) d.error("needs .mbarrier::arrive::one");
  const bool multicast = d.mod("multicast::cluster");
  d.ignore_mods({"shared::cluster", "b64"});
  d.expect_operands(multicast ? 2 : 1, multicast ? 2 : 1);
  d.out().addr = d.address(0, ptx::Space::kShared);
  if (multicast) d.out().op[0] = d.src(1, 16);
  d.out().exec = exec_commit;
}

// The fences only order what the machine executes in order anyway; asynchronous accesses are
// checked against waits, which is stricter.
Step exec_fence(Warp&, const Instr&, uint32_t) { return Step::kNext; }

void decode_fence(Decoder& d) {
  d.expect_operands(0, 0);
  d.out().exec = exec_fence;
}

}  // namespace

void register_tcgen05_sync(IsaTable& table) {
  table.add({"tcgen05.commit", decode_commit, "9.7.16.12.1"});
  table.add({"tcgen05.fence::before_thread_sync", decode_fence, "9.7.16.11.1"});
  table.add({"tcgen05.fence::after_thread_sync", decode_fence, "9.7.16.11.1"});
}

}  // namespace bwgemm::emulator
