// A decoded kernel: the entry function and every function it can reach, as one array of
// instructions over one register space.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "emulator/machine/decoder.h"
#include "emulator/machine/instr.h"
#include "emulator/machine/memory.h"
#include "emulator/ptx/ast.h"

namespace bwgemm::emulator {

// Special registers that are constant during a launch (PTX ISA 10), and other values known only
// when a warp starts.
enum class WarpValue : uint8_t {
  kConstant,
  kSharedAddress,  // value: offset in the CTA's shared memory; the CTA's rank is added
  kGenericShared,  // the same in the generic window
  kTidX,
  kTidY,
  kTidZ,
  kNtidX,
  kNtidY,
  kNtidZ,
  kCtaidX,
  kCtaidY,
  kCtaidZ,
  kNctaidX,
  kNctaidY,
  kNctaidZ,
  kLaneid,
  kWarpid,
  kNwarpid,
  kSmid,
  kNsmid,
  kGridid,
  kClusteridX,
  kClusteridY,
  kClusteridZ,
  kNclusteridX,
  kNclusteridY,
  kNclusteridZ,
  kClusterCtaidX,
  kClusterCtaidY,
  kClusterCtaidZ,
  kClusterNctaidX,
  kClusterNctaidY,
  kClusterNctaidZ,
  kClusterCtarank,
  kClusterNctarank,
  kIsExplicitCluster,
  kLanemaskEq,
  kLanemaskLe,
  kLanemaskLt,
  kLanemaskGe,
  kLanemaskGt,
  kGridWorkspaceHigh,
  kGridWorkspaceLow,
  kDynamicSmemSize,
  kTotalSmemSize,
  kAggrSmemSize,
  kReservedSmemBegin,
  kReservedSmemEnd,
  kReservedSmem0,
  kReservedSmem1,
};

struct WarpInit {
  Row row;
  WarpValue what;
  uint8_t bits;  // 32 or 64
  uint64_t value;
};

struct KernelParam {
  std::string name;
  uint32_t offset = 0, size = 0, align = 1;
};

// A variable in shared memory. The dynamic one reaches to the end.
struct SharedSymbol {
  std::string name;
  uint32_t offset = 0, size = 0;
};

constexpr size_t kMostRows = 4;  // of a register: 128 bits

struct Kernel {
  std::string name;
  const ptx::Module* module = nullptr;
  std::vector<Instr> code;
  // Registers that code[i] reads and writes.
  struct Rows {
    std::vector<Row> read, written;
    std::vector<Pred> preds_read, preds_written;
    // Read as well where the predicate holds: accumulators.
    std::vector<Row> read_back;
    Pred read_back_if = 0;
    bool moves = false;         // a move between registers
    bool unpacks = false;       // mov of a register's parts, which may go nowhere
    bool wgmma = false;         // wgmma.mma_async
    bool loads_tensor = false;  // tcgen05.ld
    bool loads_local = false;   // a load that may be of local memory
  };
  std::vector<Rows> rows_of;
  std::vector<Row> undefined_rows;  // first ones of registers that may be read before a write
  std::vector<bool> wgmma_rows;     // registers that some wgmma.mma_async reads or writes
  // Where code[i] may go on.
  struct Flow {
    std::vector<uint32_t> jumps;
    bool next = true;
  };
  std::vector<Flow> flow_of;
  // What an instruction does to registers that may be undefined (undefined.h): slots of an array
  // that each warp has. Those before undefined_slots are undefined when the kernel starts.
  struct Tracking {
    enum class Use : uint8_t {
      kComputes,   // what it writes is undefined if something that it reads is
      kPacks,      // the same, but it may be so in part
      kMasks,      // the same; some bits may be defined though no operand's are
      kParts,      // takes bits: undefined if all bits of an operand are
      kTakes,      // the same; some bits are defined then
      kHalves,     // dp2a takes a half of its second operand: the three of `read`
      kPermutes,   // prmt takes bytes of two operands, as the third says: the three of `read`
      kShuffles,   // the first of `read` in another lane
      kExchanges,  // among lanes: undefined if it is in all of them
      kReduces,    // the same, if it is in one
      kResult,     // an undefined value is reported
      kOpaque,     // what it writes counts as defined
    };
    static constexpr uint32_t kOther = ~uint32_t{0};  // a register that is not followed
    std::vector<uint32_t> read, written, read_back;
    Pred read_back_if = 0;
    uint32_t guard = kOther;  // not in `read`
    Use use = Use::kComputes;
    bool selects = false;  // selp: reads the first or the second of `read`
  };
  std::unordered_map<uint32_t, Tracking> tracking;  // by pc
  uint32_t undefined_slots = 0, tracked_slots = 0;
  std::vector<SharedSymbol> shared_symbols;
  uint32_t rows = 0;  // registers and constants
  uint32_t preds = 0;
  uint32_t local_bytes = 0;  // per lane
  struct LocalVariable {
    uint32_t offset, bytes;
  };
  std::vector<LocalVariable> local_variables;  // without parameters
  uint32_t static_shared_bytes = 0;            // including kSharedReserved
  uint32_t dynamic_align = 16;
  bool uses_dynamic_shared = false;
  bool uses_reserved_shared = false;  // asks where system software may keep data
  std::vector<WarpInit> inits;
  std::vector<KernelParam> params;
  uint32_t param_bytes = 0;
  int max_threads = 0;
  int max_registers = 0;  // .maxnreg, 0 if not given
  uint32_t min_ctas = 1;  // .minnctapersm
  int required_ntid[3] = {0, 0, 0};
  int required_cluster[3] = {0, 0, 0};
  std::vector<std::shared_ptr<void>> owned;  // aux data
};

}  // namespace bwgemm::emulator
