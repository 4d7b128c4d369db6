#include "call/quantize_ffi.h"

namespace bwgemm::call {
namespace {

// get(i) is the i-th operand or result.
template <class Get>
Status DecodeBuffers(std::string_view names, size_t count, bool results, Get&& get,
                     QuantizeCall* call) {
  const std::string what = results ? "results" : "operands";
  const auto wrong_count = [&, all = std::string(names)] {
    return Status::InvalidArgument("quantize: the call has " + std::to_string(count) + " " + what +
                                   ", their roles are '" + all + "'");
  };
  for (size_t i = 0; i < count; ++i) {
    if (names.empty()) return wrong_count();
    const std::string_view word = Take(&names, ' ');
    int role = 0;
    while (role < kQuantizeRoles && word != Name(static_cast<QuantizeRole>(role))) ++role;
    if (role == kQuantizeRoles) {
      return Status::Unimplemented("quantize: buffer '" + std::string(word) + "' among the " +
                                   what + " is not known to this version of jax_bwgemm");
    }
    call->is_result[role] = results;
    BWGEMM_RETURN_IF_ERROR(ToBuffer(get(i), word, &call->buffers[role]));
  }
  return names.empty() ? Status::Ok() : wrong_count();
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
      roles.operands, operands.size(), /*results=*/false,
      [&](size_t i) { return *operands.get<ffi::AnyBuffer>(i); }, call));
  return DecodeBuffers(
      roles.results, results.size(), /*results=*/true,
      [&](size_t i) { return **results.get<ffi::AnyBuffer>(i); }, call);
}

}  // namespace bwgemm::call
