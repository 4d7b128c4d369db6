#include "call/ffi_decode.h"

namespace bwgemm::call {
namespace {

Status ToDType(ffi::DataType type, std::string_view name, DType* dtype) {
  switch (type) {
    case ffi::DataType::BF16:
      *dtype = DType::kBF16;
      return Status::Ok();
    case ffi::DataType::F16:
      *dtype = DType::kF16;
      return Status::Ok();
    case ffi::DataType::F32:
      *dtype = DType::kF32;
      return Status::Ok();
    case ffi::DataType::F8E4M3FN:
      *dtype = DType::kE4M3;
      return Status::Ok();
    case ffi::DataType::F8E5M2:
      *dtype = DType::kE5M2;
      return Status::Ok();
    case ffi::DataType::S32:
      *dtype = DType::kS32;
      return Status::Ok();
    case ffi::DataType::U8:
      *dtype = DType::kU8;
      return Status::Ok();
    default:
      return Status::InvalidArgument(
          std::string(name) +
          " has none of the types bfloat16, float16, float32, float8_e4m3fn, "
          "float8_e5m2, int32, uint8");
  }
}

}  // namespace

Status ToBuffer(const ffi::AnyBuffer& from, std::string_view name, Buffer* buffer) {
  if (buffer->present()) {
    return Status::InvalidArgument("the call has " + std::string(name) + " twice");
  }
  BWGEMM_RETURN_IF_ERROR(ToDType(from.element_type(), name, &buffer->dtype));
  const auto dims = from.dimensions();
  if (dims.size() > kMaxRank) {
    return Status::InvalidArgument(std::string(name) + " has rank " + std::to_string(dims.size()) +
                                   ", more than " + std::to_string(kMaxRank));
  }
  buffer->rank = static_cast<int>(dims.size());
  for (int i = 0; i < buffer->rank; ++i) buffer->pitch = buffer->dims[i] = dims[i];
  buffer->data = from.untyped_data();
  buffer->bytes = from.size_bytes();
  return Status::Ok();
}

ffi::Error ToFfiError(const Status& status) {
  switch (status.code) {
    case StatusCode::kOk:
      return ffi::Error::Success();
    case StatusCode::kInvalidArgument:
      return ffi::Error(ffi::ErrorCode::kInvalidArgument, status.message);
    case StatusCode::kUnimplemented:
      return ffi::Error(ffi::ErrorCode::kUnimplemented, status.message);
    case StatusCode::kInternal:
      break;
  }
  return ffi::Error(ffi::ErrorCode::kInternal, status.message);
}

}  // namespace bwgemm::call
