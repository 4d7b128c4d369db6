// A rule and two kernels: one that breaks it, on every schedule, and its corrected twin.
#pragma once

#include <string>

#include "emulator/tests/tensor_kernel.h"

namespace bwgemm::emulator::testing {

constexpr uint64_t kSeeds = 8;

struct Setting {
  Dim3 grid{1, 1, 1}, block{128, 1, 1}, cluster{1, 1, 1};
  const char* target = "sm_100a";
  bool relaxed = false;
};

// The body gets %d1, a pointer to 64 KiB of zeros.
inline LaunchResult run_rule(const std::string& body, Rule rule, Severity severity, uint64_t seed,
                             const Setting& setting) {
  Launcher launcher;
  launcher.grid = setting.grid;
  launcher.block = setting.block;
  launcher.cluster = setting.cluster;
  launcher.config.seed = seed;
  launcher.config.relaxed = setting.relaxed;
  launcher.config.rules.set(rule, severity);
  Buffer buffer(65536);
  launcher.add(buffer, true, "out");
  return launcher.run(
      kernel(".param .u64 out", "ld.param.u64 %d1, [out];\n" + body, 65536, setting.target),
      Params().u64(buffer.address()));
}

// `wrong` is reported under `rule` with `message` on every seed, as an error and as a warning;
// `right` never is.
inline void check_rule(Rule rule, const std::string& wrong, const std::string& right,
                       const std::string& message, const Setting& setting = {}) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    const LaunchResult error = run_rule(wrong, rule, Severity::kError, seed, setting);
    CHECK(!error.ok);
    CHECK_EQ(error.rule, std::string(info(rule).name));
    CHECK_TEXT(error.error, message);
    const LaunchResult warned = run_rule(wrong, rule, Severity::kWarning, seed, setting);
    bool found = false;
    for (const Warning& w : warned.warnings) found = found || w.rule == rule;
    CHECK(found);
    const LaunchResult off = run_rule(wrong, rule, Severity::kOff, seed, setting);
    CHECK(off.rule != info(rule).name);
    const LaunchResult good = run_rule(right, rule, Severity::kError, seed, setting);
    CHECK_TEXT(good.error, "");
    CHECK(good.warnings.empty());
  }
}

}  // namespace bwgemm::emulator::testing
