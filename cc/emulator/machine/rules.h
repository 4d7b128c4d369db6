// The rules that a launch is watched for, and how severe a breach of each is. What the machine
// cannot carry out at all (a bad address, a malformed descriptor, a deadlock) is no rule: it always
// ends the launch.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace bwgemm::emulator {

enum class Severity : uint8_t {
  kOff,
  kWarning,  // collected in LaunchResult::warnings; the launch goes on
  kError,    // ends the launch
};

// "off", "warning", "error".
const char* to_string(Severity severity);

enum class Rule : uint8_t {
  kSharedRace,
  kGlobalRace,
  kSameValue,
  kCasRead,
  kCachedRead,
  kLaneRelease,
  kLaneWait,
  kWaitScope,
  kAsyncHazard,
  kTensorHazard,
  kTensorRace,
  kTensorFence,
  kTensorLanes,
  kTmaCoordinate,
  kProxyFence,
  kMbarrierInit,
  kCtaStart,
  kCtaExit,
  kMbarrierOverrun,
  kMbarrierParity,
  kBulkExit,
  kLoadWait,
  kWgmmaRegisters,
  kShuffleSource,
  kExitedLanes,
  kUninitializedShared,
  kUninitializedTensor,
  kUninitializedRegister,
};
constexpr size_t kRuleCount = 28;

struct RuleInfo {
  const char* name;
  Severity severity;    // by default
  const char* meaning;  // what is reported
};
const RuleInfo& info(Rule rule);

class Rules {
 public:
  Rules();
  Severity operator[](Rule rule) const { return severity_[static_cast<size_t>(rule)]; }
  bool on(Rule rule) const { return (*this)[rule] != Severity::kOff; }
  void set(Rule rule, Severity severity) { severity_[static_cast<size_t>(rule)] = severity; }
  // False where there is no rule of that name, or no such severity.
  bool set(std::string_view rule, std::string_view severity);

 private:
  std::array<Severity, kRuleCount> severity_;
};

// A breach of a rule that is a warning.
struct Warning {
  Rule rule;
  int line = 0;        // PTX line
  std::string text;    // the first one's report
  uint64_t count = 1;  // breaches in that line of that rule
};

}  // namespace bwgemm::emulator
