// Settings of a program, as its environment has them.
#include <stdexcept>

#include "emulator/runtime/program/program.h"
#include "emulator/tests/tensor_check.h"

using namespace bwgemm::emulator;

TEST(settings_are_read) {
  const Settings defaults = ParseSettings("");
  CHECK_EQ(defaults.launch.sm_count, 4);
  const Settings s = ParseSettings(
      "seed=7,sm_count=16,step_limit=9,races=0,relaxed=1,"
      "rule:load-wait=error,rule:proxy-fence=off");
  CHECK_EQ(s.launch.seed, 7u);
  CHECK_EQ(s.launch.sm_count, 16);
  CHECK_EQ(s.launch.step_limit, 9u);
  CHECK(!s.launch.races && s.launch.relaxed);
  CHECK(s.launch.rules[Rule::kLoadWait] == Severity::kError);
  CHECK(s.launch.rules[Rule::kProxyFence] == Severity::kOff);
}

TEST(settings_are_checked) {
  const auto refused = [](const char* text, const char* why) {
    std::string what;
    try {
      ParseSettings(text);
    } catch (const std::invalid_argument& e) {
      what = e.what();
    }
    CHECK_TEXT(what, why);
  };
  refused("seed", "'seed' is not name=value");
  refused("seed=", "seed must be an integer in [0, 18446744073709551615], got ''");
  refused("sm_count=0", "sm_count must be an integer in [1, 1024], got '0'");
  refused("races=2", "races must be an integer in [0, 1], got '2'");
  refused("speed=1", "no setting 'speed'");
  refused("rule:nothing=error", "no rule 'nothing'");
  refused("rule:load-wait=loud", "no severity 'loud'");
}

int main(int argc, char** argv) { return testing::run_all(argc, argv); }
