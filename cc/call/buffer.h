// The buffers of a call: arrays of a framework, each with a role.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/epilogue_arguments.h"
#include "core/status.h"
#include "core/types.h"

namespace bwgemm::call {

inline constexpr int kMaxRank = 6;

// A row-major array, dense unless it is a window.
struct Buffer {
  void* data = nullptr;
  size_t bytes = 0;  // of a window: from its first element to its last
  DType dtype = DType::kBF16;
  int rank = -1;  // -1: the call has none
  std::array<int64_t, kMaxRank> dims{};
  int64_t pitch = 0;  // elements from row to row; more than last() of a window

  bool present() const { return rank >= 0; }
  int64_t last() const { return dims[rank - 1]; }
  int64_t elements() const;
  bool is_window() const { return rank > 0 && pitch != last(); }
};

// The type of a buffer whose elements are v: bytes hold pairs of kE2M1.
constexpr DType BufferType(DType v) { return v == DType::kE2M1 ? DType::kU8 : v; }

// What a buffer is to the product. Operands come first, then results.
// alpha: a factor of each batch element's result, for 4-bit values.
// b_up: the second matrix of a gated product, unless b has both.
// into: the array whose buffer d takes over; outside the window of d it is kept.
// after: an array that is not read. It makes the call follow the operation that writes it.
// x0, ...: what a linked epilogue reads; y1, ...: its results besides d.
enum class Role {
  kA,
  kB,
  kGroupSizes,
  kGroupOffset,
  kAScales,
  kBScales,
  kAlpha,
  kBUp,
  kInto,
  kAfter,
  kX0,
  kD = kX0 + kMaxEpilogueOperands,
  kWorkspace,
  kY1,
};
inline constexpr int kRoles = static_cast<int>(Role::kY1) + kMaxEpilogueResults;
inline Role EpilogueOperand(int i) { return static_cast<Role>(static_cast<int>(Role::kX0) + i); }
inline Role EpilogueResult(int i) { return static_cast<Role>(static_cast<int>(Role::kY1) + i); }

std::string_view Name(Role role);
bool IsResult(Role role);

class Buffers {
 public:
  Buffer& operator[](Role role) { return of_role_[static_cast<int>(role)]; }
  const Buffer& operator[](Role role) const { return of_role_[static_cast<int>(role)]; }

 private:
  std::array<Buffer, kRoles> of_role_;
};

// The part of `text` before the next separator, or all of it; `text` then loses both.
std::string_view Take(std::string_view* text, char separator);

// The role of the next word of `text`, which then loses it. Words are separated by single spaces.
// Unimplemented for an unknown word: a later version of this library may know it.
Status TakeRole(std::string_view* text, bool result, Role* role);

// Turns buffers into windows: columns of their last dimension, which the kernel reads or writes in
// place. `text`: words "role:first column:columns", separated by single spaces. Roles are a, b and
// d; a window of d needs `into` to be the same array. InvalidArgument for any other.
Status SetWindows(std::string_view text, Buffers* buffers);

// For messages: "bfloat16[1,64,128]".
std::string ShapeString(const Buffer& buffer);

// InvalidArgument unless the buffer has this rank.
Status CheckRank(Role role, const Buffer& buffer, int rank);

// InvalidArgument unless the buffer has this type and these extents. The first extent is the batch;
// a buffer whose first extent is 1 serves all batch elements. *batched: whether the buffer has a
// matrix for each of several batch elements.
Status CheckBuffer(Role role, const Buffer& buffer, DType dtype,
                   std::initializer_list<int64_t> extents, bool* batched);
Status CheckBuffer(Role role, const Buffer& buffer, DType dtype, const int64_t* extents,
                   size_t rank, bool* batched);

// InvalidArgument unless all are in [1, 2^31): sizes are 32-bit integers on the device. `what`: for
// messages.
Status CheckExtents(std::string_view what, std::initializer_list<int64_t> extents);

}  // namespace bwgemm::call
