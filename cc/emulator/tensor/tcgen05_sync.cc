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
  Arrival arrival;
  std::vector<std::pair<Cta*, uint32_t>> barriers;

  bool step(Launch& launch) override {
    holds.release();
    for (const auto& [cta, offset] : barriers)
      mbarrier_arrive(launch, *cta, offset, 1, origin, Tells::kAll, &arrival);
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
    if (Races& races = warp.launch().races(); races.on()) {
      for (const auto& [cta, offset] : op->barriers)
        races.mbarrier_use(*cta, offset, warp.origin(), true);
      warp.tell();
      const Stamp done = tensor_reads(warp, lane);
      op->arrival = {done, warp.history.knows, true};
      op->arrival.knows.learn(done.cluster, done.actor, done.clock);
      for (const auto& [cta, offset] : op->barriers) cta->history.remote[done.actor] = done;
    }
    ++tensor_of(warp).tensor_commits[lane];
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

Step exec_fence_before(Warp& warp, const Instr&, uint32_t) {
  warp.history.tensor_fence_before();
  return Step::kNext;
}

Step exec_fence_after(Warp& warp, const Instr&, uint32_t) {
  warp.history.tensor.join(warp.history.knows);
  return Step::kNext;
}

void decode_fence_before(Decoder& d) {
  d.expect_operands(0, 0);
  d.out().exec = exec_fence_before;
}

void decode_fence_after(Decoder& d) {
  d.expect_operands(0, 0);
  d.out().exec = exec_fence_after;
}

}  // namespace

void register_tcgen05_sync(IsaTable& table) {
  table.add({"tcgen05.commit", decode_commit, "9.7.16.12.1"});
  table.add({"tcgen05.fence::before_thread_sync", decode_fence_before, "9.7.16.11.1"});
  table.add({"tcgen05.fence::after_thread_sync", decode_fence_after, "9.7.16.11.1"});
}

}  // namespace bwgemm::emulator
