#include "call/buffer.h"

#include <limits>

namespace bwgemm::call {
namespace {

constexpr std::array<std::string_view, kRoles> kNames = {
    "a",    "b",  "group_sizes", "group_offset", "a_scales", "b_scales", "alpha",
    "b_up", "x0", "x1",          "x2",           "x3",       "x4",       "x5",
    "x6",   "x7", "d",           "workspace",    "y1",       "y2",       "y3"};

std::string ShapeString(DType dtype, const int64_t* dims, size_t rank) {
  std::string text = std::string(bwgemm::Name(dtype)) + "[";
  for (size_t i = 0; i < rank; ++i) text += (i ? "," : "") + std::to_string(dims[i]);
  return text + "]";
}

}  // namespace

std::string_view Name(Role role) { return kNames[static_cast<int>(role)]; }

bool IsResult(Role role) { return role >= Role::kD; }

Status TakeRole(std::string_view* text, bool result, Role* role) {
  const std::string_view word = text->substr(0, text->find(' '));
  text->remove_prefix(word.size() == text->size() ? word.size() : word.size() + 1);
  for (int i = 0; i < kRoles; ++i) {
    *role = static_cast<Role>(i);
    if (word == kNames[i] && IsResult(*role) == result) return Status::Ok();
  }
  return Status::Unimplemented((result ? "result '" : "operand '") + std::string(word) +
                               "' is not known to this version of jax_bwgemm");
}

std::string ShapeString(const Buffer& buffer) {
  return ShapeString(buffer.dtype, buffer.dims.data(), buffer.rank);
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
