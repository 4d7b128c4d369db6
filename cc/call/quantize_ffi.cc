#include "call/quantize_ffi.h"

namespace bwgemm::call {
namespace {

// What DecodeBuffers takes buffers by.
auto TakeInto(QuantizeCall* call, bool results) {
  return [=](std::string_view* rest, Buffer** buffer) {
    const std::string_view name = Take(rest, ' ');
    for (int role = 0; role < kQuantizeRoles; ++role) {
      if (name != Name(static_cast<QuantizeRole>(role))) continue;
      call->is_result[role] = results;
      *buffer = &call->buffers[role];
      return Status::Ok();
    }
    return Status::Unimplemented("quantize: buffer '" + std::string(name) + "' among the " +
                                 (results ? "results" : "operands") +
                                 " is not known to this version of jax_bwgemm");
  };
}

}  // namespace

Status DecodeConfig(const ffi::Dictionary& config, QuantizeCall* call, Roles* roles) {
  for (auto member = config.begin(); member != config.end(); ++member) {
    const std::string_view name = *member;
    Status status;
    if (name == "operands") {
      status = Read(config, member, &roles->operands);
    } else if (name == "results") {
      status = Read(config, member, &roles->results);
    } else if (name == "scaling") {
      status = Read(config, member, &call->scaling);
    } else if (name == "power_of_two") {
      int64_t value = 0;
      status = Read(config, member, &value);
      call->power_of_two = value != 0;
    } else if (name == "epsilon") {
      status = Read(config, member, &call->epsilon);
    } else if (name == "kernel") {
      status = Read(config, member, &call->kernel);
    } else if (name == "source") {
      status = Read(config, member, &call->source.code);
    } else if (name == "source_digest") {
      status = Read(config, member, &call->source.digest);
    } else if (name == "source_version") {
      status = Read(config, member, &call->source.version);
    } else if (name == "source_operands") {
      status = Read(config, member, &call->source.operands);
    } else {
      status = UnknownMember(name);
    }
    BWGEMM_RETURN_IF_ERROR(status);
  }
  return Status::Ok();
}

Status DecodeQuantize(const ffi::RemainingArgs& operands, const ffi::RemainingRets& results,
                      const ffi::Dictionary& config, QuantizeCall* call) {
  Roles roles;
  BWGEMM_RETURN_IF_ERROR(DecodeConfig(config, call, &roles));
  BWGEMM_RETURN_IF_ERROR(DecodeBuffers(
      "operands", roles.operands, operands.size(),
      [&](size_t i) { return *operands.get<ffi::AnyBuffer>(i); }, TakeInto(call, false)));
  return DecodeBuffers(
      "results", roles.results, results.size(),
      [&](size_t i) { return **results.get<ffi::AnyBuffer>(i); }, TakeInto(call, true));
}

}  // namespace bwgemm::call
