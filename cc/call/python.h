// What both nanobind modules (_ext and _emulator) show of the kernel table.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <stdexcept>
#include <string>
#include <type_traits>

#include "call/product_call.h"
#include "xla/ffi/api/ffi.h"

namespace bwgemm::call {

namespace nb = nanobind;

template <class Handler>
nb::capsule HandlerCapsule(Handler* handler) {
  static_assert(std::is_invocable_r_v<XLA_FFI_Error*, Handler, XLA_FFI_CallFrame*>,
                "a handler is an XLA_FFI_Error*(XLA_FFI_CallFrame*)");
  return nb::capsule(reinterpret_cast<void*>(handler));
}

// The fields of jax_bwgemm.product.kernels.Kernel.
inline nb::list PythonKernels() {
  nb::list kernels;
  for (const Kernel& kernel : AllKernels()) {
    const KernelInfo& info = kernel.info;
    nb::dict k;
    k["name"] = info.name;
    k["arch"] = Name(info.arch);
    k["contraction"] = Name(info.contraction);
    k["a_dtype"] = Name(info.a_dtype);
    k["b_dtype"] = Name(info.b_dtype);
    k["out_dtype"] = Name(info.out_dtype);
    k["a_major"] = Name(info.a_major);
    k["b_major"] = Name(info.b_major);
    k["tile_m"] = info.tile_m;
    k["tile_n"] = info.tile_n;
    k["tile_k"] = info.tile_k;
    k["cluster_m"] = info.cluster_m;
    k["cluster_n"] = info.cluster_n;
    k["schedule"] = Name(info.schedule);
    k["swap_ab"] = info.swap_ab;
    k["stream_k"] = info.stream_k;
    k["stages"] = info.stages;
    k["alignment_bytes"] = info.alignment_bytes;
    k["terms"] = info.terms;
    k["term_dtype"] = Name(info.term_dtype);
    k["uneven_parts"] = info.uneven_parts;
    k["scales"] = Name(info.scales);
    k["f32_twin"] = info.f32_twin;
    kernels.append(k);
  }
  return kernels;
}

inline size_t PythonWorkspaceBytes(const std::string& kernel, int64_t m, int64_t n, int64_t k,
                                   int64_t batch, int64_t groups, int64_t experts, int sm_count,
                                   int64_t splits, const std::string& raster_order, int64_t swizzle,
                                   const std::string& decomposition) {
  Options options;
  options.raster_order = raster_order;
  options.swizzle = swizzle;
  options.splits = splits;
  options.decomposition = decomposition;
  size_t bytes = 0;
  const Status status =
      WorkspaceBytes(kernel, {m, n, k, batch, groups, experts}, options, sm_count, &bytes);
  if (!status.ok()) throw std::invalid_argument(status.message);
  return bytes;
}

inline void DefineKernelTable(nb::module_& m) {
  m.def("kernels", &PythonKernels,
        "One dict per compiled kernel, in the order of kernels.def, grouped.def, scaled.def and "
        "scaled_grouped.def.");
  m.def("workspace_bytes", &PythonWorkspaceBytes, nb::arg("kernel"), nb::kw_only(), nb::arg("m"),
        nb::arg("n"), nb::arg("k"), nb::arg("batch"), nb::arg("groups") = 0, nb::arg("experts") = 0,
        nb::arg("sm_count"), nb::arg("splits") = 1, nb::arg("raster_order") = "heuristic",
        nb::arg("swizzle") = 1, nb::arg("decomposition") = "heuristic",
        "Bytes of workspace that the kernel needs for a problem; groups and experts of grouped "
        "kernels alone. ValueError if it cannot do it.");
}

}  // namespace bwgemm::call
