#include "emulator/machine/rules.h"

namespace bwgemm::emulator {
namespace {

// In the order of Rule.
constexpr RuleInfo kRules[] = {
    {"async-hazard", Severity::kError,
     "shared memory touched while an asynchronous operation in flight owns it"},
    {"tensor-hazard", Severity::kError,
     "tensor memory touched while an operation on it has not been waited for"},
    {"proxy-fence", Severity::kError,
     "ordinary writes read by the asynchronous proxy without fence.proxy.async"},
    {"bulk-exit", Severity::kWarning,
     "a thread that exits while its bulk stores may still read shared memory"},
    {"load-wait", Severity::kWarning, "a register of tcgen05.ld used before tcgen05.wait::ld"},
    {"shuffle-source", Severity::kError, "shfl.sync from a lane that does not execute it"},
    {"exited-lanes", Severity::kWarning, "shfl.sync with a membermask that names exited lanes"},
    {"uninitialized-shared", Severity::kOff, "reads of shared memory that nothing has written"},
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
