// The one exception type of the emulator: everything that is wrong with a PTX text or with what a
// kernel does.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace bwgemm::emulator {

enum class ErrorKind : uint8_t {
  kParse,        // the text is not PTX
  kUnsupported,  // PTX, but an instruction, modifier or directive that the emulator does not have
  kLaunch,       // wrong launch parameters
  kFault,        // the kernel did something that is undefined or illegal on the machine
  kDeadlock,     // nothing can run any more
  kStepLimit,    // the kernel did not finish within LaunchConfig::step_limit
};

const char* to_string(ErrorKind kind);

// `line` is the 1-based line of the PTX text (0: none). Thrown by value, caught by launch() and by
// Module::parse's callers.
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, int line, const std::string& message)
      : std::runtime_error(message), kind(kind), line(line) {}

  ErrorKind kind;
  int line;
  const char* rule = "";  // static storage
};

// printf into a std::string, for messages.
[[gnu::format(printf, 1, 2)]] std::string format(const char* fmt, ...);

}  // namespace bwgemm::emulator
