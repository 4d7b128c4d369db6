// What both nanobind modules (_ext and _emulator) show of the grouped kernels.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <stdexcept>
#include <string>

#include "grouped/grouped_call.h"

namespace bwgemm::grouped::python {

namespace nb = nanobind;

inline nb::list Kernels() {
  nb::list kernels;
  for (const KernelEntry& entry : AllKernels()) {
    const KernelInfo& info = entry.info;
    nb::dict k;
    k["name"] = info.name;
    k["arch"] = Name(info.arch);
    k["kind"] = Name(info.kind);
    k["in_dtype"] = Name(info.in_dtype);
    k["out_dtype"] = Name(info.out_dtype);
    k["rhs_major"] = Name(info.rhs_major);
    k["tile_m"] = info.tile_m;
    k["tile_n"] = info.tile_n;
    k["tile_k"] = info.tile_k;
    k["cluster_m"] = info.cluster_m;
    k["cluster_n"] = info.cluster_n;
    k["swap_ab"] = info.swap_ab;
    k["schedule"] = Name(info.schedule);
    k["stages"] = info.stages;
    k["alignment_bytes"] = kAlignmentBytes;
    kernels.append(k);
  }
  return kernels;
}

inline size_t WorkspaceBytes(const std::string& name, int64_t m, int64_t n, int64_t k,
                             int64_t groups, int64_t experts, int64_t batch, int sm_count) {
  size_t bytes = 0;
  const Status status =
      GroupedWorkspaceBytes(name, m, n, k, groups, experts, batch, sm_count, &bytes);
  if (!status.ok()) throw std::invalid_argument(status.message);
  return bytes;
}

inline void DefineKernelTable(nb::module_& m) {
  m.def("grouped_kernels", &Kernels, "One dict per compiled grouped kernel, in grouped.def order.");
  m.def("grouped_workspace_bytes", &WorkspaceBytes, nb::arg("name"), nb::arg("m"), nb::arg("n"),
        nb::arg("k"), nb::arg("groups"), nb::arg("experts"), nb::arg("batch"), nb::arg("sm_count"),
        "Bytes of workspace that the kernel needs for a problem. ValueError if it cannot do it.");
}

}  // namespace bwgemm::grouped::python
