// wgmma.mma_async, .fence, .commit_group and .wait_group (SM90): PTX ISA 9.7.15. The four warps of
// a warpgroup, 16 of the 64 rows each, execute it together: it starts when all have issued it, and
// is done for all at once, so that a warp that has waited may speak for the others.
#include <algorithm>
#include <deque>
#include <memory>
#include <vector>

#include "emulator/machine/kernel_builder.h"
#include "emulator/tensor/instr_descriptor.h"
#include "emulator/tensor/register.h"
#include "emulator/tensor/tensor_state.h"
#include "emulator/tensor/wgmma_fragment.h"

namespace bwgemm::emulator {
namespace {

struct WgmmaArgs {
  WgmmaShape shape;
  std::vector<Row> d;
  std::vector<Row> a;  // four registers, or empty: a descriptor
  std::vector<Row> sorted_d, sorted_a;
  Row a_desc = kNoRow;
  Row b_desc = kNoRow;
  Pred use_input = 0;
  bool negate_a = false;
  bool negate_b = false;
  Major a_major = Major::kK;
  Major b_major = Major::kK;
  bool saturate = false;
};

constexpr uint32_t kWarpsPerGroup = 4;

// Registers and shared memory are read, and registers written, when it completes.
struct WgmmaOp : AsyncOp {
  struct Part {
    Warp* warp = nullptr;
    TileChunks a;  // this warp's rows
    uint64_t group = 0;
  };
  const WgmmaArgs* args;
  AccumulatorRule rule;
  uint64_t a_bits = 0, b_bits = 0;  // descriptors
  TileChunks b;
  Part parts[kWarpsPerGroup];
  std::shared_ptr<Holds> operands = std::make_shared<Holds>();
  std::vector<uint32_t> begins;  // of the operands, in shared memory

  bool step(Launch& launch) override {
    const WgmmaShape& s = args->shape;
    const uint8_t* memory = parts[0].warp->cta().shared().data(0);
    std::vector<float> b_columns(static_cast<size_t>(s.n) * s.k);
    gather_tile(b, memory, args->negate_b, true, b_columns.data());
    for (const Part& part : parts) multiply(part, memory, b_columns.data());
    for (const Part& part : parts) {
      part.warp->wgmma_groups().read_done(part.group);
      part.warp->wgmma_groups().done(part.group);
      launch.wake(wait_key(part.warp, kWgmmaKey), *part.warp);
    }
    return true;
  }

