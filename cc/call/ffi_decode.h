// What all FFI handlers read and return: buffers, members of `config`, errors.
#pragma once

#include <exception>
#include <string>
#include <string_view>

#include "call/buffer.h"
#include "core/status.h"
#include "xla/ffi/api/ffi.h"

namespace bwgemm::call {

namespace ffi = ::xla::ffi;

// `name`: the buffer's, for messages. InvalidArgument if `buffer` has been read before.
Status ToBuffer(const ffi::AnyBuffer& from, std::string_view name, Buffer* buffer);

// The names of a call's operands and of its results, in their order, separated by single spaces.
struct Roles {
  std::string_view operands, results;
};

// Reads the operands or the results of a call. roles: their names. get(i): the i-th of them.
// take(&rest, &buffer): takes the next name off `rest`, and says where its buffer belongs.
template <class Get, class TakeBuffer>
Status DecodeBuffers(const char* what, std::string_view roles, size_t count, Get get,
                     TakeBuffer take) {
  std::string_view rest = roles;
  size_t i = 0;
  for (; i < count && !rest.empty(); ++i) {
    const std::string_view name = rest.substr(0, rest.find(' '));
    Buffer* buffer;
    BWGEMM_RETURN_IF_ERROR(take(&rest, &buffer));
    BWGEMM_RETURN_IF_ERROR(ToBuffer(get(i), name, buffer));
  }
  if (i == count && rest.empty()) return Status::Ok();
  return Status::InvalidArgument("the call has " + std::to_string(count) + " " + what +
                                 ", their roles are '" + std::string(roles) + "'");
}

ffi::Error ToFfiError(const Status& status);

// What a handler returns: the error of body(), a Status, or of what it throws, which must not get
// into XLA. who: throws, for messages.
template <class Body>
ffi::Error RunHandler(const char* who, Body body) {
  try {
    return ToFfiError(body());
  } catch (const std::exception& e) {
    return ffi::Error(ffi::ErrorCode::kInternal, std::string(who) + ": " + e.what());
  }
}

template <class T>
Status Read(const ffi::Dictionary& config, const ffi::Dictionary::Iterator& member, T* value) {
  const ffi::ErrorOr<T> found = config.get<T>(*member);
  if (!found.has_value()) {
    return Status::InvalidArgument("config member '" + std::string(*member) +
                                   "': " + found.error().message());
  }
  *value = *found;
  return Status::Ok();
}

inline Status UnknownMember(std::string_view name) {
  return Status::Unimplemented("config member '" + std::string(name) +
                               "' is not known to this version of jax_bwgemm");
}

}  // namespace bwgemm::call
