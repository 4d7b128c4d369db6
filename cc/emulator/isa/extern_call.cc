// Functions of the device runtime, which have no PTX body: vprintf and __assertfail.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>

#include "emulator/isa/control.h"
#include "emulator/isa/isa.h"
#include "emulator/isa/lanes.h"
#include "emulator/machine/launch.h"

namespace bwgemm::emulator {
namespace {

constexpr size_t kMaxText = 1 << 16;
constexpr int64_t kMaxWidth = 4096;  // of a conversion

struct ExternCall {
  std::string name;
  std::vector<uint32_t> arguments, results;  // offsets in local memory
};

// A string in any memory of the lane.
std::string read_text(Warp& w, uint64_t address, int lane) {
  std::string text;
  for (; text.size() < kMaxText; ++address) {
    const char c = static_cast<char>(*w.generic(address, lane, 1, 1, false));
    if (c == '\0') break;
    text += c;
  }
  return text;
}

// The arguments of a printf: a structure in which each lies at its own alignment, 32-bit integers
// in 4 bytes, all others in 8.
class Arguments {
 public:
  Arguments(Warp& w, uint64_t address, int lane) : w_(w), address_(address), lane_(lane) {}

  template <typename T>
  T next() {
    address_ = (address_ + sizeof(T) - 1) / sizeof(T) * sizeof(T);
    T value;
    std::memcpy(&value, w_.generic(address_, lane_, sizeof(T), sizeof(T), false), sizeof(T));
    address_ += sizeof(T);
    return value;
  }

 private:
  Warp& w_;
  uint64_t address_;
  int lane_;
};

template <typename T>
void append(std::string* out, const std::string& spec, T value) {
  const int size = std::snprintf(nullptr, 0, spec.c_str(), value);
  if (size <= 0) return;
  std::string text(static_cast<size_t>(size) + 1, '\0');
  std::snprintf(text.data(), text.size(), spec.c_str(), value);
  out->append(text, 0, static_cast<size_t>(size));
}

// One conversion, from `*at`, which is its percent sign; moves `*at` past it.
void convert(Warp& w, int lane, const std::string& format, size_t* at, Arguments* arguments,
             std::string* out) {
  const size_t begin = *at;
  std::string spec = "%";
  size_t i = begin + 1;
  // A width or precision, itself an argument where it is a star; -1: there is none.
  const auto number = [&]() -> int64_t {
    int64_t value = -1;
    if (i < format.size() && format[i] == '*') {
      value = arguments->next<int32_t>();
      ++i;
    }
    for (; i < format.size() && format[i] >= '0' && format[i] <= '9'; ++i)
      value = std::min(std::max<int64_t>(value, 0) * 10 + (format[i] - '0'), kMaxWidth + 1);
    if (value > kMaxWidth || value < -kMaxWidth)
      w.fault("printf: a width or precision of more than %d", static_cast<int>(kMaxWidth));
    return value;
  };
  while (i < format.size() && std::strchr("-+ #0", format[i]) != nullptr) spec += format[i++];
  // A negative width pads on the right.
  if (const int64_t width = number(); width != -1) spec += std::to_string(width);
  if (i < format.size() && format[i] == '.') {
    ++i;
    const bool empty =
        i >= format.size() || (format[i] != '*' && (format[i] < '0' || format[i] > '9'));
    const int64_t precision = number();
    if (empty || precision >= 0) spec += "." + std::to_string(empty ? 0 : precision);
  }
  bool wide = false;
  for (; i < format.size() && std::strchr("hljztL", format[i]) != nullptr; ++i)
    wide = wide || format[i] != 'h';
  if (i >= format.size()) w.fault("printf: '%s' is no conversion", format.substr(begin).c_str());
  const char kind = format[i];
  *at = i + 1;
  switch (kind) {
    case '%':
      *out += '%';
      return;
    case 'd':
    case 'i':
    case 'u':
    case 'o':
    case 'x':
    case 'X':
      if (wide) {
        append(out, spec + "ll" + kind, arguments->next<int64_t>());
      } else {
        append(out, spec + kind, arguments->next<int32_t>());
      }
      return;
    case 'c':
      append(out, spec + kind, arguments->next<int32_t>());
      return;
    case 'e':
    case 'E':
    case 'f':
    case 'F':
    case 'g':
    case 'G':
    case 'a':
    case 'A':
      append(out, spec + kind, arguments->next<double>());
      return;
    case 'p':
      append(out, spec + kind, reinterpret_cast<void*>(arguments->next<uint64_t>()));
      return;
    case 's':
      append(out, spec + kind, read_text(w, arguments->next<uint64_t>(), lane).c_str());
      return;
    default:
      w.fault("printf: '%s' is no conversion", format.substr(begin, *at - begin).c_str());
  }
}

std::string formatted(Warp& w, uint64_t format_address, uint64_t arguments_address, int lane) {
  const std::string format = read_text(w, format_address, lane);
  Arguments arguments(w, arguments_address, lane);
  std::string out;
  for (size_t at = 0; at < format.size();) {
    if (format[at] == '%') {
      convert(w, lane, format, &at, &arguments, &out);
    } else {
      out += format[at++];
    }
  }
  return out;
}

template <typename T>
T argument(Warp& w, const ExternCall& call, size_t i, int lane) {
  T value;
  std::memcpy(&value, w.local(call.arguments[i], lane, sizeof value, 1), sizeof value);
  return value;
}

// vprintf(format, arguments): lanes print in their order.
Step exec_printf(Warp& w, const Instr& in, uint32_t mask) {
  const auto& call = *static_cast<const ExternCall*>(in.aux);
  for_lanes(mask, [&](int lane) {
    const std::string text = formatted(w, argument<uint64_t>(w, call, 0, lane),
                                       argument<uint64_t>(w, call, 1, lane), lane);
    w.launch().print(text);
    const int32_t printed = static_cast<int32_t>(text.size());
    if (!call.results.empty())
      std::memcpy(w.local(call.results[0], lane, sizeof printed, 1), &printed, sizeof printed);
  });
  return Step::kNext;
}

// __assertfail(message, file, line, function, size of a character).
Step exec_assert(Warp& w, const Instr& in, uint32_t mask) {
  const auto& call = *static_cast<const ExternCall*>(in.aux);
  const int lane = first_lane(mask);
  w.fault("device assertion failed in lane %d: '%s' at %s:%u", lane,
          read_text(w, argument<uint64_t>(w, call, 0, lane), lane).c_str(),
          read_text(w, argument<uint64_t>(w, call, 1, lane), lane).c_str(),
          argument<uint32_t>(w, call, 2, lane));
}

Step exec_unknown(Warp& w, const Instr& in, uint32_t) {
  const auto& call = *static_cast<const ExternCall*>(in.aux);
  w.fault("call of '%s', which has no PTX body", call.name.c_str());
}

}  // namespace

void decode_extern_call(Decoder& d, std::string_view name, std::vector<uint32_t> arguments,
                        std::vector<uint32_t> results) {
  auto* call = d.make_aux<ExternCall>();
  call->name = std::string(name);
  call->arguments = std::move(arguments);
  call->results = std::move(results);
  const size_t count = call->arguments.size();
  d.out().exec = name == "vprintf" && count == 2        ? exec_printf
                 : name == "__assertfail" && count == 5 ? exec_assert
                                                        : exec_unknown;
}

}  // namespace bwgemm::emulator
