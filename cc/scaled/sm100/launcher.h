// KernelOps for one scaled SM100 kernel.
#pragma once

#include "dense/gemm_kernel.h"
#include "dense/launcher.h"
#include "scaled/sm100/config.h"

namespace bwgemm::scaled::sm100 {

template <class C>
struct Launcher {
  using Dense = dense::Launcher<C>;
  using Arguments = typename Dense::Arguments;

  static Status Supports(const ScaledProblem& p) {
    if constexpr (C::kScaleUse != ScaleUse::kMma) return Dense::Supports(p.gemm);
    for (int64_t rows : {p.gemm.m, p.gemm.n}) {
      // CUTLASS counts scales in 32 bits.
      const int64_t tiles = Ceil(rows, kScaleTileRows) * Ceil(p.gemm.k, ScaleTileK(C::kA));
      if (tiles <= INT32_MAX / kScaleTileBytes) continue;
      return Status::InvalidArgument(p.ToString() + " may have more than 2^31 - 1 scales");
    }
    Arguments args = Dense::MakeArguments(p.gemm);
    SetLayouts(args);
    return C::Kernel::can_implement(args) ? Status::Ok() : dense::NotAligned(p.gemm);
  }

  static size_t WorkspaceBytes(const ScaledProblem& p) { return Dense::WorkspaceBytes(p.gemm); }

  static Status Launch(const ScaledProblem& p, void* workspace, cudaStream_t stream) {
    Arguments args = Dense::MakeArguments(p.gemm);
    SetScales(p, args);
    return Dense::Launch(args, workspace, stream);
  }

 private:
  static constexpr int64_t Ceil(int64_t extent, int64_t tile) { return (extent + tile - 1) / tile; }

  // Of scales in tiles, every matrix with its own.
  static void SetLayouts(Arguments& args) {
    if constexpr (C::kScaleUse == ScaleUse::kMma) {
      using Blocks = typename C::Mainloop::Sm1xxBlkScaledConfig;
      args.mainloop.layout_SFA = Blocks::tile_atom_to_shape_SFA(args.problem_shape);
      args.mainloop.layout_SFB = Blocks::tile_atom_to_shape_SFB(args.problem_shape);
    }
  }

  static void SetScales(const ScaledProblem& p, Arguments& args) {
    if constexpr (C::kScaleUse == ScaleUse::kMma) {
      using Scale = typename C::Mainloop::ElementSF;
      auto& loop = args.mainloop;
      loop.ptr_SFA = reinterpret_cast<const Scale*>(p.a.tiles);
      loop.ptr_SFB = reinterpret_cast<const Scale*>(p.b.tiles);
      SetLayouts(args);
      SetBatchPitch(loop.layout_SFA, p.a.batch_pitch);
      SetBatchPitch(loop.layout_SFB, p.b.batch_pitch);
      if constexpr (C::kA == DType::kE2M1) {
        args.epilogue.thread = {
            {p.alpha.data, 0.0f, {false, cute::_0{}, p.alpha.batch_pitch}}, {}, {}};
      }
    } else {
      const auto& [column, row] = std::tie(p.a, p.b);
      args.epilogue.thread = {
          {{column.data, 0.0f, {column.row_pitch != 0, cute::_0{}, column.batch_pitch}},
           {row.data, 0.0f, {cute::_0{}, row.row_pitch != 0, row.batch_pitch}},
           {}},
          {},
          {}};
    }
  }

  // 0: all matrices have the same scales.
  template <class Layout>
  static void SetBatchPitch(Layout& layout, int64_t pitch) {
    cute::get<2, 1>(layout.stride()) = static_cast<int32_t>(pitch);
  }
};

template <class C>
KernelEntry MakeEntry(const char* name, const char* f32_twin) {
  using L = Launcher<C>;
  // K is not split where MMAs read the scales: their layout is that of all of K.
  const char* twin = C::kScaleUse == ScaleUse::kMma ? "" : f32_twin;
  return {C::Info(name, twin, Arch::kSm100, C::kStages, /*uneven_parts=*/false),
          {&L::Supports, &L::WorkspaceBytes, &L::Dense::Prepare, &L::Launch}};
}

}  // namespace bwgemm::scaled::sm100
