// Barriers of a CTA and of a cluster: bar, barrier, barrier.cluster (PTX ISA 9.7.13.1, 9.7.13.3).
#include "emulator/isa/isa.h"
#include "emulator/isa/lanes.h"
#include "emulator/machine/launch.h"

namespace bwgemm::emulator {
namespace {

constexpr uint32_t kAllThreads = NamedBarrier::kAllThreads;

enum class Mode : uint8_t { kSync, kArrive, kPopc, kAnd, kOr };

struct BarArgs {
  Row id = kNoRow, count = kNoRow;
  Pred source = 0;   // .red
  Row dst = kNoRow;  // .red.popc; a predicate for .and/.or
  Mode mode = Mode::kSync;
  bool aligned = true;
};

std::string describe_bar(const Warp&, const WaitInfo& info) {
  Cta& cta = *info.cta;
  const NamedBarrier& b = cta.barrier(static_cast<uint32_t>(info.a));
  return format("barrier %u: %u of %u threads have arrived", static_cast<uint32_t>(info.a),
                b.arrived, b.threads_expected(cta));
}

void passed(Warp& w, const BarArgs& args, const NamedBarrier& b, uint32_t mask) {
  w.launch().races().observe(w, b.history, false);
  switch (args.mode) {
    case Mode::kPopc: {
      uint32_t* d = w.r32(args.dst);
      for_lanes(mask, [&](int lane) { d[lane] = b.last_popc; });
      break;
    }
    case Mode::kAnd:
      w.set_pred(args.dst, mask, b.last_and != 0 ? kFullMask : 0);
      break;
    case Mode::kOr:
      w.set_pred(args.dst, mask, b.last_or != 0 ? kFullMask : 0);
      break;
    default:
      break;
  }
}

Step exec_bar(Warp& w, const Instr& in, uint32_t mask) {
  const auto& args = *static_cast<const BarArgs*>(in.aux);
  Cta& cta = w.cta();
  const uint32_t id = w.r32(args.id)[first_lane(mask)];
  if (id >= kNamedBarriers) w.fault("barrier %u: there are 16", id);
  NamedBarrier& b = cta.barrier(id);
  if (w.token() == 0) {
    uint32_t expected = kAllThreads;
    if (args.count != kNoRow) {
      expected = w.r32(args.count)[first_lane(mask)];
      if (expected == 0 || expected % kWarpSize != 0)
        w.fault("barrier %u with %u threads: not a positive multiple of 32", id, expected);
    }
    if (b.arrived != 0 && b.expected != expected) {
      w.fault("barrier %u is used with %u threads and with %u", id, b.threads_expected(cta),
              expected == kAllThreads ? cta.live_warps() * kWarpSize : expected);
    }
    const bool reduces = args.mode >= Mode::kPopc;
    if (b.arrived != 0 && b.reduces != reduces)
      w.fault("barrier %u is used by a reduction and without one at once", id);
    b.reduces = reduces;
    b.expected = expected;
    b.count(w, mask);
    if (reduces) {
      const uint32_t votes = w.pred(args.source) & mask;
      b.red_popc += static_cast<uint32_t>(__builtin_popcount(votes));
      if (votes != mask) b.red_and = 0;
      if (votes != 0) b.red_or = 1;
    }
    w.release();
    w.launch().races().arrive_named(w, b.history, id, mask);
    w.launch().progress();
    const uint64_t generation = b.generation;
    b.complete_if_all_arrived(cta);
    if (args.mode == Mode::kArrive) return Step::kNext;
    if (b.generation != generation) {
      passed(w, args, b, mask);
      return Step::kNext;
    }
    w.token() = generation;
  } else if (b.generation == w.token() && b.expected == kAllThreads) {
    b.complete_if_all_arrived(cta);  // the missing warps may have exited
  }
  if (b.generation != w.token()) {
    passed(w, args, b, mask);
    return Step::kNext;
  }
  WaitInfo info;
  info.describe = describe_bar;
  info.name = "bar.sync";
  info.cta = &cta;
  info.a = id;
  return w.block(wait_key(&b), info);
}

void decode_bar(Decoder& d, bool aligned) {
  auto* args = d.make_aux<BarArgs>();
  d.mod("cta");
  const auto mode = d.mod_one_of({"sync", "arrive", "red"});
  if (mode.empty()) d.error("barrier without .sync, .arrive or .red");
  args->aligned = d.mod("aligned") || aligned;
  size_t at = 0;
  if (mode == "red") {
    const auto op = d.mod_one_of({"popc", "and", "or"});
    if (op.empty()) d.error("barrier reduction without an operation");
    d.ignore_mods({"u32", "pred"});
    args->mode = op == "popc" ? Mode::kPopc : op == "and" ? Mode::kAnd : Mode::kOr;
    d.expect_operands(3, 4);
    args->dst = op == "popc" ? d.dst(0, 32) : d.pred_dst(0);
    args->source = d.pred_src(d.count() - 1);
    args->id = d.src(1, 32);
    if (d.count() == 4) args->count = d.src(2, 32);
  } else {
    args->mode = mode == "sync" ? Mode::kSync : Mode::kArrive;
    d.expect_operands(mode == "arrive" ? 2 : 1, 2);
    args->id = d.src(at, 32);
    if (d.count() == 2) args->count = d.src(1, 32);
  }
  if (args->aligned) d.out().flags |= kConverge;
  d.out().exec = exec_bar;
}

void decode_bar_aligned(Decoder& d) { decode_bar(d, true); }
void decode_barrier(Decoder& d) { decode_bar(d, false); }

// ---- barrier.cluster

std::string describe_cluster(const Warp&, const WaitInfo& info) {
  Cluster& cluster = info.cta->cluster();
  return format("the cluster barrier: %u of %u threads have arrived", cluster.barrier.arrived,
                ClusterBarrier::threads_expected(cluster));
}

Step exec_cluster_arrive(Warp& w, const Instr& in, uint32_t mask) {
  Cluster& cluster = w.cta().cluster();
  ClusterBarrier& barrier = cluster.barrier;
  ClusterArrivals& own = w.cluster_arrivals;
  own.follow(barrier.generation);
  if (((own.lanes | own.complete) & mask) != 0)
    w.fault("barrier.cluster.arrive twice without a wait in between");
  barrier.arrived -= own.threads(w.live());
  own.lanes |= mask;
  barrier.arrived += own.threads(w.live());
  w.release();
  w.launch().races().arrive(w, barrier.history, in.sub != 0);
  w.launch().progress();
  barrier.complete_if_all_arrived(cluster);
  return Step::kNext;
}

// Lanes of the warp may be a generation apart: those that wait for an earlier one go on alone.
Step exec_cluster_wait(Warp& w, const Instr&, uint32_t mask) {
  Cluster& cluster = w.cta().cluster();
  ClusterBarrier& barrier = cluster.barrier;
  ClusterArrivals& own = w.cluster_arrivals;
  if ((mask & ~(own.lanes | own.complete)) != 0)
    w.fault("barrier.cluster.wait without an arrive before it");
  barrier.complete_if_all_arrived(cluster);  // warps that have exited no longer count
  own.follow(barrier.generation);
  const uint32_t done = mask & own.complete;
  if (done != 0) {
    own.complete &= ~done;
    w.launch().races().observe(w, barrier.history, false);
    return w.leave(done, mask);
  }
  WaitInfo info;
  info.describe = describe_cluster;
  info.name = "barrier.cluster.wait";
  info.cta = &w.cta();
  return w.block(wait_key(&cluster), info);
}

void decode_cluster(Decoder& d) {
  const auto mode = d.mod_one_of({"arrive", "wait"});
  if (mode.empty()) d.error("barrier.cluster needs .arrive or .wait");
  d.out().sub = d.mod("relaxed");
  d.ignore_mods({"release", "acquire"});
  if (d.mod("aligned")) d.out().flags |= kConverge;
  d.expect_operands(0, 0);
  d.out().exec = mode == "arrive" ? exec_cluster_arrive : exec_cluster_wait;
}

}  // namespace

void register_barrier(IsaTable& t) {
  t.add({"bar", decode_bar_aligned, "9.7.13.1"});
  t.add({"barrier", decode_barrier, "9.7.13.1"});
  t.add({"barrier.cluster", decode_cluster, "9.7.13.3"});
}

}  // namespace bwgemm::emulator
