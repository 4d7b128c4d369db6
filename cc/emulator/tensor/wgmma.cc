// wgmma.mma_async, .fence, .commit_group and .wait_group (SM90): PTX ISA 9.7.15. Each warp of a
// warpgroup computes its own 16 of the 64 rows; nothing but barriers ties the four together.
#include <vector>

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
  Row a_desc = kNoRow;
  Row b_desc = kNoRow;
  Pred use_input = 0;
  bool negate_a = false;
  bool negate_b = false;
  Major a_major = Major::kK;
  Major b_major = Major::kK;
  bool saturate = false;
};

// Registers and shared memory are read, and registers written, when it completes.
struct WgmmaOp : AsyncOp {
  const WgmmaArgs* args;
  Warp* warp;
  AccumulatorRule rule;
  TileChunks a;  // this warp's rows
  TileChunks b;
  uint64_t group = 0;

  bool step(Launch& launch) override {
    const WgmmaShape& s = args->shape;
    const uint8_t* memory = warp->cta().shared().data(0);
    std::vector<float> a_rows(size_t{kWgmmaRows} * s.k);
    if (args->a.empty()) {
      gather_tile(a, memory, args->negate_a, false, a_rows.data());
    } else {
      const uint32_t* registers[4];
      for (int r = 0; r < 4; ++r) registers[r] = warp->r32(args->a[r]);
      load_a_fragment(s, registers, args->negate_a, a_rows.data());
    }
    std::vector<float> b_columns(static_cast<size_t>(s.n) * s.k);
    gather_tile(b, memory, args->negate_b, true, b_columns.data());
    std::vector<uint32_t*> registers;
    for (const Row row : args->d) registers.push_back(warp->r32(row));
    std::vector<uint32_t> cells(size_t{kWgmmaRows} * s.n);
    load_accumulators(s, registers, cells.data());
    for (int row = 0; row < kWgmmaRows; ++row) {
      update_cells(rule, &a_rows[static_cast<size_t>(row) * s.k], b_columns.data(), s.n, s.n, s.k,
                   &cells[static_cast<size_t>(row) * s.n]);
    }
    store_accumulators(s, cells.data(), registers);
    warp->wgmma_groups().read_done(group);
    warp->wgmma_groups().done(group);
    launch.wake(wait_key(warp, kWgmmaKey));
    return true;
  }
};

SmemDescriptor decode_smem(Warp& warp, uint64_t bits, const char* what) {
  SmemDescriptor descriptor;
  std::string error;
  if (!decode_wgmma_descriptor(bits, &descriptor, &error)) warp.fault("%s: %s", what, error.c_str());
  return descriptor;
}

Step exec_mma(Warp& warp, const Instr& in, uint32_t mask) {
  const auto& args = *static_cast<const WgmmaArgs*>(in.aux);
  const WgmmaShape& s = args.shape;
  if (mask != kFullMask) warp.fault("executed by lanes 0x%08x, not by the whole warp", mask);
  WarpTensor& state = tensor_of(warp);
  if (!state.wgmma_fenced) warp.fault("wgmma.mma_async without a wgmma.fence before it");
  const uint32_t use_input = warp.pred(args.use_input);
  if (use_input != 0 && use_input != kFullMask) warp.fault("scale-d differs between lanes");
  Launch& launch = warp.launch();
  auto op = std::make_unique<WgmmaOp>();
  op->args = &args;
  op->warp = &warp;
  op->rule = {s.d, use_input != 0, 1.0f, args.saturate};
  Holds& holds = state.wgmma.open();
  if (args.a.empty()) {
    const SmemDescriptor a = decode_smem(warp, warp.r64(args.a_desc)[0], "A");
    op->a = slice_rows(tile_chunks(a, args.a_major, s.a, 64, s.k),
                       static_cast<int>(warp.index() % 4) * kWgmmaRows, kWgmmaRows);
    holds.read_shared(launch, warp.cta(), merge_chunks(op->a), warp.origin());
  }
  const SmemDescriptor b = decode_smem(warp, warp.r64(args.b_desc)[0], "B");
  op->b = tile_chunks(b, args.b_major, s.b, s.n, s.k);
  holds.read_shared(launch, warp.cta(), merge_chunks(op->b), warp.origin());
  op->group = warp.wgmma_groups().join();
  const uint64_t flops = uint64_t{2} * kWgmmaRows * s.n * s.k;
  op->trace_arg = flops;
  // One instruction is four warps' work.
  launch.stats().mma_instructions += warp.index() % 4 == 0;
  launch.stats().mma_flops += flops;
  ++launch.warp_stats(warp.origin()).mma;
  launch.submit(warp, std::move(op), reinterpret_cast<uintptr_t>(&warp) | 1);
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
  d.out().flags |= kConverge;
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
  args->b_desc = d.src(2, 64);
  const bool integer = s.d == NumberFormat::kS32;
  const bool transposable = format_bits(s.a) == 16;
  const size_t count = 4 + (integer ? 0 : 2) + (transposable ? (a != nullptr ? 1 : 2) : 0);
  d.expect_operands(count, count);
  args->use_input = d.pred_src(3);
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
  return Step::kNext;
}

Step exec_commit(Warp& warp, const Instr&, uint32_t) {
  warp.wgmma_groups().commit();
  tensor_of(warp).wgmma.commit();
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
  tensor_of(warp).wgmma.release_all_but(allowed);
  return Step::kNext;
}

void decode_plain(Decoder& d, ExecFn exec, size_t operands) {
  d.ignore_mods({"sync", "aligned"});
  d.out().flags |= kConverge;
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
