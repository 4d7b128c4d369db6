// setmaxnreg: the warps of a CTA exchange registers (PTX ISA 9.7.19.5).
#include <algorithm>

#include "emulator/isa/control.h"
#include "emulator/isa/isa.h"
#include "emulator/isa/lanes.h"
#include "emulator/machine/launch.h"

namespace bwgemm::emulator {
namespace {

constexpr uint32_t kSmRegisters = 65536, kLeastRegisters = 24, kMostRegisters = 256;

// The most that the launch bounds allow each thread, in multiples of 8.
uint32_t most_registers(const Cta& cta, const Kernel& kernel) {
  const uint32_t threads = kernel.max_threads > 0
                               ? warps_of(static_cast<uint32_t>(kernel.max_threads)) * kWarpSize
                               : static_cast<uint32_t>(cta.warps().size()) * kWarpSize;
  return std::clamp(kSmRegisters / kernel.min_ctas / threads / 8 * 8, kLeastRegisters,
                    kMostRegisters);
}

// How many registers a thread has at the launch is said by .maxnreg. Else it is the assembler's
// choice: at least what a first .dec leaves it, at most what a first .inc gives it.
void begin(Cta& cta, const Kernel& kernel) {
  if (kernel.max_registers > 0) {
    const uint32_t rounded = (static_cast<uint32_t>(kernel.max_registers) + 7) / 8 * 8;
    cta.least_registers = cta.most_registers = std::min(rounded, kMostRegisters);
  } else {
    cta.most_registers = most_registers(cta, kernel);
  }
}

// The registers of a CTA, for each lane of its warps: the warps only exchange what they were given
// at the launch. One that exits gives nothing back.
uint32_t pool(const Cta& cta) {
  return cta.most_registers * static_cast<uint32_t>(cta.warps().size());
}
uint32_t in_use(const Cta& cta) {
  uint32_t total = 0;
  for (const auto& warp : cta.warps())
    total += warp->max_registers != 0 ? warp->max_registers : cta.most_registers;
  return total;
}

WaitKey registers_key(const Cta& cta) { return wait_key(&cta, 0x4e6); }

std::string describe_registers(const Warp&, const WaitInfo& info) {
  return format("registers: %u for each thread, for which others of the CTA must give back %u",
                static_cast<uint32_t>(info.a), static_cast<uint32_t>(info.b) * kWarpSize);
}

// sub: 1: .inc; imm: the count.
Step exec_setmaxnreg(Warp& w, const Instr& in, uint32_t) {
  const uint32_t count = static_cast<uint32_t>(in.imm), before = w.max_registers;
  const bool more = in.sub != 0;
  Cta& cta = w.cta();
  if (cta.most_registers == 0) begin(cta, w.kernel());
  const uint32_t least = before != 0 ? before : cta.least_registers;
  const uint32_t most = before != 0 ? before : cta.most_registers;
  if (more ? count < least : count > most) {
    w.fault("setmaxnreg.%s to %u registers from %s%u", more ? "inc" : "dec", count,
            least == most ? ""
            : more        ? "at least "
                          : "at most ",
            more ? least : most);
  }
  if (before == 0) {
    uint32_t& bound = more ? cta.most_registers : cta.least_registers;
    bound = more ? std::min(bound, count) : std::max(bound, count);
  }
  w.max_registers = count;
  if (const uint32_t used = in_use(cta); more && used > pool(cta)) {
    w.max_registers = before;
    WaitInfo info;
    info.describe = describe_registers;
    info.name = "setmaxnreg";
    info.cta = &cta;
    info.a = count;
    info.b = used - pool(cta);
    return w.block(registers_key(cta), info);
  }
  w.launch().progress();
  if (!more) w.launch().wake(registers_key(cta), cta);
  return Step::kNext;
}

// The register count must be a multiple of 8 from 24 to 256.
void decode_setmaxnreg(Decoder& d) {
  const auto direction = d.mod_one_of({"inc", "dec"});
  if (direction.empty()) d.error("setmaxnreg needs .inc or .dec");
  d.out().sub = direction == "inc";
  d.ignore_mods({"sync", "aligned", "u32"});
  d.expect_operands(1, 1);
  const int64_t count = d.int_constant(0);
  if (count < kLeastRegisters || count > kMostRegisters || count % 8 != 0)
    d.error("register count must be a multiple of 8 from 24 to 256");
  d.out().imm = count;
  d.out().exec = exec_setmaxnreg;
  d.out().flags |= kConverge | kWholeWarp;
}

}  // namespace

void check_registers_at_exit(Warp& w) {
  constexpr size_t kGroup = 4;
  auto& warps = w.cta().warps();
  const size_t first = w.index() / kGroup * kGroup;
  if (first + kGroup > warps.size()) return;
  for (size_t i = first; i < first + kGroup; ++i) {
    const Warp& other = *warps[i];
    const bool exited = other.live() == 0 || i == w.index();
    if (exited && (other.max_registers == 0) != (w.max_registers == 0))
      w.fault("some warps of a warpgroup have executed setmaxnreg, others exit without it");
  }
}

void register_setmaxnreg(IsaTable& t) { t.add({"setmaxnreg", decode_setmaxnreg, "9.7.19.5"}); }

}  // namespace bwgemm::emulator
