// The nanobind module `_ext`: a shell over the kernel table and the FFI handlers.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <string>

#include "build_config.h"
#include "call/cuda_handlers.h"
#include "call/python.h"

namespace nb = nanobind;

namespace bwgemm {
namespace {

template <class Handler>
nb::dict Stages(Handler* instantiate, Handler* execute) {
  nb::dict stages;
  stages["instantiate"] = call::HandlerCapsule(instantiate);
  stages["execute"] = call::HandlerCapsule(execute);
  return stages;
}

// v1: what earlier versions exported.
nb::dict Registrations() {
  nb::dict targets;
  targets["bwgemm.product.v2"] = Stages(BwProductInstantiate, BwProductExecute);
  targets["bwgemm.gemm.v1"] = Stages(BwGemmV1Instantiate, BwGemmV1Execute);
  targets["bwgemm.grouped.v1"] = Stages(BwGroupedV1Instantiate, BwGroupedV1Execute);
  targets["bwgemm.quantize.v1"] = Stages(BwQuantizeInstantiate, BwQuantizeExecute);
  return targets;
}

nb::dict BuildInfo() {
  nb::dict info;
  info["version"] = BWGEMM_VERSION;
  info["archs"] = BWGEMM_BUILD_ARCHS;
  info["kernel_filter"] = BWGEMM_BUILD_FILTER;
  info["nvcc"] = BWGEMM_NVCC_VERSION;
  info["cutlass"] = BWGEMM_CUTLASS_VERSION;
  info["xla_ffi_api"] = std::to_string(XLA_FFI_API_MAJOR) + "." + std::to_string(XLA_FFI_API_MINOR);
  return info;
}

}  // namespace
}  // namespace bwgemm

NB_MODULE(_ext, m) {
  m.doc() = "jax_bwgemm kernels as XLA FFI handlers. Import through jax_bwgemm.runtime.";
  m.def("registrations", &bwgemm::Registrations,
        "{target name: {stage: capsule}} for jax.ffi.register_ffi_target, platform CUDA.");
  bwgemm::call::DefineKernelTable(m);
  m.def("build_info", &bwgemm::BuildInfo, "What this extension was built with.");
}
