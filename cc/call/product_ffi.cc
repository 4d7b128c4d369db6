#include "call/product_ffi.h"

#include <string>

namespace bwgemm::call {
namespace {

// What DecodeBuffers takes buffers by.
auto TakeInto(Buffers* buffers, bool results) {
  return [=](std::string_view* rest, Buffer** buffer) {
    Role role;
    BWGEMM_RETURN_IF_ERROR(TakeRole(rest, results, &role));
    *buffer = &(*buffers)[role];
    return Status::Ok();
  };
}

}  // namespace

Status DecodeConfig(const Roles& fixed, const ffi::Dictionary& config, ProductCall* call,
                    Roles* roles) {
  *roles = fixed;
  const bool fixed_roles = !fixed.operands.empty();
  Options& options = call->options;
  for (auto member = config.begin(); member != config.end(); ++member) {
    const std::string_view name = *member;
    Status status;
    if (name == "kernel") {
      status = Read(config, member, &call->kernel);
    } else if (name == "operands" && !fixed_roles) {
      status = Read(config, member, &roles->operands);
    } else if (name == "results" && !fixed_roles) {
      status = Read(config, member, &roles->results);
    } else if (name == "windows" && !fixed_roles) {
      status = Read(config, member, &call->windows);
    } else if (name == "epilogue") {
      status = Read(config, member, &call->epilogue.code);
    } else if (name == "epilogue_digest") {
      status = Read(config, member, &call->epilogue.digest);
    } else if (name == "epilogue_version") {
      status = Read(config, member, &call->epilogue.version);
    } else if (name == "epilogue_form") {
      status = Read(config, member, &call->epilogue.form);
    } else if (name == "epilogue_operands") {
      status = Read(config, member, &call->epilogue.operands);
    } else if (name == "epilogue_results") {
      status = Read(config, member, &call->epilogue.results);
    } else if (name == "raster_order") {
      status = Read(config, member, &options.raster_order);
    } else if (name == "swizzle") {
      status = Read(config, member, &options.swizzle);
    } else if (name == "splits") {
      status = Read(config, member, &options.splits);
    } else if (name == "decomposition") {
      status = Read(config, member, &options.decomposition);
    } else if (name == "order") {
      status = Read(config, member, &options.order);
    } else if (name == "a_scaling") {
      status = Read(config, member, &options.a_scaling);
    } else if (name == "b_scaling") {
      status = Read(config, member, &options.b_scaling);
    } else {
      status = UnknownMember(name);
    }
    BWGEMM_RETURN_IF_ERROR(status);
  }
  for (auto [name, value] :
       {std::pair("kernel", call->kernel), std::pair("operands", roles->operands),
        std::pair("results", roles->results)}) {
    if (value.empty()) {
      return Status::InvalidArgument(std::string("config has no member '") + name + "'");
    }
  }
  return Status::Ok();
}

Status DecodeCall(const Roles& fixed, const ffi::RemainingArgs& operands,
                  const ffi::RemainingRets& results, const ffi::Dictionary& config,
                  ProductCall* call) {
  Roles roles;
  BWGEMM_RETURN_IF_ERROR(DecodeConfig(fixed, config, call, &roles));
  Buffers* buffers = &call->buffers;
  BWGEMM_RETURN_IF_ERROR(DecodeBuffers(
      "operands", roles.operands, operands.size(),
      [&](size_t i) { return *operands.get<ffi::AnyBuffer>(i); }, TakeInto(buffers, false)));
  BWGEMM_RETURN_IF_ERROR(DecodeBuffers(
      "results", roles.results, results.size(),
      [&](size_t i) { return **results.get<ffi::AnyBuffer>(i); }, TakeInto(buffers, true)));
  return SetWindows(call->windows, &call->buffers);
}

}  // namespace bwgemm::call