  void multiply(const Part& part, const uint8_t* memory, const float* b_columns) {
    const WgmmaShape& s = args->shape;
    std::vector<float> a_rows(size_t{kWgmmaRows} * s.k);
    if (args->a.empty()) {
      gather_tile(part.a, memory, args->negate_a, false, a_rows.data());
    } else {
      const uint32_t* registers[4];
      for (int r = 0; r < 4; ++r) registers[r] = part.warp->r32(args->a[r]);
      load_a_fragment(s, registers, args->negate_a, a_rows.data());
    }
    std::vector<uint32_t*> registers;
    for (const Row row : args->d) registers.push_back(part.warp->r32(row));
    const int stride = s.n + 16;  // a power of two would have all rows share a few lines of a cache
    std::vector<uint32_t> cells(size_t{kWgmmaRows} * stride);
    load_accumulators(s, registers, cells.data(), stride);
    for (int row = 0; row < kWgmmaRows; ++row) {
      update_cells(rule, &a_rows[static_cast<size_t>(row) * s.k], b_columns, s.n, s.n, s.k,
                   &cells[static_cast<size_t>(row) * stride]);
    }
    store_accumulators(s, cells.data(), stride, registers);
  }
};

struct Warpgroup : Extension {
  std::deque<std::unique_ptr<WgmmaOp>> gathering;  // issued by some of the warps, oldest first
  uint64_t started = 0;                            // operations that all four have issued
  uint64_t issued[kWarpsPerGroup] = {0, 0, 0, 0};
};

Warpgroup& warpgroup_of(Warp& warp) {
  auto& groups = tensor_of(warp.cta()).warpgroups;
  const size_t index = warp.index() / kWarpsPerGroup;
  if ((index + 1) * kWarpsPerGroup > warp.cta().warps().size()) {
    warp.fault("wgmma needs a whole warpgroup; the CTA has %zu warps", warp.cta().warps().size());
  }
  if (groups.size() <= index) groups.resize(index + 1);
  if (groups[index] == nullptr) groups[index] = std::make_unique<Warpgroup>();
  return static_cast<Warpgroup&>(*groups[index]);
}

SmemDescriptor decode_smem(Warp& warp, uint64_t bits, const char* what) {
  SmemDescriptor descriptor;
  std::string error;
  if (!decode_wgmma_descriptor(bits, &descriptor, &error))
    warp.fault("%s: %s", what, error.c_str());
  return descriptor;
}

// The warps of a group issue the same instructions, and each speaks for all of them. `issued`: by
// the warp, this one included.
Stamp wgmma_reads(Warp& warp, uint32_t issued) {
  Races& races = warp.launch().races();
  if (!races.on()) return {};
  return races.queue(warp.cta().cluster(), Races::Queue::kWarpgroup, warp.index() / kWarpsPerGroup,
                     warp.cta().rank(), issued, warp.origin().line);
}

// The first of the four warps decodes the descriptors and takes hold of the operands.
std::unique_ptr<WgmmaOp> start(Warp& warp, const WgmmaArgs& args, bool use_input) {
  const WgmmaShape& s = args.shape;
  const Stamp stamp = wgmma_reads(warp, tensor_of(warp).wgmma_issued);
  auto op = std::make_unique<WgmmaOp>();
  op->args = &args;
  op->rule = {s.d, use_input, 1.0f, args.saturate};
  const auto read = [&](const TileChunks& tile) {
    const std::vector<ByteRange> ranges = merge_chunks(tile);
    op->begins.push_back(ranges.front().begin);
    op->operands->read_shared(warp.launch(), warp.cta(), ranges, warp.origin(), stamp);
  };
  if (args.a.empty()) {
    op->a_bits = warp.r64(args.a_desc)[0];
    const SmemDescriptor a = decode_smem(warp, op->a_bits, "A");
    const TileChunks tile = tile_chunks(a, args.a_major, s.a, 64, s.k);
    read(tile);
    for (uint32_t i = 0; i < kWarpsPerGroup; ++i) {
      op->parts[i].a = slice_rows(tile, static_cast<int>(i) * kWgmmaRows, kWgmmaRows);
    }
  }
  op->b_bits = warp.r64(args.b_desc)[0];
  op->b = tile_chunks(decode_smem(warp, op->b_bits, "B"), args.b_major, s.b, s.n, s.k);
  read(op->b);
  return op;
}

// What the others know of the operands is asked for where these begin.
void join(Warp& warp, const WgmmaOp& op) {
  Races& races = warp.launch().races();
  if (!races.on()) return;
  const Stamp stamp = wgmma_reads(warp, tensor_of(warp).wgmma_issued);
  for (const uint32_t begin : op.begins)
    races.access(warp, warp.cta(), begin, Shadow::kGranule, stamp, false, warp.origin());
}

void watch_rows(Warp& warp, const WgmmaArgs& args) {
  for (const Row row : args.d) warp.watch_row(row, Warp::kAccumulator);
  for (const Row row : args.a) warp.watch_row(row, Warp::kMultiplicand);
}

// The registers of what is still in flight.
void watch_rows(Warp& warp) {
  warp.forget_rows(Warp::kAccumulator | Warp::kMultiplicand);
  const WarpTensor& state = tensor_of(warp);
  for (const auto& group : state.wgmma_committed_rows) {
    for (const void* args : group) watch_rows(warp, *static_cast<const WgmmaArgs*>(args));
  }
  for (const void* args : state.wgmma_open_rows)
    watch_rows(warp, *static_cast<const WgmmaArgs*>(args));
}

// Both are sorted.
bool share(const std::vector<Row>& a, const std::vector<Row>& b) {
  for (auto x = a.begin(), y = b.begin(); x != a.end() && y != b.end();) {
    if (*x == *y) return true;
    ++(*x < *y ? x : y);
  }
  return false;
}

// Operations in flight may have registers in common only where they accumulate on the same ones, in
// the same shape: those come one after the other.
bool may_follow(const WgmmaArgs& now, const WgmmaArgs& before) {
  if (share(now.sorted_a, before.sorted_d) || share(now.sorted_d, before.sorted_a)) return false;
  const bool same = now.shape.n == before.shape.n && now.shape.k == before.shape.k;
  return (same && now.d == before.d) || !share(now.sorted_d, before.sorted_d);
}

void check_registers(Warp& warp, const WgmmaArgs& args) {
  const WarpTensor& state = tensor_of(warp);
  const auto follows = [&](const void* before) {
    return before == &args || may_follow(args, *static_cast<const WgmmaArgs*>(before));
  };
  const auto all = [&](const std::vector<const void*>& group) {
    return std::all_of(group.begin(), group.end(), follows);
  };
  if (all(state.wgmma_open_rows) &&
      std::all_of(state.wgmma_committed_rows.begin(), state.wgmma_committed_rows.end(), all))
    return;
  warp.report(Rule::kWgmmaRegisters,
              "uses registers of another wgmma.mma_async that wgmma.wait_group has not waited for: "
              "only accumulators of the same shape may be in flight");
}

Step exec_mma(Warp& warp, const Instr& in, uint32_t mask) {
  const auto& args = *static_cast<const WgmmaArgs*>(in.aux);
  const WgmmaShape& s = args.shape;
  if (mask != kFullMask) warp.fault("executed by lanes 0x%08x, not by the whole warp", mask);
  WarpTensor& state = tensor_of(warp);
  if (!state.wgmma_fenced) warp.fault("wgmma.mma_async without a wgmma.fence before it");
  const auto touched = [&](Row row) { return warp.touched(row); };
  if (std::any_of(args.d.begin(), args.d.end(), touched) ||
      std::any_of(args.a.begin(), args.a.end(), touched)) {
    warp.report(Rule::kWgmmaRegisters,
                "registers of this wgmma.mma_async were written after the last wgmma.fence");
    warp.forget_rows(Warp::kTouched);
  }
  const uint32_t use_input = warp.pred(args.use_input);
  if (use_input != 0 && use_input != kFullMask) warp.fault("scale-d differs between lanes");
  Launch& launch = warp.launch();
  Warpgroup& group = warpgroup_of(warp);
  const uint32_t rank = warp.index() % kWarpsPerGroup;
  ++state.wgmma_issued;
  const size_t position = static_cast<size_t>(group.issued[rank]++ - group.started);
  if (position == group.gathering.size()) {
    group.gathering.push_back(start(warp, args, use_input != 0));
  } else {
    join(warp, *group.gathering[position]);
  }
  WgmmaOp& op = *group.gathering[position];
  if (op.args != &args) warp.fault("the warps of a warpgroup execute different instructions");
  if (op.rule.use_input != (use_input != 0) || op.b_bits != warp.r64(args.b_desc)[0] ||
      (args.a.empty() && op.a_bits != warp.r64(args.a_desc)[0])) {
    warp.fault("the descriptors or scale-d of the warps of a warpgroup differ");
  }
  op.parts[rank].warp = &warp;
  op.parts[rank].group = warp.wgmma_groups().join();
  state.wgmma_open.push_back(op.operands);
  if (warp.launch().watches(Rule::kWgmmaRegisters)) {
    check_registers(warp, args);
    state.wgmma_open_rows.push_back(&args);
    watch_rows(warp, args);
  }
  ++launch.warp_stats(warp.origin()).mma;
  for (const WgmmaOp::Part& part : op.parts) {
    if (part.warp == nullptr) return Step::kNext;
  }
  // Warps issue in program order, so the complete operation is the oldest one.
  const uint64_t flops = uint64_t{2} * 64 * s.n * s.k;
  op.trace_arg = flops;
  ++launch.stats().mma_instructions;
  launch.stats().mma_flops += flops;
  ++group.started;
  launch.submit(warp, std::move(group.gathering.front()), reinterpret_cast<uintptr_t>(&group) | 1);
  group.gathering.pop_front();
  return Step::kNext;
}

bool decode_scale(Decoder& d, size_t operand) {
  const int64_t value = d.int_constant(operand);
  if (value != 1 && value != -1) d.error("imm-scale must be 1 or -1");
  return value == -1;
}

Major decode_transpose(Decoder& d, size_t operand) {
  const int64_t value = d.int_constant(operand);
  if (value != 0 && value != 1) d.error("imm-trans must be 0 or 1");
  return value == 1 ? Major::kMN : Major::kK;
}

void decode_mma(Decoder& d) {
  auto* args = d.make_aux<WgmmaArgs>();
  if (d.mod("sp")) d.unsupported("sparse wgmma is not implemented");
  d.ignore_mods({"sync", "aligned"});
  d.out().flags |= kConverge | kWholeWarp;
  if (d.mod("b1")) d.unsupported("wgmma of .b1 is not implemented");
  args->saturate = d.mod("satfinite");
  // Remaining: shape, D, A and B types, in this order; two types may be equal.
  std::string problem;
  if (!parse_wgmma_shape(d.statement().parts, &args->shape, &problem)) d.error(problem);
  WgmmaShape& s = args->shape;
  while (!d.no_mods_left()) d.mod(d.next_mod());
  const std::vector<ptx::Operand>* registers = Decoder::vector_items(d.operand(0));
  if (registers == nullptr || static_cast<int>(registers->size()) != s.accumulator_registers()) {
    d.error("D needs " + std::to_string(s.accumulator_registers()) + " registers");
  }
  for (const ptx::Operand& item : *registers) args->d.push_back(d.dst(item, 32));
  const std::vector<ptx::Operand>* a = Decoder::vector_items(d.operand(1));
  if (a != nullptr) {
    if (a->size() != 4) d.error("A needs 4 registers");
    for (const ptx::Operand& item : *a) args->a.push_back(d.src(item, 32));
  } else {
    args->a_desc = d.src(1, 64);
  }
  args->sorted_d = args->d;
  args->sorted_a = args->a;
  std::sort(args->sorted_d.begin(), args->sorted_d.end());
  std::sort(args->sorted_a.begin(), args->sorted_a.end());
  args->b_desc = d.src(2, 64);
  const bool integer = s.d == NumberFormat::kS32;
  const bool transposable = format_bits(s.a) == 16;
  const size_t count = 4 + (integer ? 0 : 2) + (transposable ? (a != nullptr ? 1 : 2) : 0);
  d.expect_operands(count, count);
  args->use_input = d.pred_src(3);
  d.builder().reads_back(args->d, args->use_input);
  if (!integer) {
    args->negate_a = decode_scale(d, 4);
    args->negate_b = decode_scale(d, 5);
  }
  if (transposable) {
    if (a == nullptr) args->a_major = decode_transpose(d, 6);
    args->b_major = decode_transpose(d, count - 1);
  }
  d.out().exec = exec_mma;
}

Step exec_fence(Warp& warp, const Instr&, uint32_t) {
  tensor_of(warp).wgmma_fenced = true;
  warp.forget_rows(Warp::kTouched);
  return Step::kNext;
}

Step exec_commit(Warp& warp, const Instr&, uint32_t) {
  warp.wgmma_groups().commit();
  WarpTensor& state = tensor_of(warp);
  state.wgmma_committed.push_back(std::move(state.wgmma_open));
  state.wgmma_open.clear();
  state.wgmma_committed_rows.push_back(std::move(state.wgmma_open_rows));
  state.wgmma_open_rows.clear();
  state.wgmma_commits.push_back(state.wgmma_issued);
  return Step::kNext;
}

std::string describe_wait(const Warp&, const WaitInfo& info) {
  return format("wgmma.wait_group %llu: %llu groups pending",
                static_cast<unsigned long long>(info.a), static_cast<unsigned long long>(info.b));
}

Step exec_wait(Warp& warp, const Instr& in, uint32_t) {
  const uint32_t allowed = static_cast<uint32_t>(in.imm);
  const uint32_t pending = warp.wgmma_groups().pending();
  if (pending > allowed) {
    WaitInfo info;
    info.describe = describe_wait;
    info.name = "wgmma.wait_group";
    info.cta = &warp.cta();
    info.a = allowed;
    info.b = pending;
    return warp.block(wait_key(&warp, kWgmmaKey), info);
  }
  // All lanes wait here for MMAs whose operands they have loaded: no lane's loads are still ahead.
  warp.tell();
  auto& committed = tensor_of(warp).wgmma_committed;
  while (committed.size() > allowed) {
    for (const auto& operands : committed.front()) operands->release();
    committed.pop_front();
  }
  auto& rows = tensor_of(warp).wgmma_committed_rows;
  if (rows.size() > allowed) {
    rows.erase(rows.begin(), rows.end() - allowed);
    watch_rows(warp);
  }
  std::deque<uint32_t>& commits = tensor_of(warp).wgmma_commits;
  while (commits.size() > allowed) {
    const Stamp done = wgmma_reads(warp, commits.front());
    if (done.cluster != 0) warp.launch().races().learn(warp, kFullMask, done);
    commits.pop_front();
  }
  return Step::kNext;
}

void decode_plain(Decoder& d, ExecFn exec, size_t operands) {
  d.ignore_mods({"sync", "aligned"});
  d.out().flags |= kConverge | kWholeWarp;
  d.expect_operands(operands, operands);
  d.out().exec = exec;
}

void decode_fence(Decoder& d) { decode_plain(d, exec_fence, 0); }
void decode_commit(Decoder& d) { decode_plain(d, exec_commit, 0); }

void decode_wait(Decoder& d) {
  decode_plain(d, exec_wait, 1);
  d.out().imm = d.int_constant(0);
  if (d.out().imm < 0) d.error("the number of groups must not be negative");
}

}  // namespace

void register_wgmma(IsaTable& table) {
  table.add({"wgmma.mma_async", decode_mma, "9.7.15.5.2"});
  table.add({"wgmma.fence", decode_fence, "9.7.15.7.1"});
  table.add({"wgmma.commit_group", decode_commit, "9.7.15.7.2"});
  table.add({"wgmma.wait_group", decode_wait, "9.7.15.7.3"});
}

}  // namespace bwgemm::emulator
