// KernelOps for one scaled SM100 kernel.
#pragma once

#include "dense/gemm_kernel.h"
#include "dense/launcher.h"
#include "scaled/sm100/config.h"

namespace bwgemm::scaled::sm100 {

template <class C>
struct Launcher {
  using Dense = dense::Launcher<C>;

  static Status Supports(const ScaledProblem& p) { return Dense::Supports(p.gemm); }

  static size_t WorkspaceBytes(const ScaledProblem& p) { return Dense::WorkspaceBytes(p.gemm); }

  static Status Launch(const ScaledProblem& p, void* workspace, cudaStream_t stream) {
    typename Dense::Arguments args = Dense::MakeArguments(p.gemm);
    const auto& [column, row] = std::tie(p.a, p.b);
    args.epilogue.thread = {
        {{column.data, 0.0f, {column.row_pitch != 0, cute::_0{}, column.batch_pitch}},
         {row.data, 0.0f, {cute::_0{}, row.row_pitch != 0, row.batch_pitch}},
         {}},
        {},
        {}};
    return Dense::Launch(args, workspace, stream);
  }
};

template <class C>
KernelEntry MakeEntry(const char* name, const char* f32_twin) {
  using L = Launcher<C>;
  return {C::Info(name, f32_twin, Arch::kSm100, C::kStages, /*uneven_parts=*/false),
          {&L::Supports, &L::WorkspaceBytes, &L::Dense::Prepare, &L::Launch}};
}

}  // namespace bwgemm::scaled::sm100
