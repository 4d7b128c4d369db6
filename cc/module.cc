// The nanobind module `_ext`: a shell over the kernel table and the FFI handlers.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <stdexcept>
#include <string>
#include <type_traits>

#include "build_config.h"
#include "gemm/gemm_ffi.h"

namespace nb = nanobind;

namespace bwgemm {
namespace {

template <class Handler>
nb::capsule HandlerCapsule(Handler* handler) {
  static_assert(std::is_invocable_r_v<XLA_FFI_Error*, Handler, XLA_FFI_CallFrame*>,
                "a handler is an XLA_FFI_Error*(XLA_FFI_CallFrame*)");
  return nb::capsule(reinterpret_cast<void*>(handler));
}

nb::dict Registrations() {
  nb::dict gemm;
  gemm["initialize"] = HandlerCapsule(BwGemmInitialize);
  gemm["execute"] = HandlerCapsule(BwGemmExecute);
  nb::dict targets;
  targets["bwgemm.gemm.v1"] = gemm;
  return targets;
}

nb::list Kernels() {
  nb::list kernels;
  for (const KernelEntry& entry : AllKernels()) {
    const KernelInfo& info = entry.info;
    nb::dict k;
    k["name"] = info.name;
    k["arch"] = Name(info.arch);
    k["in_dtype"] = Name(info.in_dtype);
    k["out_dtype"] = Name(info.out_dtype);
    k["lhs_major"] = Name(info.lhs_major);
    k["rhs_major"] = Name(info.rhs_major);
    k["tile_m"] = info.tile_m;
    k["tile_n"] = info.tile_n;
    k["tile_k"] = info.tile_k;
    k["cluster_m"] = info.cluster_m;
    k["cluster_n"] = info.cluster_n;
    k["schedule"] = Name(info.schedule);
    k["stages"] = info.stages;
    k["alignment_bytes"] = kAlignmentBytes;
    kernels.append(k);
  }
  return kernels;
}

size_t WorkspaceBytes(const std::string& name, int64_t m, int64_t n, int64_t k, int64_t batch,
                      int sm_count) {
  size_t bytes = 0;
  const Status status = GemmWorkspaceBytes(name, m, n, k, batch, sm_count, &bytes);
  if (!status.ok()) throw std::invalid_argument(status.message);
  return bytes;
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
  m.def("kernels", &bwgemm::Kernels, "One dict per compiled kernel, in kernels.def order.");
  m.def("workspace_bytes", &bwgemm::WorkspaceBytes, nb::arg("name"), nb::arg("m"), nb::arg("n"),
        nb::arg("k"), nb::arg("batch"), nb::arg("sm_count"),
        "Bytes of workspace that the kernel needs for a problem. ValueError if it cannot do it.");
  m.def("build_info", &bwgemm::BuildInfo, "What this extension was built with.");
}
