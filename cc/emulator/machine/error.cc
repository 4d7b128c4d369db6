#include "emulator/machine/error.h"

#include <cstdarg>
#include <cstdio>

namespace bwgemm::emulator {

const char* to_string(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kParse:
      return "parse error";
    case ErrorKind::kUnsupported:
      return "unsupported";
    case ErrorKind::kLaunch:
      return "launch error";
    case ErrorKind::kFault:
      return "fault";
    case ErrorKind::kDeadlock:
      return "deadlock";
    case ErrorKind::kStepLimit:
      return "step limit";
  }
  return "error";
}

std::string format(const char* fmt, ...) {
  va_list args;
  va_start(args, fmt);
  va_list copy;
  va_copy(copy, args);
  const int length = std::vsnprintf(nullptr, 0, fmt, copy);
  va_end(copy);
  std::string text(length < 0 ? 0 : static_cast<size_t>(length), '\0');
  if (length > 0) std::vsnprintf(text.data(), text.size() + 1, fmt, args);
  va_end(args);
  return text;
}

}  // namespace bwgemm::emulator
