// Instructions that decoding refuses, or that fault, with their messages.
#pragma once

#include <string>
#include <vector>

#include "emulator/tests/machine_run.h"

namespace bwgemm::emulator::testing {

struct Refusal {
  std::string body;
  const char* message;
};

inline void check_all(const std::vector<Refusal>& refusals, const std::string& declarations = "") {
  for (const Refusal& refusal : refusals) {
    Run run;
    run.declarations = declarations;
    run(refusal.body);
    CHECK(!run.result.ok);
    CHECK(run.result.kind != ErrorKind::kDeadlock);
    CHECK_TEXT(run.result.error, refusal.message);
  }
}

inline const std::string kHalf = ".reg .b16 %h<4>;\n", kWide = ".reg .b128 %q<4>;\n";

}  // namespace bwgemm::emulator::testing
