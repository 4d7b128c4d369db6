// The nanobind module `_ext`: a shell over the kernel table and the FFI handlers.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <string>

#include "build_config.h"
#include "dense/gemm_ffi.h"
#include "dense/python.h"
#include "grouped/grouped_ffi.h"
#include "grouped/python.h"

namespace nb = nanobind;

namespace bwgemm {
namespace {

nb::dict Registrations() {
  nb::dict gemm;
  gemm["initialize"] = python::HandlerCapsule(BwGemmInitialize);
  gemm["execute"] = python::HandlerCapsule(BwGemmExecute);
  nb::dict targets;
  targets["bwgemm.gemm.v1"] = gemm;
  nb::dict grouped;
  grouped["initialize"] = python::HandlerCapsule(BwGroupedInitialize);
  grouped["execute"] = python::HandlerCapsule(BwGroupedExecute);
  targets["bwgemm.grouped.v1"] = grouped;
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
  bwgemm::python::DefineKernelTable(m);
  bwgemm::grouped::python::DefineKernelTable(m);
  m.def("build_info", &bwgemm::BuildInfo, "What this extension was built with.");
}
