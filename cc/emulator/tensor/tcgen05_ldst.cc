// tcgen05.ld, tcgen05.st and tcgen05.wait: PTX ISA 9.7.16.8.
//
// The registers of a load are written at once; reading one before wait::ld is reported. A missing
// wait::ld also endangers the tensor memory that is still being read, a missing wait::st whoever
// reads tensor memory: both stay marked until the wait.
#include <vector>

#include "emulator/tensor/register.h"
#include "emulator/tensor/tensor_state.h"
#include "emulator/tensor/tmem_shapes.h"

namespace bwgemm::emulator {
namespace {

struct LdStArgs {
  LdStShape shape = LdStShape::k32x32b;
  bool packed = false;
  int half_split = 0;
  Address address;
  std::vector<Row> registers;
  // Cell of [register][lane], relative to the address.
  std::vector<CellOffset> cells;
  int columns = 0;
};

// Checks the address against the quarter of lanes this warp may use (PTX ISA 9.7.16.8.1). Of one
// that names another quarter, hardware ignores which: DeepGEMM's kernels for SM100 rely on it.
TmemAddress checked_address(Warp& warp, const LdStArgs& args, uint32_t mask) {
  if (mask != kFullMask) warp.fault("executed by lanes 0x%08x, not by the whole warp", mask);
  const uint32_t bits = static_cast<uint32_t>(warp.address(args.address, 0));
  for_lanes(mask, [&](int lane) {
    const uint32_t other = static_cast<uint32_t>(warp.address(args.address, lane));
    if (other != bits)
      warp.fault("tensor memory address differs between lanes (0x%x, 0x%x)", bits, other);
  });
  TmemAddress address(bits);
  const int quarter = static_cast<int>(warp.index() % 4) * 32;
  const int in_quarter = address.lane % 32, lanes = ldst_lanes(args.shape);
  if (address.lane == quarter + in_quarter && in_quarter % lanes == 0) return address;
  const std::string message =
      format("warp %u may access lanes %d-%d of tensor memory, not lanes %d-%d", warp.index(),
             quarter, quarter + 31, address.lane, address.lane + lanes - 1);
  if (address.lane >= kTmemLanes || in_quarter % lanes != 0) warp.fault("%s", message.c_str());
  warp.report(Rule::kTensorLanes, message + ": its own are accessed");
  address.lane = quarter + in_quarter;
  return address;
}

TmemRegion region_of(const LdStArgs& args, const TmemAddress& address) {
  return {address.lane, ldst_lanes(args.shape), address.column, args.columns};
}

// Others know of it once the warp has waited.
Stamp in_flight(Warp& warp, int32_t line) {
  Stamp stamp = warp.history.stamp(line);
  if (!warp.launch().config().relaxed) stamp.clock = TensorMemory::kInFlight;
  return stamp;
}

Step exec_ld(Warp& warp, const Instr& in, uint32_t mask) {
  const LdStArgs& args = *static_cast<const LdStArgs*>(in.aux);
  const TmemAddress address = checked_address(warp, args, mask);
  Launch& launch = warp.launch();
  Holds& loads = tensor_of(warp).loads;
  loads.access_tmem(launch, warp.cta(), region_of(args, address), false, false, warp.origin(),
                    in_flight(warp, in.line));
  if (launch.config().relaxed) loads.release();
  TensorMemory& memory = tmem_of(warp.cta());
  bool written = true;
  for (size_t r = 0; r < args.registers.size(); ++r) {
    uint32_t* to = args.registers[r] == kNoRow ? nullptr : warp.r32(args.registers[r]);
    if (to == nullptr) continue;
    if (!launch.config().relaxed) warp.watch_row(args.registers[r], Warp::kLoaded);
    for (int lane = 0; lane < kWarpSize; ++lane) {
      const CellOffset& cell = args.cells[r * kWarpSize + lane];
      const uint32_t* from = memory.cell(address.lane + cell.lane, address.column + cell.column);
      written = written && memory.is_written(address.lane + cell.lane, address.column + cell.column,
                                             args.packed ? 2 : 1);
      to[lane] = args.packed ? (from[0] & 0xffffu) | (from[1] << 16) : from[0];
    }
  }
  if (!written) {
    warp.report(Rule::kUninitializedTensor, "read of tensor memory (" +
                                                region_of(args, address).text() +
                                                "), part of which nothing has written");
  }
  return Step::kNext;
}

// Registers are read at issue; tensor memory changes later.
struct StoreOp : AsyncOp {
  const LdStArgs* args;
  Warp* warp;
  TensorMemory* memory;
  TmemAddress address{0};
  std::vector<uint32_t> values;  // [register][lane]

