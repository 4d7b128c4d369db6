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
  kDynamicSmemSize,
  kTotalSmemSize,
  kAggrSmemSize,
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

struct Kernel {
  std::string name;
  const ptx::Module* module = nullptr;
  std::vector<Instr> code;
  // Rows that code[i] reads, and for moves between registers those that it writes.
  struct Rows {
    std::vector<Row> read, moved_to;
  };
  std::vector<Rows> rows_of;
  std::vector<SharedSymbol> shared_symbols;
  uint32_t rows = 0;  // registers and constants
  uint32_t preds = 0;
  uint32_t local_bytes = 0;          // per lane
  uint32_t static_shared_bytes = 0;  // including kSharedReserved
  uint32_t dynamic_align = 16;
  bool uses_dynamic_shared = false;
  std::vector<WarpInit> inits;
  std::vector<KernelParam> params;
  uint32_t param_bytes = 0;
  int max_threads = 0;
  int required_ntid[3] = {0, 0, 0};
  int required_cluster[3] = {0, 0, 0};
  std::vector<std::shared_ptr<void>> owned;  // aux data
};

}  // namespace bwgemm::emulator
