// What messages quote of a module: a line of its text, and the line of the source it was made of.
#include <algorithm>

#include "emulator/ptx/ast.h"

namespace bwgemm::emulator::ptx {

std::string Module::quoted_line(int line) const {
  constexpr size_t kMost = 160;
  std::string_view text = line_text(line);
  text.remove_prefix(std::min(text.find_first_not_of(" \t"), text.size()));
  std::string found(text.substr(0, kMost));
  for (char& c : found) {
    if (c < ' ' || c > '~') c = c == '\t' ? ' ' : '?';
  }
  return found;
}

std::string Module::source_text(int line) const {
  const auto next = std::upper_bound(source_lines.begin(), source_lines.end(), line,
                                     [](int l, const SourceLine& s) { return l < s.line; });
  if (next == source_lines.begin()) return "";
  const SourceLine& at = *(next - 1);
  const auto name = files.find(at.file);
  if (name == files.end()) return "";
  return name->second + ":" + std::to_string(at.source_line);
}

}  // namespace bwgemm::emulator::ptx