  bool step(Launch& launch) override {
    for (size_t i = 0; i < values.size(); ++i) {
      const CellOffset& cell = args->cells[i];
      uint32_t* to = memory->cell(address.lane + cell.lane, address.column + cell.column);
      memory->mark_written(address.lane + cell.lane, address.column + cell.column,
                           args->packed ? 2 : 1);
      if (args->packed) {
        to[0] = values[i] & 0xffffu;
        to[1] = values[i] >> 16;
      } else {
        to[0] = values[i];
      }
    }
    --tensor_of(*warp).stores_in_flight;
    launch.wake(wait_key(warp, kTmemStoreKey), *warp);
    return true;
  }
};

Step exec_st(Warp& warp, const Instr& in, uint32_t mask) {
  const LdStArgs& args = *static_cast<const LdStArgs*>(in.aux);
  auto op = std::make_unique<StoreOp>();
  op->address = checked_address(warp, args, mask);
  WarpTensor& state = tensor_of(warp);
  state.stores.access_tmem(warp.launch(), warp.cta(), region_of(args, op->address), true, false,
                           warp.origin(), in_flight(warp, in.line));
  op->args = &args;
  op->warp = &warp;
  op->memory = &tmem_of(warp.cta());
  op->values.reserve(args.registers.size() * kWarpSize);
  for (const Row row : args.registers) {
    const uint32_t* from = warp.r32(row);
    op->values.insert(op->values.end(), from, from + kWarpSize);
  }
  ++state.stores_in_flight;
  if (warp.launch().config().relaxed) {
    op->step(warp.launch());
    state.stores.release();
    return Step::kNext;
  }
  warp.launch().submit(warp, std::move(op));
  return Step::kNext;
}

void decode_ldst(Decoder& d, bool load) {
  auto* args = d.make_aux<LdStArgs>();
  d.ignore_mods({"sync", "aligned", "b32"});
  d.out().flags |= kConverge | kWholeWarp;
  const std::string_view shape =
      d.mod_one_of({"32x32b", "16x64b", "16x128b", "16x256b", "16x32bx2"});
  if (shape.empty()) d.error("needs a shape such as .32x32b");
  parse_ldst_shape(std::string(shape), &args->shape);
  const std::string_view repeat =
      d.mod_one_of({"x1", "x2", "x4", "x8", "x16", "x32", "x64", "x128"});
  if (repeat.empty()) d.error("needs a repetition .x1 to .x128");
  const int num = std::stoi(std::string(repeat.substr(1)));
  if (!ldst_num_allowed(args->shape, num)) {
    d.error(std::string(shape) + " does not exist with ." + std::string(repeat));
  }
  args->packed = d.mod(load ? "pack::16b" : "unpack::16b");
  const bool split = args->shape == LdStShape::k16x32bx2;
  d.expect_operands(split ? 3 : 2, split ? 3 : 2);
  // ld: registers, [address] {, split}; st: [address] {, split}, registers.
  const size_t address_at = load ? 1 : 0;
  args->address = d.address(d.operand(address_at));
  if (split) {
    const int64_t columns = d.int_constant(address_at + 1);
    if (columns < 0 || columns >= kTmemColumns) {
      d.error("the halves are 0 to " + std::to_string(kTmemColumns - 1) + " columns apart, not " +
              std::to_string(columns));
    }
    args->half_split = static_cast<int>(columns);
  }
  const ptx::Operand& vector = d.operand(load ? 0 : d.count() - 1);
  const std::vector<ptx::Operand>* items = Decoder::vector_items(vector);
  const size_t count = items != nullptr ? items->size() : 1;
  const int registers = ldst_registers(args->shape, num);
  if (count != static_cast<size_t>(registers)) {
    d.error("needs " + std::to_string(registers) + " registers, got " + std::to_string(count));
  }
  for (size_t i = 0; i < count; ++i) {
    const ptx::Operand& item = items != nullptr ? (*items)[i] : vector;
    args->registers.push_back(load ? d.dst(item, 32, false, true) : d.src(item, 32));
    for (int lane = 0; lane < kWarpSize; ++lane) {
      const CellOffset cell =
          ldst_cell(args->shape, args->packed, args->half_split, lane, static_cast<int>(i));
      args->cells.push_back(cell);
      args->columns = std::max(args->columns, cell.column + (args->packed ? 2 : 1));
    }
  }
  d.out().exec = load ? exec_ld : exec_st;
}

void decode_ld(Decoder& d) {
  if (d.mod("red")) d.unsupported("tcgen05.ld.red is not implemented");
  decode_ldst(d, true);
}

void decode_st(Decoder& d) { decode_ldst(d, false); }

Step exec_wait_ld(Warp& warp, const Instr&, uint32_t) {
  tensor_of(warp).loads.release();
  tmem_of(warp.cta()).waited(false, warp.history.stamp(0));
  warp.forget_rows(Warp::kLoaded);
  return Step::kNext;
}

std::string describe_stores(const Warp& warp, const WaitInfo&) {
  return format("tcgen05.wait::st: %u stores in flight",
                tensor_of(const_cast<Warp&>(warp)).stores_in_flight);
}

Step exec_wait_st(Warp& warp, const Instr&, uint32_t) {
  WarpTensor& state = tensor_of(warp);
  if (state.stores_in_flight != 0) {
    WaitInfo info;
    info.describe = describe_stores;
    info.name = "tcgen05.wait::st";
    info.cta = &warp.cta();
    return warp.block(wait_key(&warp, kTmemStoreKey), info);
  }
  state.stores.release();
  tmem_of(warp.cta()).waited(true, warp.history.stamp(0));
  return Step::kNext;
}

void decode_wait(Decoder& d, ExecFn exec) {
  d.expect_operands(0, 0);
  d.ignore_mods({"sync", "aligned"});
  d.out().flags |= kConverge | kWholeWarp;
  d.out().exec = exec;
}

void decode_wait_ld(Decoder& d) { decode_wait(d, exec_wait_ld); }
void decode_wait_st(Decoder& d) { decode_wait(d, exec_wait_st); }

}  // namespace

void register_tcgen05_ldst(IsaTable& table) {
  table.add({"tcgen05.ld", decode_ld, "9.7.16.8.3"});
  table.add({"tcgen05.st", decode_st, "9.7.16.8.4"});
  table.add({"tcgen05.wait::ld", decode_wait_ld, "9.7.16.8.5"});
  table.add({"tcgen05.wait::st", decode_wait_st, "9.7.16.8.5"});
}

}  // namespace bwgemm::emulator
