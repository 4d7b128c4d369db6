// Errors as values, shared by every layer below the FFI: no exceptions, no XLA, no CUDA.
#pragma once

#include <string>
#include <utility>

namespace bwgemm {

// The three kinds of failure that callers tell apart; each has one XLA FFI error code.
enum class StatusCode {
  kOk,
  kInvalidArgument,  // the caller's shapes, dtypes or attributes are wrong
  kUnimplemented,    // valid, but this build or device has no kernel for it
  kInternal,         // CUDA or CUTLASS refused; the message has file:line, kernel and problem
};

struct [[nodiscard]] Status {
  StatusCode code = StatusCode::kOk;
  std::string message;

  bool ok() const { return code == StatusCode::kOk; }

  static Status Ok() { return {}; }
  static Status InvalidArgument(std::string m) {
    return {StatusCode::kInvalidArgument, std::move(m)};
  }
  static Status Unimplemented(std::string m) { return {StatusCode::kUnimplemented, std::move(m)}; }
  static Status Internal(std::string m) { return {StatusCode::kInternal, std::move(m)}; }
};

}  // namespace bwgemm

#define BWGEMM_RETURN_IF_ERROR(expr)                 \
  do {                                               \
    ::bwgemm::Status bwgemm_status_ = (expr);        \
    if (!bwgemm_status_.ok()) return bwgemm_status_; \
  } while (0)
