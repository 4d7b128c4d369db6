#include "call/buffer.h"

#include <charconv>
#include <limits>

namespace bwgemm::call {
namespace {

constexpr std::array<std::string_view, kRoles> kNames = {
    "a",    "b",     "group_sizes", "group_offset", "a_scales", "b_scales", "alpha", "b_up",
    "into", "after", "x0",          "x1",           "x2",       "x3",       "x4",    "x5",
    "x6",   "x7",    "d",           "workspace",    "y1",       "y2",       "y3"};
static_assert(kNames.back() == "y3");

std::string ShapeString(DType dtype, const int64_t* dims, size_t rank) {
  std::string text = std::string(bwgemm::Name(dtype)) + "[";
  for (size_t i = 0; i < rank; ++i) text += (i ? "," : "") + std::to_string(dims[i]);
  return text + "]";
}

// Whether the whole of `text` is a number.
bool ToNumber(std::string_view text, int64_t* number) {
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, *number);
  return error == std::errc{} && rest == end;
}

}  // namespace

std::string_view Name(Role role) { return kNames[static_cast<int>(role)]; }

bool IsResult(Role role) { return role >= Role::kD; }

int64_t Buffer::elements() const {
  int64_t count = 1;
  for (int i = 0; i < rank; ++i) count *= dims[i];
  return count;
}

std::string_view Take(std::string_view* text, char separator) {
  const std::string_view part = text->substr(0, text->find(separator));
  text->remove_prefix(part.size() == text->size() ? part.size() : part.size() + 1);
  return part;
}

Status TakeRole(std::string_view* text, bool result, Role* role) {
  const std::string_view word = Take(text, ' ');
  for (int i = 0; i < kRoles; ++i) {
    *role = static_cast<Role>(i);
    if (word == kNames[i] && IsResult(*role) == result) return Status::Ok();
  }
  return Status::Unimplemented((result ? "result '" : "operand '") + std::string(word) +
                               "' is not known to this version of jax_bwgemm");
}

Status SetWindows(std::string_view text, Buffers* buffers) {
  std::string_view rest = text;
  while (!rest.empty()) {
    std::string_view word = Take(&rest, ' ');
    const std::string_view name = Take(&word, ':');
    int64_t first, columns;
    const bool numbers = ToNumber(Take(&word, ':'), &first) && ToNumber(word, &columns);
    const Role role = name == "a" ? Role::kA : name == "b" ? Role::kB : Role::kD;
    if (!numbers || name != Name(role)) {
      return Status::InvalidArgument("windows '" + std::string(text) +
                                     "' are no words 'a:first:columns', of a, b or d");
    }
    Buffer& buffer = (*buffers)[role];
    const Buffer& into = (*buffers)[Role::kInto];
    if (role == Role::kD && into.data != buffer.data) {
      return Status::InvalidArgument("a window of d needs d's array as operand into");
    }
    if (buffer.rank < 2 || buffer.is_window() || first < 0 || columns < 1 ||
        columns > buffer.last() || first > buffer.last() - columns || buffer.bytes == 0) {
      return Status::InvalidArgument(
          "no window " + std::to_string(first) + ":" + std::to_string(columns) + " of " +
          std::string(name) + ", " +
          (buffer.present() ? ShapeString(buffer) : "which is not there"));
    }
    buffer.data = static_cast<char*>(buffer.data) + first * SizeOf(buffer.dtype);
    buffer.bytes -= (buffer.last() - columns) * SizeOf(buffer.dtype);  // to the last row's end
    buffer.dims[buffer.rank - 1] = columns;
  }
  return Status::Ok();
}

std::string ShapeString(const Buffer& buffer) {
  return ShapeString(buffer.dtype, buffer.dims.data(), buffer.rank);
}

Status CheckRank(Role role, const Buffer& buffer, int rank) {
  if (buffer.rank == rank) return Status::Ok();
  return Status::InvalidArgument(std::string(Name(role)) + " is " + ShapeString(buffer) +
                                 ", expected rank " + std::to_string(rank));
}

Status CheckBuffer(Role role, const Buffer& buffer, DType dtype,
                   std::initializer_list<int64_t> extents, bool* batched) {
  return CheckBuffer(role, buffer, dtype, extents.begin(), extents.size(), batched);
}

Status CheckBuffer(Role role, const Buffer& buffer, DType dtype, const int64_t* extents,
                   size_t rank, bool* batched) {
  const int64_t batch = *extents;
  bool equal = buffer.dtype == dtype && buffer.rank == static_cast<int>(rank) &&
               (buffer.dims[0] == batch || buffer.dims[0] == 1);
  for (int i = 1; equal && i < buffer.rank; ++i) equal = buffer.dims[i] == extents[i];
  *batched = equal && batch != 1 && buffer.dims[0] == batch;
  if (equal) return Status::Ok();
  return Status::InvalidArgument((IsResult(role) ? "result " : "operand ") +
                                 std::string(Name(role)) + " is " + ShapeString(buffer) +
                                 ", expected " + ShapeString(dtype, extents, rank) +
                                 (batch == 1 ? "" : " or a batch extent of 1"));
}

Status CheckExtents(std::string_view what, std::initializer_list<int64_t> extents) {
  for (int64_t extent : extents) {
    if (extent < 1 || extent > std::numeric_limits<int32_t>::max()) {
      return Status::InvalidArgument("extent " + std::to_string(extent) + " of " +
                                     std::string(what) + " is outside [1, 2^31)");
    }
  }
  return Status::Ok();
}

}  // namespace bwgemm::call
