// What all FFI handlers read and return: buffers, members of `config`, errors.
#pragma once

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

ffi::Error ToFfiError(const Status& status);

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
