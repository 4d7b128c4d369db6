#include <charconv>
#include <stdexcept>

#include "emulator/runtime/program/program.h"

namespace bwgemm::emulator {
namespace {

uint64_t Number(const std::string& name, const std::string& value, uint64_t least, uint64_t most) {
  uint64_t number = 0;
  const char* end = value.data() + value.size();
  const auto [stop, error] = std::from_chars(value.data(), end, number);
  if (error != std::errc() || stop != end || number < least || number > most) {
    throw std::invalid_argument(name + " must be an integer in [" + std::to_string(least) + ", " +
                                std::to_string(most) + "], got '" + value + "'");
  }
  return number;
}

void Set(Settings& settings, const std::string& name, const std::string& value) {
  LaunchConfig& launch = settings.launch;
  if (name == "seed") {
    launch.seed = Number(name, value, 0, ~uint64_t{0});
  } else if (name == "sm_count") {
    launch.sm_count = static_cast<int>(Number(name, value, 1, 1024));
  } else if (name == "step_limit") {
    launch.step_limit = Number(name, value, 1, ~uint64_t{0});
  } else if (name == "races") {
    launch.races = Number(name, value, 0, 1) != 0;
  } else if (name == "threads") {
    launch.threads = static_cast<int>(Number(name, value, 1, 1024));
  } else if (name == "relaxed") {
    launch.relaxed = Number(name, value, 0, 1) != 0;
  } else if (name.rfind("rule:", 0) == 0) {
    if (!launch.rules.set(name.substr(5), value)) {
      throw std::invalid_argument("no rule '" + name.substr(5) + "' or no severity '" + value +
                                  "'");
    }
  } else {
    throw std::invalid_argument("no setting '" + name + "'");
  }
}

}  // namespace

Settings ParseSettings(const std::string& text) {
  Settings settings;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string item = text.substr(begin, end - begin);
    const size_t equals = item.find('=');
    if (equals == std::string::npos) {
      throw std::invalid_argument("'" + item + "' is not name=value");
    }
    Set(settings, item.substr(0, equals), item.substr(equals + 1));
    begin = end + 1;
  }
  return settings;
}

}  // namespace bwgemm::emulator
