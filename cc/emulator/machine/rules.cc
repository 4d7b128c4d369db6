#include "emulator/machine/rules.h"

namespace bwgemm::emulator {
namespace {

// In the order of Rule.
constexpr RuleInfo kRules[] = {
    {"shared-race", Severity::kError,
     "accesses of shared memory by two warps or lanes that no synchronisation orders"},
    {"global-race", Severity::kError,
     "accesses of global memory by two warps or lanes that no synchronisation orders"},
    {"same-value", Severity::kWarning,
     "stores of the same value, or bulk stores, to one place of global memory that nothing orders"},
    {"cas-read", Severity::kWarning,
     "plain reads of memory that another warp changes by compare-and-swap"},
    {"cached-read", Severity::kError, "ld.global.nc of what the same launch has written"},
    {"lane-release", Severity::kWarning,
     "accesses of lanes that one lane tells others of, without bar.warp.sync"},
    {"lane-wait", Severity::kWarning,
     "accesses after what another lane of the warp has waited for or stored as volatile, without "
     "bar.warp.sync"},
    {"wait-scope", Severity::kWarning,
     "reads of what a thread of another CTA wrote, after an arrival at or a wait for an mbarrier "
     "without .cluster"},
    {"async-hazard", Severity::kError,
     "memory touched while an asynchronous operation that nobody has waited for owns it"},
    {"tensor-hazard", Severity::kError,
     "tensor memory touched while an operation on it has not been waited for"},
    {"tensor-race", Severity::kError, "accesses of tensor memory that no synchronisation orders"},
    {"tensor-fence", Severity::kWarning,
     "ordered accesses of tensor memory without tcgen05.fence on both sides"},
    {"tensor-lanes", Severity::kWarning,
     "tcgen05.ld or tcgen05.st of another warp's lanes: the warp's own are accessed instead"},
    {"tma-coordinate", Severity::kWarning,
     "a tensor copy whose innermost coordinate is not at a multiple of 16 bytes; on sm_90 this is "
     "always an error"},
    {"proxy-fence", Severity::kError,
     "ordinary writes that the asynchronous proxy reads or writes over without fence.proxy.async"},
    {"mbarrier-init", Severity::kWarning,
     "an mbarrier used where its initialisation may not be visible; one that is written over, or "
     "invalidated while it may be waited for"},
    {"cta-start", Severity::kError,
     "accesses of the shared memory of a CTA that may not have started"},
    {"cta-exit", Severity::kError,
     "a CTA that may exit before accesses to its shared memory are over"},
    {"mbarrier-overrun", Severity::kError,
     "an arrival at an mbarrier or named barrier that may come too early and count for the phase "
     "before"},
    {"mbarrier-parity", Severity::kWarning,
     "a phase parity of an mbarrier's wait that is neither 0 nor 1"},
    {"bulk-exit", Severity::kWarning,
     "a thread that exits while its bulk stores may still read shared memory"},
    {"load-wait", Severity::kWarning, "a register of tcgen05.ld used before tcgen05.wait::ld"},
    {"wgmma-registers", Severity::kError,
     "registers of wgmma used before wgmma.wait_group, or written without wgmma.fence"},
    {"shuffle-source", Severity::kError,
     "a use of what shfl.sync has read of a lane that does not execute it"},
    {"exited-lanes", Severity::kWarning,
     "shfl.sync or bar.warp.sync with a membermask that names exited lanes; instructions of a "
     "whole "
     "warp without them"},
    {"uninitialized-shared", Severity::kOff, "reads of shared memory that nothing has written"},
    {"uninitialized-tensor", Severity::kWarning,
     "reads of tensor memory that nothing has written, accumulation on it included"},
    {"uninitialized-register", Severity::kWarning,
     "stores, addresses and branches that come from a register or local variable that nothing has "
     "written"},
};
static_assert(sizeof kRules / sizeof kRules[0] == kRuleCount);

constexpr Severity kSeverities[] = {Severity::kOff, Severity::kWarning, Severity::kError};

}  // namespace

const char* to_string(Severity severity) {
  static constexpr const char* kNames[] = {"off", "warning", "error"};
  return kNames[static_cast<size_t>(severity)];
}

const RuleInfo& info(Rule rule) { return kRules[static_cast<size_t>(rule)]; }

Rules::Rules() {
  for (size_t i = 0; i < kRuleCount; ++i) severity_[i] = kRules[i].severity;
}

bool Rules::set(std::string_view rule, std::string_view severity) {
  for (size_t i = 0; i < kRuleCount; ++i) {
    if (rule != kRules[i].name) continue;
    for (const Severity known : kSeverities) {
      if (severity != to_string(known)) continue;
      severity_[i] = known;
      return true;
    }
  }
  return false;
}

}  // namespace bwgemm::emulator
