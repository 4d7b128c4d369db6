// What both nanobind modules (_ext and _emulator) show of the kernel table.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <stdexcept>
#include <string>
#include <type_traits>

#include "dense/gemm_call.h"
#include "xla/ffi/api/ffi.h"

namespace bwgemm::python {

namespace nb = nanobind;

template <class Handler>
nb::capsule HandlerCapsule(Handler* handler) {
  static_assert(std::is_invocable_r_v<XLA_FFI_Error*, Handler, XLA_FFI_CallFrame*>,
                "a handler is an XLA_FFI_Error*(XLA_FFI_CallFrame*)");
  return nb::capsule(reinterpret_cast<void*>(handler));
}

inline nb::list Kernels() {
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
    k["swap_ab"] = info.swap_ab;
    k["stream_k"] = info.stream_k;
    k["stages"] = info.stages;
    k["alignment_bytes"] = kAlignmentBytes;
    kernels.append(k);
  }
  return kernels;
}

inline size_t WorkspaceBytes(const std::string& name, int64_t m, int64_t n, int64_t k,
                             int64_t batch, int64_t splits, int sm_count,
                             const std::string& raster_order, int64_t swizzle,
                             const std::string& decomposition) {
  size_t bytes = 0;
  const GemmOptions options{raster_order, swizzle, splits, decomposition};
  const Status status = GemmWorkspaceBytes(name, m, n, k, batch, options, sm_count, &bytes);
  if (!status.ok()) throw std::invalid_argument(status.message);
  return bytes;
}

inline void DefineKernelTable(nb::module_& m) {
  m.def("kernels", &Kernels, "One dict per compiled kernel, in kernels.def order.");
  m.def("workspace_bytes", &WorkspaceBytes, nb::arg("name"), nb::arg("m"), nb::arg("n"),
        nb::arg("k"), nb::arg("batch"), nb::arg("splits"), nb::arg("sm_count"),
        nb::arg("raster_order") = "heuristic", nb::arg("swizzle") = 1,
        nb::arg("decomposition") = "heuristic",
        "Bytes of workspace that the kernel needs for a problem. ValueError if it cannot do it.");
}

}  // namespace bwgemm::python
